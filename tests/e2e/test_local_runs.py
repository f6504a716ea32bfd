"""Crash, stop and resume on this machine: the run goes on by itself and ends where an undisturbed one ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from hpc_train.launch.processes import find_ranks
from hpc_train.recovery.evidence import read_decision
from hpc_train.run.journal import read_journal
from hpc_train.run.layout import RunDir
from hpc_train.run.marks import read_marks
from hpc_train.scheduler.local.record import read_record
from tests.e2e.conftest import make_local_lab
from tests.e2e.lab import Lab, assert_resumed, assert_same_run, steps_of

STEPS, SAVE_EVERY, PAUSE = 60, 15, 0.05
RANKS = ("--ranks-per-node", "4")


@pytest.fixture(scope="module")
def undisturbed(local_data: Path, tmp_path_factory: pytest.TempPathFactory) -> RunDir:
    """One run of 4 ranks to its end, against which the others are held."""
    lab = make_local_lab(tmp_path_factory.mktemp("undisturbed"))
    run = lab.train(local_data, *RANKS, steps=STEPS, save_every=SAVE_EVERY)
    assert lab.wait_end(run) == "done"
    lab.wait_state(run, "completed")
    return run


def test_a_killed_rank_costs_steps_but_changes_nothing(local_lab: Lab, local_data: Path, undisturbed: RunDir) -> None:
    options = (*RANKS, "--backoff", "1s")
    run = local_lab.train(local_data, *options, steps=STEPS, save_every=SAVE_EVERY, pause=PAUSE)
    local_lab.wait_between_commits(run, after=SAVE_EVERY)
    victim = next(found for found in find_ranks(run.path) if found.rank == 2)
    os.kill(victim.program, signal.SIGKILL)

    assert local_lab.wait_end(run) == "done", local_lab.logs(run)
    assert_resumed(run, attempts=2)
    lineage = assert_same_run(run, undisturbed, local_data)
    assert lineage.num_recomputed > 0
    [first] = [event for event in read_journal(run) if event.event == "decision" and event.attempt == 0]
    assert (first.fields["failure"], first.fields["rank"], first.fields["word"]) == ("killed", 2, "again")


def test_three_wall_time_segments_end_where_one_long_run_ends(
    local_lab: Lab, local_data: Path, undisturbed: RunDir
) -> None:
    # No checkpoint but those that the warnings ask for, and the last. The warning comes as the scheduler sends it, to
    # the batch shell alone, but after so many steps instead of minutes: a busy machine must not change the test.
    run = local_lab.train(local_data, *RANKS, "--backoff", "1s", steps=STEPS, save_every=1000, pause=0.1)
    for number, bound in enumerate((10, 25, 40)):
        local_lab.wait_for(f"step {bound} in attempt {number}", run, partial(has_reached, run, bound, number), 120)
        warn(run)
        local_lab.wait_for("the decision", run, partial(read_decision, run.attempt(number)), 120)

    assert local_lab.wait_end(run) == "done", local_lab.logs(run)
    lineage = assert_same_run(run, undisturbed, local_data)
    assert_resumed(run, attempts=4)
    assert lineage.num_recomputed == 0, "a stop with a save must not cost a step"
    for attempt in run.attempts()[:-1]:
        failures = {mark.failure for mark in read_marks(attempt)}
        assert "stopped" in failures and failures <= {"stopped", "terminated"}
        decision = read_decision(attempt)
        assert decision is not None and (decision.failure, decision.code, decision.word) == ("stopped", 75, "again")


def has_reached(run: RunDir, step: int, attempt: int = 0) -> bool:
    """Whether that attempt has journalled that step, or a later one: the one before may have come farther."""
    events = [event for event in read_journal(run) if event.attempt == attempt]
    return max(steps_of(events, "step"), default=0) >= step


def warn(run: RunDir) -> None:
    """Send the wall-time warning to the batch shell, the one child of the run's supervisor."""
    record = read_record(run.submission(0))
    assert record is not None
    [shell] = Path(f"/proc/{record.pid}/task/{record.pid}/children").read_text().split()
    os.kill(int(shell), signal.SIGUSR2)


def test_the_shipped_example_is_tried_with_plain_python_and_goes_on_where_it_was(
    local_data: Path, tmp_path: Path
) -> None:
    argv = [sys.executable, "-m", "hpc_train.examples.byte_gpt", "--data", str(local_data), "--width", "40"]
    for steps, said in (("2", "1 ranks, from step 0 of 2"), ("3", "1 ranks, from step 2 of 3")):
        done = subprocess.run([*argv, "--steps", steps], cwd=tmp_path, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0 and said in done.stdout, done.stdout + done.stderr
