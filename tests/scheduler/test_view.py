"""A run's state out of what its scheduler and its own directory say."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from hpc_train.errors import SchedulerError
from hpc_train.run.jobs import record_job, record_withdrawn
from hpc_train.run.journal import Journal
from hpc_train.run.layout import RunDir
from hpc_train.scheduler.backend import STATES
from hpc_train.scheduler.view import view_run, view_runs
from tests.scheduler.making import bare_environment, make_attempt, make_run, note_submitted, write_program


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of stand-ins: squeue lists the file `queue` beside it, accounting knows nothing."""
    bin_dir = tmp_path / "bin"
    write_program(bin_dir, "squeue", 'echo call >>"${0%/*}/calls"; cat "${0%/*}/queue"')
    write_program(bin_dir, "sacct", "exit 0")
    (bin_dir / "queue").touch()
    for name, value in bare_environment(bin_dir).items():
        monkeypatch.setenv(name, value)
    return bin_dir


def state_of(slurm: Path, tmp_path: Path, listed: str, decision: dict[str, Any], *, cancelled: bool = False) -> str:
    run = make_run(tmp_path / "r")
    note_submitted(run.submission(0), "7")
    make_attempt(run, **decision)
    if cancelled:
        run.cancelled.touch()
    (slurm / "queue").write_text(f"7|{listed}\n" if listed else "")
    return view_run(run).state


@pytest.mark.parametrize(
    ("listed", "decision", "state"),
    [
        # while the scheduler has work to do with it, its word counts
        ("PENDING||Priority", {}, "pending"),
        ("PENDING||BeginTime", {"word": "again"}, "pending"),
        ("RUNNING|n1|None", {}, "running"),
        ("RUNNING|n1|None", {"word": "stop"}, "running"),
        ("COMPLETING|n1|None", {}, "completing"),
        ("COMPLETING|n1|None", {"word": "again"}, "completing"),
        # the decision is taken: the rest is the scheduler's cleaning up
        ("COMPLETING|n1|None", {"word": "done", "failure": "done"}, "completed"),
        ("COMPLETING|n1|None", {"word": "stop"}, "failed"),
        ("COMPLETED|n1|None", {"word": "done", "failure": "done"}, "completed"),
        # code 0 without the program's own word is no success
        ("COMPLETED|n1|None", {}, "unknown"),
        ("COMPLETED|n1|None", {"word": "stop"}, "failed"),
        ("COMPLETED|n1|None", {"word": "hold", "failure": "no_space"}, "held"),
        ("COMPLETED|n1|None", {"word": "again"}, "held"),
        # every end with a code is "failed" to a scheduler
        ("FAILED|n1|NonZeroExitCode", {"word": "stop", "failure": "timeout"}, "timeout"),
        ("FAILED|n1|NonZeroExitCode", {"word": "stop", "failure": "node_fail"}, "node_fail"),
        ("FAILED|n1|NonZeroExitCode", {"word": "stop", "failure": "data"}, "failed"),
        ("FAILED|n1|NonZeroExitCode", {"word": "hold"}, "held"),
        ("FAILED|n1|NonZeroExitCode", {"word": "again"}, "failed"),
        ("FAILED|n1|NonZeroExitCode", {}, "failed"),
        ("TIMEOUT|n1|TimeLimit", {}, "timeout"),
        ("OUT_OF_MEMORY|n1|OutOfMemory", {"word": "stop", "failure": "killed"}, "out_of_memory"),
        ("NODE_FAIL|n1|None", {}, "node_fail"),
        ("PREEMPTED|n1|None", {}, "preempted"),
        ("CANCELLED by 501|n1|None", {}, "cancelled"),
        ("CANCELLED|n1|None", {"word": "done", "failure": "done"}, "completed"),
        ("PENDING||JobHeldUser", {"word": "hold"}, "held"),
        ("PENDING||launch failed requeued held", {}, "held"),
        # purged, and no accounting: the run still knows how it ended
        ("", {"word": "done", "failure": "done"}, "completed"),
        ("", {"word": "stop"}, "failed"),
        ("", {"word": "hold"}, "held"),
        ("", {"word": "again"}, "unknown"),
        ("", {}, "unknown"),
    ],
)
def test_a_state_is_the_schedulers_until_the_run_knows_better(
    slurm: Path, tmp_path: Path, listed: str, decision: dict[str, Any], state: str
) -> None:
    assert state in STATES
    assert state_of(slurm, tmp_path, listed, decision) == state


@pytest.mark.parametrize(
    ("listed", "decision", "state"),
    [
        ("", {}, "cancelled"),
        ("COMPLETED|n1|None", {"word": "stop"}, "cancelled"),
        ("RUNNING|n1|None", {}, "running"),  # not yet
        ("PENDING||JobHeldUser", {"word": "hold"}, "cancelled"),
        ("COMPLETED|n1|None", {"word": "done", "failure": "done"}, "completed"),  # the mark came too late
    ],
)
def test_a_cancelled_run_is_cancelled_once_nothing_of_it_lives(
    slurm: Path, tmp_path: Path, listed: str, decision: dict[str, Any], state: str
) -> None:
    assert state_of(slurm, tmp_path, listed, decision, cancelled=True) == state


def test_the_reason_is_the_runs_own_once_it_has_ended(slurm: Path, tmp_path: Path) -> None:
    run = make_run(tmp_path / "r")
    note_submitted(run.submission(0), "7")
    make_attempt(run, reason="KeyError in train.py")
    (slurm / "queue").write_text("7|FAILED|n1|NonZeroExitCode\n")
    assert view_run(run).reason == "KeyError in train.py"
    (slurm / "queue").write_text("7|PENDING||Priority\n")
    assert view_run(run).reason == "Priority"


def test_a_run_cancelled_between_two_attempts_does_not_say_that_it_goes_on(slurm: Path, tmp_path: Path) -> None:
    run = make_run(tmp_path / "r")
    note_submitted(run.submission(0), "7")
    make_attempt(run, word="again", reason="ended by SIGKILL; starts again")
    (slurm / "queue").write_text("7|CANCELLED|n1|BeginTime\n")
    assert view_run(run).reason == "cancelled while it waited to start again"


@pytest.mark.parametrize(
    ("recorded", "cause"),
    [({"cause": "ended by SIGKILL"}, "ended by SIGKILL"), ({}, "killed")],  # the second: of before causes were kept
)
def test_a_run_whose_next_start_failed_does_not_say_that_it_goes_on(
    slurm: Path, tmp_path: Path, recorded: dict[str, Any], cause: str
) -> None:
    run = make_run(tmp_path / "r")
    note_submitted(run.submission(0), "7")
    make_attempt(
        run, word="again", failure="killed", reason="ended by SIGKILL; starts again (1 of at most 3)", **recorded
    )
    (slurm / "queue").write_text("7|FAILED|n1|NonZeroExitCode\n")
    assert view_run(run).reason == f"{cause}; it did not start again; to go on: hpc-train requeue r"


def test_many_runs_are_one_query(slurm: Path, tmp_path: Path) -> None:
    runs = [make_run(tmp_path / f"r{number}") for number in range(5)]
    for number, run in enumerate(runs):
        note_submitted(run.submission(0), str(number))
    (slurm / "queue").write_text("".join(f"{number}|RUNNING|n1|None\n" for number in range(5)))
    assert [view.state for view in view_runs(runs)] == ["running"] * 5
    assert (slurm / "calls").read_text() == "call\n"


def test_of_several_submissions_the_newest_that_was_taken_counts(slurm: Path, tmp_path: Path) -> None:
    run = make_run(tmp_path / "r")
    note_submitted(run.submission(0), "7")
    run.submission(1).path.mkdir()
    note_submitted(run.submission(1), "8", site="other")
    run.submission(2).path.mkdir()  # withdrawn
    view = view_run(run)
    assert (view.job_id, view.site) == ("8", "other")


@pytest.mark.parametrize(
    ("earlier", "later", "job_id", "state"),
    [
        ("RUNNING|n1|None", "PENDING||Dependency", "7", "running"),
        ("COMPLETING|n1|None", "PENDING||Dependency", "7", "completing"),
        ("COMPLETED|n1|None", "PENDING||Priority", "8", "pending"),
        ("NODE_FAIL|n1|NodeDown", "RUNNING|n2|None", "8", "running"),
        ("COMPLETED|n1|None", "PENDING||JobHeldUser", "8", "held"),
        ("RUNNING|n1|None", "CANCELLED by 501||None", "7", "running"),
        ("COMPLETED|n1|None", "CANCELLED by 501||None", "8", "cancelled"),
    ],
)
def test_of_a_job_and_its_successor_the_one_that_tells_counts(
    slurm: Path, tmp_path: Path, *, earlier: str, later: str, job_id: str, state: str
) -> None:
    run = make_run(tmp_path / "r")
    note_submitted(run.submission(0), "7")
    record_job(run.submission(0), "8", attempt=0)
    (slurm / "queue").write_text(f"7|{earlier}\n8|{later}\n")
    view = view_run(run)
    assert (view.job_id, view.state) == (job_id, state)
    assert view_runs([run])[0].job_id == job_id


def test_a_successor_that_was_not_needed_says_nothing(slurm: Path, tmp_path: Path) -> None:
    run = make_run(tmp_path / "r")
    note_submitted(run.submission(0), "7")
    make_attempt(run, word="done", failure="done")
    record_job(run.submission(0), "8", attempt=0)
    record_withdrawn(run.submission(0), "8")
    (slurm / "queue").write_text("7|COMPLETED|n1|None\n8|CANCELLED by 501||None\n")
    assert (view_run(run).job_id, view_run(run).state) == ("7", "completed")


def test_a_run_that_was_never_submitted_is_unknown_with_the_reason(tmp_path: Path) -> None:
    view = view_run(make_run(tmp_path / "r"))
    assert (view.state, view.reason, view.job_id) == ("unknown", "not submitted: no scheduler has taken it", "")


def test_a_scheduler_that_does_not_answer_is_unknown_to_who_reads_and_an_error_to_who_acts(
    slurm: Path, tmp_path: Path
) -> None:
    write_program(slurm, "squeue", "echo 'Unable to contact slurm controller' >&2; exit 1")
    run = make_run(tmp_path / "r")
    note_submitted(run.submission(0), "7")
    assert view_runs([run])[0].state == "unknown"
    assert "Unable to contact" in view_runs([run])[0].reason
    with pytest.raises(SchedulerError):
        view_run(run)


@pytest.mark.parametrize("damage", ["run.json", "submit.json", "decision", "scheduler", "journal"])
def test_a_damaged_record_hides_no_other_run(slurm: Path, tmp_path: Path, damage: str) -> None:
    sound, run = make_run(tmp_path / "sound"), make_run(tmp_path / "r")
    for each in (sound, run):
        note_submitted(each.submission(0), "7")
    attempt = make_attempt(run, word="stop")
    if damage == "scheduler":
        note_submitted(run.submission(0), "7", scheduler="fax")
    elif damage == "journal":
        shutil.rmtree(run.journal)
        run.journal.mkdir()
        (run.journal / "login.jsonl").mkdir()
    else:
        path = {"run.json": run.record, "submit.json": run.submission(0).submit, "decision": attempt.decision}[damage]
        path.write_text("{")
    (slurm / "queue").write_text("7|RUNNING|n1|None\n")
    views = view_runs([sound, run])
    assert views[0].state == "running"
    assert views[1].state in ("running", "unknown", "failed")


def journal_of(run: RunDir) -> Journal:
    return Journal(run, "rank0", 0)


def test_progress_comes_from_the_journal(slurm: Path, tmp_path: Path) -> None:
    run = make_run(tmp_path / "r")
    make_attempt(run)
    journal = journal_of(run)
    journal.append("progress", total_steps=100)
    journal.append("step", step=40, loss=1.5)
    journal.append("commit", step=40, path="x")
    journal.append("step", step=50, loss=1.25)
    view = view_run(run)
    assert (view.step, view.total_steps, view.loss, view.last_commit) == (50, 100, 1.25, 40)


def test_a_loss_that_is_no_number_is_null_in_json(slurm: Path, tmp_path: Path) -> None:
    run = make_run(tmp_path / "r", job_name="it's")
    journal_of(run).append("step", step=1, loss=float("nan"))
    record = view_run(run).to_json()
    assert json.loads(json.dumps(record, allow_nan=False))["loss"] is None
    assert (record["run"], record["name"], record["run_dir"]) == ("r", "it's", str(run.path))


@pytest.mark.parametrize("value", ["7", None, [], True, {"a": 1}])
def test_a_strange_value_in_the_journal_is_no_step(slurm: Path, tmp_path: Path, value: Any) -> None:
    run = make_run(tmp_path / "r")
    journal_of(run).append("step", step=value, loss=value)
    view = view_run(run)
    assert view.step is None


@pytest.mark.parametrize(
    ("listed", "state", "reason"),
    [
        ("PENDING||Priority", "pending", "Priority"),
        # the job of the new submission ended before it could start an attempt: that is not the old success
        ("FAILED|n1|NonZeroExitCode", "failed", "NonZeroExitCode"),
        ("COMPLETED|n1|None", "unknown", ""),
        ("", "unknown", "neither squeue nor sacct lists it"),
    ],
)
def test_a_resumed_run_is_what_its_new_submission_became(
    slurm: Path, tmp_path: Path, listed: str, state: str, reason: str
) -> None:
    run = make_run(tmp_path / "r")
    note_submitted(run.submission(0), "7")
    attempt = make_attempt(run, word="done", failure="done", reason="all ranks ended cleanly")
    attempt.started.write_text(json.dumps({"submission": 0}))
    run.submission(1).path.mkdir()
    note_submitted(run.submission(1), "8")
    (slurm / "queue").write_text(f"7|COMPLETED|n1|None\n8|{listed}\n" if listed else "")
    view = view_run(run)
    assert (view.job_id, view.state, view.reason) == ("8", state, reason)
    attempt = make_attempt(run, 1, word="done", failure="done")
    attempt.started.write_text(json.dumps({"submission": 1}))
    (slurm / "queue").write_text("8|COMPLETED|n1|None\n")
    assert view_run(run).state == "completed"


@pytest.mark.parametrize(
    ("listed", "decision", "before"),
    [
        ("FAILED|n1|None", {"reason": "KeyError"}, "failed"),
        ("", {"reason": "KeyError"}, "failed"),
        ("TIMEOUT|n1|None", {"failure": "timeout", "reason": "too late"}, "timeout"),
        ("CANCELLED|n1|None", {"word": "hold", "reason": "no space"}, "held"),
        ("CANCELLED|n1|None", {"reason": "KeyError"}, "failed"),
        ("OUT_OF_MEMORY|n1|None", {}, "out_of_memory"),
        # the cancel itself ended it
        ("CANCELLED|n1|None", {"failure": "cancelled", "reason": "cancelled by its user"}, ""),
        ("CANCELLED by 501|n1|None", {}, ""),
        ("CANCELLED|n1|None", {"word": "again", "reason": "goes on"}, ""),
    ],
)
def test_a_cancel_does_not_hide_how_a_run_had_ended(
    slurm: Path, tmp_path: Path, listed: str, decision: dict[str, Any], before: str
) -> None:
    assert state_of(slurm, tmp_path, listed, decision, cancelled=True) == "cancelled"
    view = view_run(RunDir(tmp_path / "r"))
    assert view.ended_before_cancel == before
    assert view.reason.startswith(f"{before}, then cancelled") == bool(before)
    assert view.state_shown == (f"{before}, then cancelled" if before else "cancelled")
    if before and decision:
        assert view.reason == f"{before}, then cancelled: {decision['reason']}"


def test_checkpoints_are_told_of_where_the_journal_is_gone(slurm: Path, tmp_path: Path) -> None:
    run = make_run(tmp_path / "r")
    note_submitted(run.submission(0), "7")
    aside = ".deleting-step-000000040-0123abcd"
    for name in ("step-000000006", "step-000000012", "step-000000030", aside):
        (run.checkpoints / name).mkdir(parents=True)
        if name != "step-000000030":  # never committed
            (run.checkpoints / name / "COMMIT").touch()
    view = view_run(run)
    assert view.last_commit == 12 and view.age_s(view.standing.commit_time) is not None
    Journal(run, "rank0", 0).append("commit", step=6, path="elsewhere")
    assert view_run(run).last_commit == 6  # what the journal says counts


@pytest.mark.parametrize(
    ("listed", "reason"),
    [
        ("COMPLETED|n1|None", "the batch script ended with code 0 before any attempt had begun; see: hpc-train why r"),
        ("FAILED|n1|NonZeroExitCode", "the batch script ended before any attempt had begun; see: hpc-train why r"),
    ],
)
def test_a_batch_script_that_ended_before_any_attempt_is_said_to_have_failed(
    slurm: Path, tmp_path: Path, listed: str, reason: str
) -> None:
    run = make_run(tmp_path / "r")
    note_submitted(run.submission(0), "7")
    run.submission(0).batch_log.touch()
    (slurm / "queue").write_text(f"7|{listed}\n")
    view = view_run(run)
    assert (view.state, view.reason) == ("failed", reason)
    make_attempt(run)  # it did begin
    assert "before any attempt" not in view_run(run).reason


def test_an_attempt_of_an_earlier_submission_is_none_of_a_later_batch_script(slurm: Path, tmp_path: Path) -> None:
    run = make_run(tmp_path / "r")
    note_submitted(run.submission(0), "7")
    make_attempt(run)
    run.submission(1).path.mkdir()
    note_submitted(run.submission(1), "8")
    run.submission(1).batch_log.touch()
    (slurm / "queue").write_text("8|COMPLETED|n1|None\n")
    assert view_run(run).reason.startswith("the batch script ended with code 0 before any attempt had begun")
