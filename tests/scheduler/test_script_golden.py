"""Rendered scripts, held still.

After a meant change: WRITE_GOLDEN=1 python -m pytest tests/scheduler/test_script_golden.py, and read the difference.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

from hpc_train import __version__
from hpc_train.run.layout import RunDir
from hpc_train.scheduler.script import render_script
from tests.scheduler.making import load, plan_of

GOLDEN = Path(__file__).parent / "golden"
WRITES = os.environ.get("WRITE_GOLDEN") == "1"


@dataclass(frozen=True)
class Case:
    """A job file's tables without [program].command, the site (its name, or a text of one called `here`), the MPI."""

    job: str = ""
    site: str = "slurm"
    run: str = "/scratch/me/runs/train-20260101-000000-abcdef"
    flavour: str = "openmpi"


CASES = {
    "local": Case(site="local"),
    "local_limits": Case(
        '[job]\nwalltime = "2:00:00"\nranks_per_node = 4\n[program]\nsetup = ["ulimit -c 0"]\n[env]\nset = {A = "1"}',
        site="local",
        run="/home/it's me/runs/a b%c",
    ),
    "slurm": Case('[job]\nname = "plain"\nwalltime = "30"'),
    "cluster_gpus": Case(
        '[job]\nname = "big run"\nnodes = 4\nranks_per_node = 4\ngpus_per_rank = 1\nmemory = "120G"\n'
        'exclude = "n[2-3]"\naccount = "project_1"\nwalltime = "10"\nqueue = "short"',
        site="slurm-cluster",
    ),
    "odd_names": Case(
        '[job]\nname = "say \\"hi\\" # 1; $HOME `id` \\\\ ../%j"\nwalltime = "5"\nrun_root = "/scratch/50% off/x"\n'
        "[env]\nset = {SPACED = \"a b $HOME\", QUOTED = \"it's `id`\"}",
        run="/scratch/50% off/it's/r",
    ),
    "modules_setup": Case(
        '[env]\nmodules = ["pytorch/2.4"]\nset = {A = "x,y"}\n[program]\nsetup = ["source env.sh", "echo ready \\\\"]\n'
        '[recovery]\nrequeue = false',
        site='extends = "slurm"\ncontinuation = "requeue"\nprologue = ["source /etc/profile.d/modules.sh"]\n'
        '[launch]\nlauncher = "srun"\nmpi = "cray_shasta"\nextra = ["--cpu-bind=cores", "--network=a b"]\n'
        '[env]\nmodules = ["craype"]\nunset = ["NCCL_NET"]\nset = {GPU = "{local_rank}"}\n'
        '[rendezvous]\ninterfaces = ["hsn*", "ib0"]\n',
    ),
    "slurm_mpirun": Case(
        "[job]\nnodes = 2\nranks_per_node = 2",
        site='extends = "slurm"\n[launch]\nlauncher = "mpirun"\nmpi = "mpirun"\nextra = ["--map-by", "ppr:2:node"]\n',
    ),
    "successor": Case(
        '[job]\nname = "chained"\nwalltime = "30"\nqueue = "spare"',
        site='extends = "slurm"\ncontinuation = "successor"\n'
        '[[queues]]\nname = "spare"\npreempt_grace = "2m"\n',
    ),
    "local_mpich": Case("[job]\nranks_per_node = 4", site="local", flavour="mpich"),
    "slurm_hydra": Case(
        "[job]\nnodes = 2\nranks_per_node = 2",
        site='extends = "slurm"\n[launch]\nlauncher = "mpirun"\nmpi = "mpirun"\nextra = ["-iface", "ib0"]\n',
        flavour="mpich",
    ),
}  # fmt: skip


def render(case: Case, directory: Path) -> str:
    command = 'command = ["python", "train.py", "--note", "it\'s $HOME; echo"]\n'
    text = case.job.replace("[program]\n", f"[program]\n{command}")
    text = text if "[program]" in text else f"{text}\n[program]\n{command}"
    text = text.replace("[program]\n", '[program]\nworkdir = "/home/me/my code"\n')
    if "\n" in case.site:
        loaded = load(directory, text, site=case.site)
    else:
        loaded = load(directory, text, flags={"job.site": case.site})
    plan = plan_of(loaded, RunDir(Path(case.run)), python="/opt/my env/bin/python", flavour=case.flavour)
    return render_script(plan).replace(f"hpc-train {__version__}:", "hpc-train VERSION:")


@pytest.mark.parametrize("name", CASES)
def test_a_script_is_what_it_was(name: str, tmp_path: Path) -> None:
    script = render(CASES[name], tmp_path)
    path = GOLDEN / f"{name}.sbatch"
    if WRITES:
        path.write_text(script)
    assert script == path.read_text(), "if the change is meant: WRITE_GOLDEN=1"


@pytest.mark.parametrize("name", CASES)
def test_bash_can_read_a_script(name: str, tmp_path: Path) -> None:
    read = subprocess.run(
        ["bash", "-n"], input=render(CASES[name], tmp_path), capture_output=True, text=True, timeout=10
    )
    assert (read.returncode, read.stderr) == (0, "")


@pytest.mark.parametrize("name", CASES)
def test_directives_stand_before_the_first_command(name: str, tmp_path: Path) -> None:
    lines = render(CASES[name], tmp_path).splitlines()
    numbers = [number for number, line in enumerate(lines) if line.startswith("#SBATCH")]
    assert numbers == list(range(1, 1 + len(numbers)))  # later ones sbatch passes over without a word


def test_every_golden_script_has_its_case() -> None:
    assert {path.stem for path in GOLDEN.glob("*.sbatch")} == set(CASES)
