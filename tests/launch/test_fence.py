"""An attempt that was given up but lives on: its ranks notice, end by themselves, and leave no trace that misleads."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpc_train.errors import StorageError, Superseded
from hpc_train.files import write_json
from hpc_train.launch.fence import PERIOD_S, OwnerWatch
from hpc_train.run.layout import AttemptDir, RunDir
from hpc_train.run.marks import read_marks
from hpc_train.run.ownership import check_ownership, read_ownership, revoke_ownership, take_ownership
from tests.launch.attempts import ALONE, Ended, await_files, batch, make_run, run_attempt, shim_argv, write_program
from tests.support.ranks import mpi_environment

# Never saves and never talks to another rank: nothing but the owner record can tell it that it was given up.
BUSY = """
    import time
    open("started", "w").close()
    time.sleep(60)
"""
# Finishes while the next attempt is at work already.
FINISHES_LATE = """
    import os, time
    open("started", "w").close()
    while not os.path.exists("go on"):
        time.sleep(0.02)
"""


def next_attempt(pid: int, attempt: AttemptDir) -> None:
    """What Slurm does once it has given a node up: the job starts again, with this attempt still at work."""
    await_files(attempt.ready, 1 if "alone" in attempt.path.parent.name else 3)
    time.sleep(1.0)
    assert batch("begin", RunDir(attempt.path.parent)).stdout.startswith("go 1 ")
    (attempt.path.parent / "work" / "go on").touch()


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Ended:
    """Three ranks of which only one looks at the owner record."""
    root = tmp_path_factory.mktemp("busy")
    program = write_program(root / "busy.py", BUSY)
    return run_attempt(make_run(root / "run", ["python", str(program)]), meanwhile=next_attempt)


@pytest.mark.mpi
def test_ranks_that_never_save_end_by_themselves(busy: Ended) -> None:
    # The one that looks; the others as far as mpirun, which ends them with it, leaves them the time for a word.
    assert busy.marks[0].writer == 0
    assert {mark.failure for mark in busy.marks} == {"superseded"}
    assert "attempt 1 owns the run now" in busy.marks[0].cause
    taken = os.stat(busy.run.owner).st_mtime
    assert all(mark.time - taken < PERIOD_S * 1.25 + 10 for mark in busy.marks)


@pytest.mark.mpi
def test_the_late_decision_is_the_one_that_the_next_attempt_went_by(busy: Ended) -> None:
    assert busy.word == "leave"
    assert busy.decision.failure == "node_fail"  # as it looked when attempt 1 began
    assert [event.event for event in busy.events].count("decision") == 1
    assert not (busy.run.attempt(1).path / "decision.json").exists()


@pytest.mark.mpi
def test_one_line_in_the_log_tells_of_it(busy: Ended) -> None:
    told = [line for line in busy.log.splitlines() if "attempt 1 owns the run now" in line]
    assert len(told) == 1 and "superseded" in told[0]


def test_all_ranks_of_a_node_end_where_no_launcher_is_left_to_end_them(tmp_path: Path) -> None:
    program = write_program(tmp_path / "busy.py", BUSY)
    run = make_run(tmp_path / "run", ["python", str(program)], num_ranks=2, ranks_per_node=2)
    assert batch("begin", run).stdout.startswith("go 0 ")
    names = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK")
    environments = [{**mpi_environment(), "OMPI_COMM_WORLD_SIZE": "2", **dict.fromkeys(names, rank)} for rank in "01"]
    ranks = [subprocess.Popen(shim_argv(run, 0), env=env, stderr=subprocess.DEVNULL) for env in environments]
    try:
        await_files(run.attempt(0).ready, 2)
        assert batch("begin", run).stdout.startswith("go 1 ")
        assert [rank.wait(PERIOD_S * 1.25 + 30) for rank in ranks] == [76, 76]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert [mark.failure for mark in read_marks(run.attempt(0))] == ["superseded", "superseded"]


def test_a_finish_after_the_next_attempt_began_is_not_done(tmp_path: Path) -> None:
    program = write_program(tmp_path / "late.py", FINISHES_LATE)
    run = make_run(tmp_path / "alone", ["python", str(program)], **ALONE)
    ended = run_attempt(run, launcher=[], meanwhile=next_attempt)
    assert not ended.attempt.done.exists()
    assert ended.code != 0 and ended.word == "leave"


def watch_of(run: RunDir, number: int = 0) -> OwnerWatch:
    return OwnerWatch(run.attempt(number), is_leader=True, period_s=0.0)


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return RunDir(tmp_path)


def test_only_a_later_attempt_takes_the_run_away(run: RunDir) -> None:
    take_ownership(run)
    watch = watch_of(run)
    assert watch.look(time.monotonic()) == ""
    take_ownership(run)
    assert "attempt 1 owns the run now" in watch.look(time.monotonic())
    assert watch_of(run, 1).look(time.monotonic()) == "" == watch_of(run, 2).look_at_once()


def test_a_cancel_takes_the_run_from_its_attempt_and_from_no_later_one(run: RunDir) -> None:
    revoke_ownership(run)
    assert not run.owner.exists()  # no attempt, nothing to take
    owner = take_ownership(run)
    watch = watch_of(run)
    assert watch.look(time.monotonic()) == ""
    revoke_ownership(run)
    assert watch.look(time.monotonic()).startswith("the run was cancelled")
    with pytest.raises(Superseded, match="was cancelled"):
        check_ownership(run, owner.token)
    later = take_ownership(run)  # as a requeue lets it go on
    check_ownership(run, later.token)
    assert watch_of(run, 1).look(time.monotonic()) == ""
    assert "attempt 1 owns the run now" in watch_of(run).look(time.monotonic())


def test_no_attempt_owns_a_run_that_bears_the_mark(run: RunDir) -> None:
    run.cancelled.touch()
    with pytest.raises(Superseded, match="was cancelled"):
        take_ownership(run, 0)
    assert run.attempts() == [] and not run.owner.exists()


def test_a_disk_without_room_does_not_keep_a_cancelled_attempt_owner(run: RunDir) -> None:
    owner = take_ownership(run)
    imports = "import pathlib, sys; from hpc_train.run.layout import RunDir; from hpc_train.run.ownership import *"
    text = f"{imports}; revoke_ownership(RunDir(pathlib.Path(sys.argv[1])))"
    every_write_fails = ["bash", "-c", 'ulimit -f 0; exec "$@"', "bash"]
    subprocess.run([*every_write_fails, sys.executable, "-c", text, str(run.path)], check=True, timeout=30)
    with pytest.raises(Superseded, match="nobody owns this run"):
        check_ownership(run, owner.token)


def test_a_record_that_is_missing_or_damaged_ends_nobody(run: RunDir) -> None:
    watch = watch_of(run)
    assert watch.look(time.monotonic()) == ""
    run.owner.write_text("{")
    with pytest.raises(StorageError):
        read_ownership(run)
    assert watch.look(time.monotonic()) == ""
    write_json(run.owner, {"attempt": 3, "token": "a"})
    assert "attempt 3" in watch.look(time.monotonic())


def test_a_rank_that_is_no_leader_looks_only_when_it_must(run: RunDir) -> None:
    take_ownership(run)
    take_ownership(run)
    watch = OwnerWatch(run.attempt(0), is_leader=False, period_s=0.0)
    assert watch.look(time.monotonic()) == ""
    assert watch.look_at_once() and watch.look(time.monotonic())
