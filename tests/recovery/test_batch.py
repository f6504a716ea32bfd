"""`begin` and `decide` as the batch script calls them: one line of words, and a clean error for anything else."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpc_train.files import write_json
from hpc_train.recovery.evidence import read_decision
from hpc_train.run.journal import Journal, read_journal
from hpc_train.run.layout import RunDir
from hpc_train.run.marks import write_mark
from hpc_train.run.ownership import read_ownership
from tests.run.records import finish, make_run, mark, start_attempt

NODES = {0: "n0", 1: "n0", 2: "n1", 3: "n1"}


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return make_run(tmp_path / "run with 'quotes' and\nnewline")


def call(command: str, run: RunDir, *arguments: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """One of the two commands."""
    argv = [sys.executable, "-m", "hpc_train", command, str(run.path), *arguments]
    root = str(Path(__file__).parents[2])
    environment = {**os.environ, "PYTHONPATH": root, **environ}
    return subprocess.run(argv, env=environment, cwd="/", capture_output=True, text=True, timeout=60)


def begin(run: RunDir, **environ: str) -> subprocess.CompletedProcess[str]:
    return call("begin", run, "--submission", "0", **environ)


def decide(run: RunDir, code: int, *more: str, attempt: int = 0) -> subprocess.CompletedProcess[str]:
    return call("decide", run, "--submission", "0", "--attempt", str(attempt), "--code", str(code), *more)


def test_begin_gives_number_and_token_and_notes_where_it_started(run: RunDir) -> None:
    done = begin(run, SLURM_JOB_ID="77", SLURM_RESTART_COUNT="2", SLURM_JOB_NODELIST="n[0-1]")
    owner = read_ownership(run)
    assert owner is not None
    assert (done.stdout, done.returncode) == (f"go 0 {owner.token}\n", 0)
    (event,) = read_journal(run)
    assert (event.event, event.fields["job_id"], event.fields["nodes"]) == ("attempt_started", "77", "n[0-1]")


def test_begin_decides_the_attempt_before_where_no_shell_lived_to_do_so(run: RunDir) -> None:
    attempt = start_attempt(run, NODES)
    done = begin(run)
    decision = read_decision(attempt)
    assert decision is not None
    assert (decision.failure, decision.word) == ("node_fail", "again")
    assert done.stdout.startswith("go 1 ")


def test_begin_stops_where_the_run_was_cancelled(run: RunDir) -> None:
    start_attempt(run, NODES)
    run.cancelled.touch()
    assert begin(run).stdout == "stop 0\n"
    assert len(run.attempts()) == 1


@pytest.mark.parametrize(
    ("failure", "answer"),
    [("no_space", "hold 73\n"), ("config", "stop 78\n"), ("program", "stop 1\n")],
)
def test_begin_does_not_start_again_what_was_held_or_stopped(run: RunDir, failure: str, answer: str) -> None:
    attempt = start_attempt(run, NODES)
    code = {"no_space": 73, "config": 78, "program": 1}[failure]
    write_mark(attempt, mark(failure, 1, code=code))
    done = begin(run)
    assert (done.stdout, done.returncode) == (answer, 0)
    assert "not started again" in done.stderr


def test_begin_starts_what_its_user_asked_to_go_on(run: RunDir) -> None:
    attempt = start_attempt(run, NODES)
    write_mark(attempt, mark("no_space", 1, code=73))
    assert begin(run).stdout == "hold 73\n"
    Journal(run, "login").append("requeue_asked", after_attempt=0)
    assert begin(run).stdout.startswith("go 1 ")


def test_begin_knows_a_finished_run(run: RunDir) -> None:
    finish(start_attempt(run, NODES), *NODES)
    assert begin(run).stdout == "stop 0\n"


def test_decide_prints_word_code_and_nodes_and_one_sentence(run: RunDir) -> None:
    attempt = start_attempt(run, NODES)
    write_mark(attempt, mark("hang", 3, code=76, cause="stuck 9 s in load"))
    done = decide(run, 143)
    assert done.stdout == "again-elsewhere 76 n1\n"
    assert done.stderr.startswith("hpc-train: attempt 0: hang: rank 3 on n1 at step 3: stuck 9 s in load; starts again")
    assert done.stderr.count("\n") == 1


def test_decide_knows_that_the_scheduler_ended_the_attempt(run: RunDir) -> None:
    attempt = start_attempt(run, NODES)
    for rank in NODES:
        write_mark(attempt, mark("terminated", rank, code=143))
    done = decide(run, 143, "--terminated")
    assert done.stdout == "stop 143 -\n"
    assert "ended by the scheduler: time limit, preemption or cancel" in done.stderr


def test_decide_does_not_overwrite_the_reason_that_is_recorded(run: RunDir) -> None:
    attempt = start_attempt(run, NODES)
    write_json(attempt.stop, {"reason": "wall time"})
    write_mark(attempt, mark("terminated", 0, code=143))
    for rank in (1, 2, 3):
        write_mark(attempt, mark("terminated", rank, code=143))
    assert "(wall time)" in decide(run, 143, "--terminated").stderr


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"num_ranks": "many"}', "\x00"])
def test_a_launch_record_that_cannot_be_read_is_a_clean_error(run: RunDir, text: str) -> None:
    start_attempt(run, NODES)
    run.submission(0).launch.write_text(text)
    for done in (decide(run, 1), begin(run)):
        assert (done.stdout, done.returncode) == ("", 74)
        assert done.stderr.startswith("hpc-train ")
        assert "launch.json" in done.stderr
        assert "Traceback" not in done.stderr


def test_a_launch_record_that_is_gone_is_a_clean_error(run: RunDir) -> None:
    start_attempt(run, NODES)
    run.submission(0).launch.unlink()
    done = decide(run, 1)
    assert (done.stdout, done.returncode) == ("", 73)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("arguments", [(), ("--submission",), ("--submission", "x")])
def test_wrong_arguments_are_a_clean_error(run: RunDir, arguments: tuple[str, ...]) -> None:
    done = call("begin", run, *arguments)
    assert (done.stdout, done.returncode) == ("", 74)
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("failure", ["terminated", "stopped"])
def test_a_job_that_was_cancelled_at_the_scheduler_does_not_come_back(run: RunDir, failure: str) -> None:
    attempt = start_attempt(run, NODES)
    Journal(run, "rank0", 0).append("commit", step=3)
    for rank in NODES:
        write_mark(attempt, mark(failure, rank, code=75))
    done = call(
        "decide", run, "--submission", "0", "--attempt", "0", "--code", "143", "--terminated",
        SLURM_JOB_ID="77", HPC_TRAIN_QUEUE_SAYS="COMPLETING          0           None",
    )  # fmt: skip
    assert done.stdout.startswith("stop ")
    decision = read_decision(attempt)
    assert decision is not None and (decision.failure, decision.word) == ("cancelled", "stop")
    # Somebody starts that job by hand after all.
    assert begin(run, SLURM_RESTART_COUNT="1").stdout.startswith("go 1 ")


def test_a_job_that_slurm_requeues_by_itself_is_left_alone(run: RunDir) -> None:
    attempt = start_attempt(run, NODES)
    for rank in NODES:
        write_mark(attempt, mark("terminated", rank, code=143))
    says = {"SLURM_JOB_ID": "77", "HPC_TRAIN_QUEUE_SAYS": "COMPLETING          1           None"}
    done = call("decide", run, "--submission", "0", "--attempt", "0", "--code", "143", "--terminated", **says)
    assert done.stdout == "leave 143 -\n"
    assert "preempted" in done.stderr and "requeued from outside" in done.stderr
    assert begin(run, SLURM_RESTART_COUNT="1").stdout.startswith("go 1 ")


def test_a_shell_that_lives_on_beside_the_next_attempt_leaves_the_job_alone(run: RunDir) -> None:
    start_attempt(run, NODES)
    assert begin(run).stdout.startswith("go 1 ")
    assert decide(run, 143).stdout.startswith("leave ")


def test_begin_starts_again_what_the_scheduler_ended_and_started_again(run: RunDir) -> None:
    # Preempted before a new checkpoint: by itself no reason to go on, but Slurm has requeued the job already.
    start_attempt(run, NODES)
    assert decide(run, 143, "--terminated").stdout.startswith("stop 143")
    assert begin(run, SLURM_RESTART_COUNT="1").stdout.startswith("go 1 ")
