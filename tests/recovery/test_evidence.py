"""What is gathered from a real run directory, and the word it leads to."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpc_train.recovery.evidence import decide_attempt, gather, read_decision
from hpc_train.recovery.policy import Decision
from hpc_train.run.journal import Journal, read_journal
from hpc_train.run.layout import AttemptDir, RunDir
from hpc_train.run.marks import write_mark
from tests.run.records import finish, make_run, mark, start_attempt

NODES = {0: "n0", 1: "n0", 2: "n1", 3: "n1"}


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return make_run(tmp_path / "run")


def decided(run: RunDir, attempt: AttemptDir, code: int | None = 143) -> Decision:
    """The decision of an attempt that its launcher left with a code."""
    return decide_attempt(run, attempt, submission=0, launcher_code=code)


def test_ranks_without_a_word_mean_a_failed_node(run: RunDir) -> None:
    attempt = start_attempt(run, NODES)
    write_mark(attempt, mark("terminated", 0))
    write_mark(attempt, mark("peer_lost", 1))
    decision = decided(run, attempt)
    assert (decision.word, decision.failure, decision.node) == ("again-elsewhere", "node_fail", "n1")
    assert decision.reason.startswith("rank 2 and 1 more vanished without a word: node n1 failed")


def test_a_mark_that_cannot_be_read_leaves_its_rank_silent(run: RunDir) -> None:
    attempt = start_attempt(run, NODES)
    finish(attempt, 0, 1, 2)
    (attempt.exits / "rank-3.json").write_text("{")
    assert gather(run, attempt, 1, num_ranks=4).silent == [(3, "n1")]
    assert decided(run, attempt, 1).failure == "node_fail"


def test_ranks_that_were_told_to_end_mean_a_time_limit_where_one_is_recorded(run: RunDir) -> None:
    attempt = start_attempt(run, NODES)
    for rank in NODES:
        write_mark(attempt, mark("terminated", rank, step=90))
    attempt.stop.write_text(json.dumps({"reason": "wall time"}))
    decision = decided(run, attempt)
    assert (decision.failure, decision.step, decision.rank) == ("timeout", 90, None)
    assert decision.reason.startswith("ended before it could save (wall time)")


@pytest.mark.parametrize("other", ["killed", "program", "crash", "stopped", "hang"])
def test_a_lost_peer_is_never_blamed_where_there_is_another_cause(run: RunDir, other: str) -> None:
    attempt = start_attempt(run, NODES)
    for rank in (0, 1, 2):
        write_mark(attempt, mark("peer_lost", rank, time=1.0))
    write_mark(attempt, mark(other, 3, time=99.0))
    decision = decided(run, attempt)
    assert (decision.failure, decision.rank, decision.node) == (other, 3, "n1")


def test_a_rank_that_left_past_mpi_is_blamed_for_the_others(run: RunDir) -> None:
    attempt = start_attempt(run, NODES)
    finish(attempt, 2, 3, abrupt=True)
    for rank in (0, 1):
        write_mark(attempt, mark("terminated", rank))
    decision = decided(run, attempt, 1)
    assert (decision.failure, decision.rank, decision.node) == ("program", 2, "n1")


def test_the_rank_that_ended_first_is_blamed_for_those_that_lost_it(run: RunDir) -> None:
    attempt = start_attempt(run, NODES)
    finish(attempt, 2)
    (attempt.finished / "3").write_text('{"node": "n1", "time": 50.0, "abrupt": false}')
    for rank in (0, 1):
        write_mark(attempt, mark("peer_lost", rank))
    decision = decided(run, attempt, 1)
    assert (decision.failure, decision.rank, decision.node) == ("program", 3, "n1")
    assert "rank 3 ended with code 0 while rank 0 still worked with it" in decision.reason


def test_a_run_is_done_once_every_rank_has_finished_even_if_nobody_wrote_done(run: RunDir) -> None:
    attempt = start_attempt(run, NODES)
    finish(attempt, 0, 1, 2, 3)
    assert decided(run, attempt, 1).word == "done"
    assert attempt.done.exists()


def test_a_run_is_not_done_while_one_rank_has_not_finished(run: RunDir) -> None:
    attempt = start_attempt(run, NODES)
    finish(attempt, 0, 1, 2)
    assert decided(run, attempt, 0).word != "done"
    assert not attempt.done.exists()


def test_a_mark_however_damaged_speaks_against_done(run: RunDir) -> None:
    attempt = start_attempt(run, NODES)
    finish(attempt, 0, 1, 2, 3)
    (attempt.exits / "rank-0.json").write_text("")
    assert decided(run, attempt, 0).word != "done"


def test_done_counts_whatever_the_launcher_said(run: RunDir) -> None:
    attempt = start_attempt(run, NODES)
    attempt.done.touch()
    assert decided(run, attempt, 139).word == "done"


def test_deciding_twice_gives_the_first_word_again(run: RunDir) -> None:
    attempt = start_attempt(run, NODES)
    write_mark(attempt, mark("killed", 1))
    first = decided(run, attempt)
    attempt.done.touch()  # a word that came too late
    assert decided(run, attempt, 0) == first
    assert len([event for event in read_journal(run) if event.event == "decision"]) == 1


def test_a_decision_is_read_as_it_was_taken(run: RunDir) -> None:
    attempt = start_attempt(run, NODES)
    write_mark(attempt, mark("hang", 3))
    decision = decided(run, attempt)
    assert decision.exclude == ("n1",)
    assert read_decision(attempt) == decision


NO_WORD = '{"word": "maybe", "failure": "hang", "reason": "", "exclude": []}'


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"word": "again"}', '{"exclude": null}', NO_WORD])
def test_a_damaged_decision_is_none(run: RunDir, text: str) -> None:
    attempt = start_attempt(run, NODES)
    attempt.decision.write_text(text)
    assert read_decision(attempt) is None


def test_progress_is_a_newer_commit_than_the_attempt_started_from(run: RunDir) -> None:
    before = start_attempt(run, NODES)
    Journal(run, "rank0", before.number).append("commit", step=100)
    write_mark(before, mark("crash", 1))
    assert decided(run, before).made_progress
    attempt = start_attempt(run, NODES)
    Journal(run, "rank0", attempt.number).append("commit", step=100)  # saved again, no further
    write_mark(attempt, mark("crash", 1))
    decision = decided(run, attempt)
    assert (decision.made_progress, decision.last_commit) == (False, 100)


def test_commits_of_a_later_attempt_are_no_progress_of_an_earlier(run: RunDir) -> None:
    old, new = start_attempt(run, NODES), start_attempt(run, NODES)
    Journal(run, "rank0", new.number).append("commit", step=7)
    write_mark(old, mark("crash", 1))
    assert not decided(run, old).made_progress


def test_a_users_request_to_go_on_clears_the_past(run: RunDir) -> None:
    words = []
    for cause in ("a", "b", "c"):
        attempt = start_attempt(run, NODES)
        write_mark(attempt, mark("killed", 1, node="", cause=cause))
        words.append(decided(run, attempt).word)
    assert words == ["again", "again", "hold"]
    Journal(run, "login").append("requeue_asked", after_attempt=2)
    attempt = start_attempt(run, NODES)
    write_mark(attempt, mark("killed", 1))
    assert decided(run, attempt).word == "again"


def test_a_stop_record_that_cannot_be_read_is_no_reason(run: RunDir) -> None:
    attempt = start_attempt(run, NODES)
    attempt.stop.write_text('{"reason')
    write_mark(attempt, mark("terminated", 0))
    assert gather(run, attempt, 1).stop_reason == ""


def commits(run: RunDir, attempt: AttemptDir, *steps: int, resumed: int | None = None) -> None:
    """What an attempt's rank 0 tells of where it went on, and of what it saved."""
    journal = Journal(run, "rank0", attempt.number)
    if resumed is not None:
        journal.append("resumed", step=resumed)
    for step in steps:
        journal.append("commit", step=step)


@pytest.mark.parametrize(
    ("attempts", "made_progress", "newest"),
    [
        # went back to an older checkpoint, on purpose or because newer ones are damaged or gone
        ([(None, (50, 100)), (20, (25, 30))], True, 30),
        ([(None, (50, 100)), (20, (25, 30)), (30, (35,))], True, 35),
        ([(None, (50, 100)), (20, (25, 30)), (30, ())], False, 30),
        ([(None, (50, 100)), (20, ())], False, 100),
        ([(None, (25, 30)), (25, (30,))], True, 30),
        # always back to the same step, and no further than before
        ([(None, (50, 100)), (20, (30,)), (20, (30,))], False, 30),
        ([(None, (50, 100)), (20, (30,)), (20, (30, 40))], True, 40),
        # a program that tells nothing of where it goes on may begin anew each time
        ([(None, (5, 10)), (None, (5,))], False, 5),
        ([(None, (5, 10)), (None, (5,)), (None, (5, 10))], False, 10),
        ([(None, (5, 10)), (None, (15,))], True, 15),
    ],
)
def test_progress_is_a_commit_beyond_where_the_attempt_went_on(
    run: RunDir, attempts: list[tuple[int | None, tuple[int, ...]]], made_progress: bool, newest: int
) -> None:
    for resumed, steps in attempts:
        commits(run, start_attempt(run, NODES), *steps, resumed=resumed)
    evidence = gather(run, run.attempts()[-1], 1, num_ranks=4)
    assert (evidence.made_progress, evidence.last_commit) == (made_progress, newest)
