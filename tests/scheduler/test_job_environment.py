"""What of the submitting shell travels with a job."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hpc_train.scheduler.environment import job_environment

SHELL = {
    "PATH": "/opt/slurm/bin:/usr/bin",
    "HOME": "/home/me",
    "LANG": "en_GB.UTF-8",
    "LC_ALL": "C",
    "LD_LIBRARY_PATH": "/opt/lib",
    "MODULEPATH": "/opt/modules",
    "BASH_FUNC_module%%": '() { _module_raw "$@"; }',
    "BASH_FUNC__module_raw%%": "() { :; }",
    "SLURM_CONF": "/etc/slurm/slurm.conf",
}


def test_what_a_batch_script_needs_travels() -> None:
    # Azure/az-hop#1119: a job without PATH finds nothing
    assert job_environment(SHELL, []) == SHELL


def test_what_a_job_or_a_launcher_left_in_the_shell_does_not() -> None:
    # goodfire-ai/spd#955: an inherited SLURM_CPU_BIND pinned eight ranks to four cores; snakemake/snakemake#2230
    leaked = [
        "SLURM_CPU_BIND", "SLURM_JOB_ID", "SLURM_MEM_PER_CPU", "SLURM_MEM_PER_NODE", "SBATCH_ACCOUNT", "SBATCH_EXPORT",
        "SRUN_CPUS_PER_TASK", "PMIX_RANK", "PMI_RANK", "OMPI_COMM_WORLD_RANK", "PRTE_MCA_x", "MPICH_X", "RANK",
        "WORLD_SIZE", "MASTER_ADDR", "HPC_TRAIN_TOKEN", "HPC_TRAIN_JOB_NODES", "CUDA_VISIBLE_DEVICES",
        "OMP_NUM_THREADS", "LOADEDMODULES", "LD_PRELOAD", "PYTHONPATH",
    ]  # fmt: skip
    assert job_environment({**SHELL, **dict.fromkeys(leaked, "1")}, []) == SHELL


def test_secrets_travel_only_by_name() -> None:
    shell = {**SHELL, "HF_TOKEN": "s3cret", "WANDB_API_KEY": "k"}
    assert "HF_TOKEN" not in job_environment(shell, [])
    assert job_environment(shell, ["HF_TOKEN", "NOT_SET"]) == {**SHELL, "HF_TOKEN": "s3cret"}


def test_what_is_named_travels_whatever_it_is() -> None:
    assert job_environment({"SLURM_CPU_BIND": "none"}, ["SLURM_CPU_BIND"]) == {"SLURM_CPU_BIND": "none"}


@given(st.dictionaries(st.text(min_size=1, max_size=12), st.text(max_size=12)), st.lists(st.text(max_size=12)))
def test_values_are_never_changed(environ: dict[str, str], names: list[str]) -> None:
    passed = job_environment(environ, names)
    assert passed.items() <= environ.items()
    assert set(names) & set(environ) <= set(passed)
