"""`cancel` at the worst moments: once it has returned 0 nothing of the run starts or goes on, on any back end."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from hpc_train.recovery.evidence import read_decision
from hpc_train.run.layout import RunDir
from tests.e2e.cancelling import MOMENTS as MOMENTS_OF_SLURM
from tests.e2e.cancelling import play_many
from tests.e2e.lab import Lab
from tests.support.cluster import SlurmCluster

AGAIN = str(Path(__file__).with_name("again.py"))  # asks to be run again, at once and for ever
SEED = 20  # other moments: python -m tests.e2e.cancelling ROUNDS SEED
OPTIONS = ("--rendezvous", "none", "--max-failures", "1000", "--backoff", "1s")


def has_attempt(run: RunDir) -> bool:
    return run.attempt(0).path.exists()


def has_launched(run: RunDir) -> bool:
    return any(run.attempt(0).ready.glob("[0-9]*"))


def has_ended_ranks(run: RunDir) -> bool:
    return any(run.attempt(0).exits.glob("rank-*"))


def has_decision(run: RunDir) -> bool:
    return read_decision(run.attempt(0)) is not None


MOMENTS: dict[str, Callable[[RunDir], bool]] = {
    "pending or starting": lambda run: True,
    "in begin": has_attempt,
    "launching": has_launched,
    "deciding": has_ended_ranks,
    "requeueing": has_decision,
}


def wait(reached: Callable[[], bool]) -> None:
    """Spin: the windows are milliseconds wide."""
    deadline = time.monotonic() + 120
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def assert_over(lab: Lab, run: RunDir, done: subprocess.CompletedProcess[str], *, settle_s: float) -> None:
    """Cancelled, and what there is of the run stays as it is."""
    assert done.returncode == 0, done.stderr + done.stdout
    attempts = len(run.attempts())
    status = lab.status(run)
    assert status["state"] == "cancelled", status
    time.sleep(settle_s)
    assert len(run.attempts()) == attempts
    assert lab.status(run)["state"] == "cancelled"


@pytest.mark.mpi
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_local_run_that_was_cancelled_does_not_start_again(local_lab: Lab, moment: str) -> None:
    run = local_lab.submit(*OPTIONS, "--", "python", AGAIN)
    wait(partial(MOMENTS[moment], run))
    assert_over(local_lab, run, local_lab.hpc_train("cancel", run.path), settle_s=2)


def test_a_slurm_job_that_was_cancelled_does_not_start_again(cluster: SlurmCluster, slurm_lab: Lab) -> None:
    for moment, reached in MOMENTS.items():
        run = slurm_lab.submit(*OPTIONS, "--", "python", AGAIN)
        wait(partial(reached, run))
        done = slurm_lab.hpc_train("cancel", run.path, timeout=150)
        assert_over(slurm_lab, run, done, settle_s=0.5)
        job_id = slurm_lab.status(run)["job_id"]
        listed = cluster.run(["squeue", "--noheader", f"--jobs={job_id}", "--states=all", "--format=%T"]).stdout
        # A shell that begins or decides just then may see the mark and leave before scancel reaches it.
        assert listed.strip() in ("CANCELLED", "COMPLETED"), f"{moment}: {listed}"


def test_at_any_moment_nothing_comes_back_and_the_run_can_go_on_exactly(cluster: SlurmCluster, slurm_lab: Lab) -> None:
    rounds = play_many(cluster, slurm_lab, len(MOMENTS_OF_SLURM), seed=SEED)
    assert {each.name: each.problems for each in rounds if each.problems} == {}


def test_a_cancel_and_a_requeue_at_once_take_turns(local_lab: Lab) -> None:
    run = local_lab.submit(*OPTIONS, "--", "python", AGAIN)
    assert local_lab.hpc_train("cancel", run.path).returncode == 0
    for delay_s in (0.0, 0.1, 0.2, 0.4):
        requeue = start(local_lab, "requeue", run)
        time.sleep(delay_s)
        cancels = [start(local_lab, "cancel", run) for _ in range(2)]
        codes = [process.wait(120) for process in cancels]
        assert codes == [0, 0]
        cancelled_at = time.time()
        # A requeue that had its turn after the cancels is a later wish of the person, and says so.
        goes_on = requeue.wait(120) == 0 and local_lab.status(run)["state"] != "cancelled"
        if not goes_on:
            attempts = len(run.attempts())
            time.sleep(1.5)
            assert len(run.attempts()) == attempts, f"started after {cancelled_at}"
        assert local_lab.hpc_train("cancel", run.path).returncode == 0
    assert local_lab.status(run)["state"] == "cancelled"


def start(lab: Lab, word: str, run: RunDir) -> subprocess.Popen[bytes]:
    """A command that runs beside the others."""
    argv = [sys.executable, "-m", "hpc_train", word, str(run.path)]
    return subprocess.Popen(argv, cwd=lab.directory, env={**lab.environ}, stdout=-3, stderr=-3)
