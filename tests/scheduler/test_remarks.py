"""What a submit says of requests that can run, but perhaps not as their user thinks."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_train.run.layout import RunDir
from hpc_train.scheduler.remarks import remarks_on
from hpc_train.scheduler.script import Plan
from tests.scheduler.making import load, plan_of, write_program

LOCAL = 'extends = "local"\n[status]\nverified = true\n'
SLURM = 'extends = "slurm"\n[status]\nverified = true\n'
KNOWN = f"{SLURM}[resources]\ngpus_per_node = 4\ncores_per_node = 64\n"
SPARSE = f"{SLURM}[resources]\ngpus_per_node = 4\ncores_per_node = 4\n"


def plan(
    directory: Path, job: str, *, command: str = '["python", "train.py"]', site: str = SLURM, more: str = ""
) -> Plan:
    """`more`: in place of a PATH on which the launchers are."""
    for name in ("torchrun", "accelerate", "mpirun"):
        write_program(directory / "bin", name, "exit 0")
    path = f"[env.set]\nPATH = '{directory}/bin'\n"
    loaded = load(directory, f"[job]\n{job}\n[program]\ncommand = {command}\n{more or path}", site=site)
    return plan_of(loaded, RunDir(directory / "r"), python="/usr/bin/python3")


TORCHRUN = '["torchrun", "--nproc-per-node", "4", "train.py"]'
ITS_GPU = "its threads and data workers share it, and its GPU waits for them"


@pytest.mark.parametrize(
    ("job", "command", "site", "who"),
    [
        ("gpus_per_rank = 1", '["python", "train.py"]', SLURM, ITS_GPU),
        ("gpus_per_rank = 4", TORCHRUN, SLURM, "all processes that torchrun starts there share it"),
        ("", TORCHRUN, KNOWN, "all processes that torchrun starts there share it"),
        ("", '["python", "-m", "torch.distributed.run", "--nproc_per_node=gpu", "t.py"]', SLURM, "all processes that "),
        ("", '["accelerate", "launch", "--num_processes", "2", "t.py"]', SLURM, "that accelerate launch starts"),
        ("", '["mpirun", "-n", "2", "./solver"]', SLURM, "all processes that mpirun "),
    ],
)
def test_one_core_for_what_wants_more_is_told(tmp_path: Path, job: str, command: str, site: str, who: str) -> None:
    (told,) = remarks_on(plan(tmp_path, job, command=command, site=site), {})
    assert told.startswith("each rank gets 1 core, as neither [job].cpus_per_rank nor the site file says more: ")
    assert who in told and told.endswith("; ask for more with --cpus-per-rank")


@pytest.mark.parametrize(
    ("job", "command", "site"),
    [
        ("", '["python", "train.py"]', SLURM),  # nothing says that it wants more
        ("ranks_per_node = 4", '["python", "train.py", "-n", "4"]', SLURM),
        ("gpus_per_rank = 1\ncpus_per_rank = 1", '["python", "train.py"]', SLURM),  # somebody said how many
        ("gpus_per_rank = 1", '["python", "train.py"]', f"{SLURM}[defaults]\ncpus_per_rank = 1\n"),
        ("gpus_per_rank = 1", '["python", "train.py"]', KNOWN),
        ("gpus_per_rank = 1", '["python", "train.py"]', SPARSE),  # no more than its share is there
        ("gpus_per_rank = 4", TORCHRUN, KNOWN),
        ("", '["torchrun", "train.py", "--nproc-per-node", "4"]', SLURM),  # the program's own option
        ("", '["torchrun", "--nproc-per-node=1", "train.py"]', SLURM),
        ("", TORCHRUN, LOCAL),  # nothing holds a rank to one core there
    ],
)
def test_one_core_is_not_told_where_it_is_enough_or_meant(tmp_path: Path, job: str, command: str, site: str) -> None:
    assert remarks_on(plan(tmp_path, job, command=command, site=site), {}) == ()


@pytest.mark.parametrize(
    ("name", "key", "how"),
    [
        ("SBATCH_ACCOUNT", "account", "--account or [job].account"),
        ("SBATCH_PARTITION", "queue", "--queue or [job].queue"),
        ("SBATCH_QOS", "qos", "--qos or [job].qos"),
        ("SBATCH_CONSTRAINT", "constraint", "[job].constraint"),
        ("SBATCH_RESERVATION", "reservation", "[job].reservation"),
        ("SBATCH_TIMELIMIT", "walltime", "--walltime or [job].walltime"),
        ("SBATCH_MEM_PER_NODE", "memory", "--memory or [job].memory"),
    ],
)
def test_what_the_shell_tells_sbatch_is_told_where_the_request_does_not_say_it(
    tmp_path: Path, name: str, key: str, how: str
) -> None:
    environ = {name: "77", "SBATCH_NO_KEY_OF_OURS": "1"}
    (told,) = remarks_on(plan(tmp_path, ""), environ)
    assert told == f"{name} = '77' of this shell has no effect: a run does not depend on the shell; say it with {how}"
    assert remarks_on(plan(tmp_path, f'{key} = "66"'), environ) == ()
    assert remarks_on(plan(tmp_path, "", site=LOCAL), environ) == ()
    assert remarks_on(plan(tmp_path, ""), {name: ""}) == ()


@pytest.mark.parametrize(
    ("command", "site", "more", "is_told"),
    [
        ("trian", SLURM, "", True),
        ("trian", SLURM, "[env.set]\nPATH = '/nowhere'\n", True),
        ("trian", SLURM, "setup = ['source ~/env']\n", False),  # any of these may bring it
        ("trian", SLURM, "[env]\nmodules = ['m']\n", False),
        ("trian", f"{SLURM}[env]\nmodules = ['m']\n", "", False),
        ("trian", f"prologue = ['. /etc/profile']\n{SLURM}", "", False),
        ("torchrun", SLURM, "", False),
        ("/opt/trian", SLURM, "", False),  # submit refuses those that are not there
        ("python3", SLURM, "[env.set]\nPATH = '/nowhere'\n", False),  # the recorded one
    ],
)
def test_a_program_that_is_nowhere_here_is_told(
    tmp_path: Path, command: str, site: str, more: str, is_told: bool
) -> None:
    told = remarks_on(plan(tmp_path, "", command=f'["{command}"]', site=site, more=more), {})
    said = "[program].command: there is no program 'trian' in this shell's PATH: the job fails as it starts unless "
    assert [line.startswith(said) for line in told] == [True] * is_told, told
