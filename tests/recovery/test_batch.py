"""`begin` and `decide` as the batch script calls them: one line of words, and a clean error for anything else."""

from __future__ import annotations

import concurrent.futures
import json
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from hpc_train.errors import Superseded
from hpc_train.files import write_json
from hpc_train.recovery.evidence import read_decision
from hpc_train.run.jobs import read_jobs
from hpc_train.run.journal import Journal, read_journal
from hpc_train.run.layout import RunDir
from hpc_train.run.marks import write_mark
from hpc_train.run.ownership import read_ownership, take_ownership
from tests.run.records import finish, make_run, mark, start_attempt
from tests.scheduler.making import write_program

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


def test_a_directory_that_is_gone_is_not_taken_for_a_full_disk(run: RunDir) -> None:
    # The shell holds the job until there is space where the code is 73.
    run.path.joinpath(".owner.lock").mkdir()
    done = begin(run)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (74, "", 1 + str(run.path).count("\n"))
    assert ".owner.lock" in done.stderr


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


def test_decide_prints_word_code_and_list_and_one_sentence(run: RunDir) -> None:
    attempt = start_attempt(run, NODES)
    write_mark(attempt, mark("hang", 3, code=76, cause="stuck 9 s in load"))
    done = decide(run, 143)
    assert done.stdout == "again-elsewhere 76 - 0\n"  # no job of Slurm's, so no list
    assert done.stderr.startswith("hpc-train: attempt 0: hang: rank 3 on n1 at step 3: stuck 9 s in load; starts again")
    assert done.stderr.count("\n") == 1


def test_decide_tells_how_long_the_next_attempt_waits_after_a_failure(tmp_path: Path) -> None:
    run = make_run(tmp_path / "r", backoff_s=0.2)  # whole seconds for Slurm
    write_mark(start_attempt(run, NODES), mark("crash", 3, code=139))
    assert decide(run, 143).stdout == "again 139 - 1\n"
    write_mark(start_attempt(run, NODES), mark("stopped", 3, code=75))
    assert decide(run, 75, attempt=1).stdout == "again 75 - 0\n"


def test_decide_knows_that_the_scheduler_ended_the_attempt(run: RunDir) -> None:
    attempt = start_attempt(run, NODES)
    for rank in NODES:
        write_mark(attempt, mark("terminated", rank, code=143))
    done = decide(run, 143, "--terminated")
    assert done.stdout == "stop 143 - 0\n"
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
    assert (done.stdout, done.returncode) == ("", 74)
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
        SLURM_JOB_ID="77", HPC_TRAIN_QUEUE_SAYS="COMPLETING          0           N/A                     None",
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
    says = {
        "SLURM_JOB_ID": "77",
        "HPC_TRAIN_QUEUE_SAYS": "COMPLETING          1           N/A                     None",
    }
    done = call("decide", run, "--submission", "0", "--attempt", "0", "--code", "143", "--terminated", **says)
    assert done.stdout == "leave 143 - 0\n"
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


def add_submission(run: RunDir, number: int, **launch: object) -> None:
    """A further submission, as `resume` writes it before the scheduler is asked."""
    run.submission(number).path.mkdir()
    record = json.loads(run.submission(0).launch.read_text())
    write_json(run.submission(number).launch, {**record, **launch})


@pytest.mark.parametrize("ended", ["no attempt", "an attempt that nobody decided", "a held one", "a done one"])
def test_a_stale_job_of_an_older_submission_starts_and_decides_nothing(run: RunDir, ended: str) -> None:
    if ended != "no attempt":
        attempt = start_attempt(run, NODES)
        if ended == "a held one":
            write_mark(attempt, mark("no_space", 1, code=73))
        if ended == "a done one":
            attempt.done.touch()
    add_submission(run, 1)
    Journal(run, "login").append("resume_asked", after_attempt=len(run.attempts()) - 1)
    done = begin(run, SLURM_JOB_ID="77")
    assert (done.stdout, done.returncode) == ("stop 0\n", 0)
    assert "this job is of submission 0, and submission 1 goes on" in done.stderr
    assert len(run.attempts()) == (ended != "no attempt")
    assert all(read_decision(attempt) is None for attempt in run.attempts())
    # the new one goes on, whatever came before
    number = int(ended != "no attempt")
    assert call("begin", run, "--submission", "1").stdout.startswith(f"go {number} ")


def test_an_older_job_leaves_the_running_attempt_of_the_newer_one_alone(run: RunDir) -> None:
    add_submission(run, 1)
    assert call("begin", run, "--submission", "1").stdout.startswith("go 0 ")
    owner = read_ownership(run)
    assert begin(run).stdout == "stop 0\n"
    assert read_ownership(run) == owner
    assert read_decision(run.attempt(0)) is None


def test_a_submission_in_the_making_or_withdrawn_fences_nobody_off(run: RunDir) -> None:
    run.submission(1).path.mkdir()
    assert begin(run).stdout.startswith("go 0 ")


def test_the_shell_of_an_older_submission_asks_for_no_requeue(run: RunDir) -> None:
    # It was taken for lost: its job was no longer listed, and the run was resumed without it.
    attempt = start_attempt(run, NODES)
    Journal(run, "rank0", 0).append("commit", step=3)
    for rank in NODES:
        write_mark(attempt, mark("stopped", rank, code=75))
    add_submission(run, 1)
    assert decide(run, 75).stdout == "leave 75 - 0\n"


def test_a_submission_that_comes_while_the_older_job_begins_wins(run: RunDir) -> None:
    # The instant between the look at the submissions and the number of the attempt.
    add_submission(run, 1)
    with pytest.raises(Superseded, match="submission 1 goes on"):
        take_ownership(run, 0)
    assert run.attempts() == []
    assert take_ownership(run, 1).attempt == 0


def test_an_attempt_is_judged_by_the_ranks_of_its_own_submission(run: RunDir) -> None:
    # Half of its ranks had ended when its node died; that is as many as the new submission has in all.
    attempt = start_attempt(run, NODES)
    write_json(attempt.started, {"submission": 0})
    finish(attempt, 0, 1)
    add_submission(run, 1, num_ranks=2, ranks_per_node=1)
    Journal(run, "login").append("resume_asked", after_attempt=0)
    assert call("begin", run, "--submission", "1").stdout.startswith("go 1 ")
    decision = read_decision(attempt)
    assert decision is not None and decision.failure == "node_fail"
    assert not attempt.done.exists()


@pytest.mark.parametrize("event", ["requeue_asked", "resume_asked"])
def test_the_budget_of_failures_and_attempts_starts_afresh_when_a_person_asks(run: RunDir, event: str) -> None:
    launch = json.loads(run.submission(0).launch.read_text())
    write_json(run.submission(0).launch, {**launch, "max_attempts": 2, "max_failures": 2})
    words = []
    for number in range(4):
        attempt = start_attempt(run, NODES)
        for rank in NODES:
            write_mark(attempt, mark("peer_lost", rank, code=76))
        words.append(decide(run, 76, attempt=number).stdout.split()[0])
        if words[-1] == "hold":
            Journal(run, "login").append(event, after_attempt=number)
    assert words == ["again", "hold", "again", "hold"]


def test_in_every_order_of_two_submissions_the_newer_one_owns_the_run_in_the_end(tmp_path: Path) -> None:
    # Jobs of the old submission begin before, while and after the new one is written; its own begins once it is.
    for round_number in range(4):
        run = make_run(tmp_path / f"run-{round_number}")
        launch = json.loads(run.submission(0).launch.read_text())
        write_json(run.submission(0).launch, {**launch, "max_failures": 9})  # old attempts that nobody ran hold nothing
        pause_s = 0.05 * round_number

        def old(number: int, run: RunDir = run, pause_s: float = pause_s) -> None:
            time.sleep(pause_s * number)
            begin(run)

        def new(run: RunDir = run) -> None:
            time.sleep(0.1)
            add_submission(run, 1)
            call("begin", run, "--submission", "1")

        with concurrent.futures.ThreadPoolExecutor(5) as pool:
            list(pool.map(lambda act: act(), [new, *(partial(old, number) for number in range(4))]))
        started = [json.loads(attempt.started.read_text())["submission"] for attempt in run.attempts()]
        assert started == sorted(started) and started.count(1) == 1, "no old job took a number after the new one"
        owner = read_ownership(run)
        assert owner is not None and owner.attempt == len(started) - 1
        assert read_decision(run.attempt(owner.attempt)) is None, "no old job decided the attempt that runs"


def slurm_that_says(directory: Path, state: str) -> str:
    """PATH with a Slurm whose controller says this of every job, and whose accounting knows nothing."""
    write_program(directory, "scontrol", f'[ "$*" = "--oneliner show job 77" ] && echo "JobId=77 JobState={state}"')
    write_program(directory, "sacct", "exit 1")
    return f"{directory}:/usr/bin:/bin"


@pytest.mark.parametrize(
    ("state", "answer", "failure"),
    [
        ("CANCELLED", "stop 0\n", "cancelled"),  # by a person: nothing comes after it
        ("PREEMPTED", "go 1 ", "preempted"),
        ("NODE_FAIL", "go 1 ", "node_fail"),
        ("TIMEOUT", "stop 143\n", "timeout"),  # without a checkpoint, as where the shell had decided
        ("FAILED", "go 1 ", "node_fail"),
    ],
)
def test_a_successor_asks_how_the_job_before_it_ended_where_no_shell_had_decided(
    run: RunDir, tmp_path: Path, state: str, answer: str, failure: str
) -> None:
    path = slurm_that_says(tmp_path / "bin", state)
    assert begin(run, SLURM_JOB_ID="77", PATH=path).stdout.startswith("go 0 ")
    for rank, node in NODES.items():
        (run.attempt(0).ready / str(rank)).write_text(node)
    done = begin(run, SLURM_JOB_ID="78", PATH=path)
    assert done.stdout.startswith(answer), done.stderr
    decision = read_decision(run.attempt(0))
    assert decision is not None and decision.failure == failure


def test_a_successor_does_not_go_on_where_its_own_shell_had_decided_to_stop(run: RunDir) -> None:
    # Withdrawn, but Slurm did not hear of it. The same job started again would be somebody's wish.
    assert begin(run, SLURM_JOB_ID="77").stdout.startswith("go 0 ")
    assert decide(run, 143, "--terminated").stdout.startswith("stop 143")
    assert begin(run, SLURM_JOB_ID="78").stdout == "stop 143\n"
    assert begin(run, SLURM_JOB_ID="77", SLURM_RESTART_COUNT="1").stdout.startswith("go 1 ")


def test_a_job_that_nobody_recorded_tells_of_itself(run: RunDir) -> None:
    begin(run, SLURM_JOB_ID="78")
    begin(run, SLURM_JOB_ID="78")
    assert [job.job_id for job in read_jobs(run)] == ["78"]
