"""`hpc-train begin` where committed checkpoints are gone: purged, removed by hand, or on a disk that is not there."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hpc_train.run.journal import Journal, read_journal
from hpc_train.run.kept import describe_gone, describe_lost, warn_of_loss
from hpc_train.run.layout import RunDir
from hpc_train.run.marks import write_mark
from tests.run.records import make_run, mark, start_attempt

NODES = {0: "n0", 1: "n0", 2: "n1", 3: "n1"}


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return make_run(tmp_path / "run")


def begin(run: RunDir) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "hpc_train", "begin", str(run.path), "--submission", "0"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    return subprocess.run(argv, env=environment, cwd="/", capture_output=True, text=True, timeout=60)


def kill_after_commit(run: RunDir, path: Path) -> None:
    """An attempt that committed a checkpoint and was killed: the next one goes on from it."""
    attempt = start_attempt(run, NODES)
    Journal(run, "rank0", attempt.number).append("commit", step=30, path=str(path))
    write_mark(attempt, mark("killed", 1))


@pytest.mark.parametrize("place", ["absolute", "relative", "moved"])
def test_begin_goes_on_where_a_checkpoint_is_left(run: RunDir, place: str) -> None:
    kept = run.checkpoints / "step-000000030"
    kept.mkdir(parents=True)
    told = {"absolute": kept, "relative": kept.relative_to(run.path), "moved": Path("/gone/r/checkpoints") / kept.name}
    kill_after_commit(run, told[place])
    assert begin(run).stdout.startswith("go 1 ")


def test_begin_does_not_begin_anew_by_itself_where_all_checkpoints_are_gone(run: RunDir) -> None:
    kill_after_commit(run, run.checkpoints / "step-000000030")
    done = begin(run)
    assert (done.returncode, done.stdout) == (0, "hold 74\n")
    assert "of step 30 there is no" in done.stderr and f"without them: hpc-train requeue {run.name}" in done.stderr
    assert f"hpc-train: {run.attempt(0).not_continued.read_text()}\n" in done.stderr
    assert len(run.attempts()) == 1
    Journal(run, "login").append("requeue_asked", after_attempt=0, knew_gone=False)  # for another reason
    assert begin(run).stdout == "hold 74\n"
    Journal(run, "login").append("requeue_asked", after_attempt=0, knew_gone=True)
    done = begin(run)
    assert done.stdout.startswith("go 1 ") and "are gone" in done.stderr


def save(run: RunDir, *steps: int) -> None:
    """Commit checkpoints in the newest attempt."""
    for step in steps:
        path = run.checkpoints / f"step-{step:09d}"
        path.mkdir(parents=True, exist_ok=True)
        Journal(run, "rank0", run.attempts()[-1].number).append("commit", step=step, path=str(path))


def remove(run: RunDir, *steps: int) -> None:
    for step in steps:
        shutil.rmtree(run.checkpoints / f"step-{step:09d}")


def test_begin_tells_that_the_newest_checkpoint_is_gone_and_from_which_it_goes_on(run: RunDir) -> None:
    attempt = start_attempt(run, NODES)
    save(run, 10, 20, 30)
    write_mark(attempt, mark("killed", 1))
    remove(run, 20, 30)
    done = begin(run)
    assert done.stdout.startswith("go 1 ")
    told = f"the newest checkpoint is gone: of step 30 there is no {run.checkpoints}/step-000000030 on "
    assert f"hpc-train: {told}" in done.stderr and "the newest that is left is of step 10; what was done" in done.stderr
    (lost,) = [event for event in read_journal(run) if event.event == "checkpoint_lost"]
    assert (lost.attempt, lost.fields["told"].startswith(told)) == (1, True)


def test_old_ones_that_the_program_removed_are_not_lost(run: RunDir) -> None:
    start_attempt(run, NODES)
    save(run, 10, 20, 30)
    remove(run, 10, 20)
    assert describe_lost(run, read_journal(run)) == describe_gone(run, read_journal(run)) == ""
    # gone back to an older one on purpose: the newer ones were put aside by the save that followed
    save(run, 20)
    remove(run, 30)
    assert warn_of_loss(run, read_journal(run)) == ""


@pytest.mark.parametrize("removed", [[20], [10, 20]])
def test_one_that_was_committed_and_not_journalled_is_not_lost(run: RunDir, removed: list[int]) -> None:
    """A rank was ended right after the rename that commits, and the removal of the one before."""
    start_attempt(run, NODES)
    save(run, 10, 20)
    (run.checkpoints / "step-000000030").mkdir()
    remove(run, *removed)
    assert warn_of_loss(run, read_journal(run)) == ""


@pytest.mark.parametrize(
    ("gone", "left", "is_lost"),
    [
        ("hf/checkpoint-90", "hf/checkpoint-100", False),
        ("hf/checkpoint-90", "hf/checkpoint-80", True),
        ("hf/checkpoint-90", "hf/backup-100", True),
        ("hf/checkpoint-90", "hf/checkpoint", True),
        ("a/epoch=1-step=90.ckpt", "a/epoch=2-step=100.ckpt", False),
        ("a/newest.pt", "a/other.pt", True),
    ],
)
def test_a_newer_one_of_the_same_kind_of_name_counts(run: RunDir, gone: str, left: str, is_lost: bool) -> None:
    attempt = start_attempt(run, NODES)
    Journal(run, "rank0", attempt.number).append("commit", step=90, path=gone)
    (run.path / left).mkdir(parents=True)
    assert ("are gone" in describe_gone(run, read_journal(run))) is is_lost


@pytest.mark.parametrize("kept", [[10], [10, 20], []])
def test_a_person_who_lets_the_run_go_on_hears_what_is_lost(run: RunDir, kept: list[int]) -> None:
    start_attempt(run, NODES)
    save(run, 10, 20, 30)
    remove(run, *{10, 20, 30} - {*kept})
    told = warn_of_loss(run, read_journal(run))
    assert "of step 30 there is no" in told
    end = f"the newest that is left is of step {kept[-1]}, from which it goes on" if kept else "it begins anew"
    assert told.endswith(end)
