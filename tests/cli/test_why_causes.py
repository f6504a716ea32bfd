"""`why` of runs that went on from an older checkpoint, or are held for want of space."""

from __future__ import annotations

import json
import os
import shlex

import pytest

from hpc_train.files import write_json
from hpc_train.run.journal import Journal
from tests.cli.conftest import Shell
from tests.scheduler.making import make_attempt, note_submitted


def test_a_fallback_to_an_older_checkpoint_is_told(shell: Shell) -> None:
    run = shell.make_run("r", "7")
    make_attempt(run, 0, word="again")
    make_attempt(run, 1, word="stop")
    Journal(run, "rank0", 1).append(
        "fallback", step=10, damaged=[30, 20], problem="data-00000.safetensors: CRC-32 \x1b"
    )
    line = next(line for line in shell.ok("why", "r").splitlines() if "loaded step" in line)
    assert line == (
        "attempt 1 loaded step 10, since newer checkpoints are damaged (steps 30, 20): "
        "data-00000.safetensors: CRC-32; see: hpc-train checkpoint verify r"
    )
    (told,) = shell.json("why", "r")["fallbacks"]
    assert (told["attempt"], told["step"], told["damaged"]) == (1, 10, [30, 20])


def test_a_run_held_for_want_of_space_says_where_and_how_much(shell: Shell) -> None:
    run = shell.make_run("r", "7")
    make_attempt(run, 0, word="hold", failure="no_space", reason="NoSpaceError: 12 bytes are missing")
    Journal(run, "rank0", 0).append("commit", step=10, path=str(run.checkpoints / "step-000000010"), bytes=1234567)
    shell.queue("7|FAILED|n1|None")
    text = shell.ok("why", "r")
    free = os.statvfs(run.path)
    assert f"space     {run.path}: " in text and "bytes and " in text and " inodes free; a quota may allow less" in text
    assert f"the last checkpoint took 1,234,567 bytes in {run.checkpoints}; as many must be free" in text
    assert len(shell.json("why", "r")["space"]) == 2 and free.f_bavail


@pytest.mark.parametrize("job", ["7|PENDING||job requeued in held state", "7|COMPLETED|n1|None"])
def test_a_run_that_was_not_continued_says_why(shell: Shell, job: str) -> None:
    attempt = make_attempt(shell.make_run("r", "7"), 0, word="again", reason="killed")
    attempt.not_continued.write_text("not started again: no checkpoint is there; then: hpc-train requeue r")
    shell.queue(job)
    assert shell.json("status", "r")[0]["state"] == "held"
    assert shell.json("status", "r")[0]["reason"] == attempt.not_continued.read_text()
    assert shell.ok("why", "r").splitlines()[-1] == f"next      it is held: {attempt.not_continued.read_text()}"


def test_checkpoints_that_are_gone_are_told(shell: Shell) -> None:
    run = shell.make_run("r", "7")
    make_attempt(run, 0, word="again")
    make_attempt(run, 1, word="stop")
    Journal(run, "rank0", 0).append("commit", step=10, path=str(run.checkpoints / "step-000000010"))
    Journal(run, "batch", 1).append("checkpoint_lost", told="the newest checkpoint is gone: of step 20")
    shell.queue("7|FAILED|n1|None")
    before, now = [line for line in shell.ok("why", "r").splitlines() if line.startswith("note ")]
    assert before == "note      attempt 1 began: the newest checkpoint is gone: of step 20"
    assert now.startswith("note      the checkpoints of this run are gone: of step 10 there is no ")
    (run.checkpoints / "step-000000010").mkdir(parents=True)
    assert now not in shell.ok("why", "r") and before in shell.ok("why", "r")
    assert before.endswith(shell.json("why", "r")["notes"][0])


def test_a_run_that_failed_otherwise_says_nothing_of_space(shell: Shell) -> None:
    make_attempt(shell.make_run("r", "7"), 0, word="stop")
    assert "space" not in shell.ok("why", "r")


def test_damaged_data_are_no_fault_of_the_program(shell: Shell) -> None:
    run = shell.make_run("r", "7")
    said = "/d/books: damaged: shard-1.h5: No such file or directory; restore the shards or pack the dataset again"
    attempt = make_attempt(run, 0, word="stop", failure="data", reason=f"DataError: {said}")
    (attempt.logs / "n1.log").write_text(f"Traceback (most recent call last):\nhpc_train.errors.DataError: {said}\n")
    shell.queue("7|FAILED|n1|None")
    text = shell.ok("why", "r")
    assert "(dataset-damaged)" in text and "advice    you: hpc-train data verify /d/books names every damage" in text
    assert "read the traceback" not in text and "after a repair: hpc-train requeue r" in text


def test_a_decision_s_commands_have_the_run_s_name(shell: Shell) -> None:
    run = shell.make_run("r", "7")
    make_attempt(run, 0, word="stop", failure="data", reason="hpc-train checkpoint verify RUN names what is damaged")
    shell.queue("7|FAILED|n1|None")
    assert "hpc-train checkpoint verify r names" in shell.ok("why", "r")
    assert shell.json("status", "r")[0]["reason"] == "hpc-train checkpoint verify r names what is damaged"


def test_a_long_reason_is_one_short_line_and_whole_in_json(shell: Shell) -> None:
    reason = "CheckpointError: none is whole: " + "/a/long/path/index.json: damaged; " * 30 + "repair it"
    make_attempt(shell.make_run("r", "7"), 0, word="stop", failure="data", reason=reason)
    shell.queue("7|FAILED|n1|None")
    (told,) = [line for line in shell.ok("why", "r").splitlines() if "none is whole" in line]
    assert len(told) < 260 and told.endswith(" … repair it")
    (row,) = shell.ok("status").splitlines()[1:]
    assert row.split("\t")[-1] == told.strip()
    assert shell.json("status")[0]["reason"] == reason
    assert shell.json("why", "r")["attempts"][0]["reason"] == reason


LIMIT = "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-05T10:11:12 DUE TO TIME LIMIT ***\n"


@pytest.mark.parametrize("scheduler", ["slurm", "local"])
def test_a_run_at_its_time_limit_is_told_what_hpc_train_does_and_how_to_ask_for_more(
    shell: Shell, scheduler: str
) -> None:
    run = shell.make_run("r", "7", scheduler=scheduler)
    launch = json.loads(run.submission(0).launch.read_text())
    run.submission(0).launch.write_text(json.dumps({**launch, "walltime_s": 3600}))
    attempt = make_attempt(run, 0, word="stop", failure="timeout", reason="ended before it could save (time limit)")
    attempt.launcher_log.write_text(LIMIT)
    shell.queue("7|TIMEOUT|n1|TimeLimit")
    lines = shell.ok("why", "r").splitlines()
    (advice,) = [line for line in lines if line.startswith("advice")]
    assert "hpc-train asks the program to save before the limit" in advice and "sbatch" not in advice
    assert "more time: hpc-train resume r --walltime 0-02:00:00, or a longer warning" in advice
    assert "one that never saves needs hpc_train.commit after its own save, or Checkpointer and StopRequest" in advice
    if scheduler == "slurm":
        call = "let it call hpc_train.commit after its own save, or use Checkpointer and StopRequest"
        assert f"to save before the limit, and it saved nothing ({call}); with more time: " in lines[-1]
        Journal(run, "rank0", 0).append("commit", step=10, path="x", bytes=1)
        assert "and it saved nothing new; with more time: " in shell.ok("why", "r").splitlines()[-1]
        assert lines[-1].endswith("hpc-train resume r --walltime 0-02:00:00; as it was: hpc-train requeue r")


@pytest.mark.parametrize(
    ("queued", "said"),
    [
        (
            "FAILED||BadConstraints",
            "its job never started: no nodes of this queue can ever fulfil the request (BadConstraints); change the "
            "request: hpc-train resume r OPTIONS; as it was: hpc-train requeue r",
        ),
        ("CANCELLED||DependencyNeverSatisfied", "its job never started: the job that it waits for ended in another"),
        ("FAILED||JobLaunchFailure", "ask the site; then: hpc-train requeue r"),
        (
            "CANCELLED by 501||None",
            "nothing: it was cancelled before it started; to go on after all: hpc-train requeue r",
        ),
        ("CANCELLED by 501||JobHeldUser", "nothing: it was cancelled before it started"),
        ("PENDING||BadConstraints", "then hpc-train cancel r, then: hpc-train resume r OPTIONS"),
        ("PENDING||DependencyNeverSatisfied", "or hpc-train cancel r"),
    ],
)
def test_a_run_whose_job_never_started_is_told_why_and_who_acts(shell: Shell, queued: str, said: str) -> None:
    shell.make_run("r", "7")
    shell.queue(f"7|{queued}")
    out = shell.ok("why", "r")
    assert said in out.splitlines()[-1], out
    assert "program" not in out and "scancel" not in out


@pytest.mark.parametrize(("queued", "how"), [("COMPLETED|n1|None", " with code 0"), ("FAILED|n1|NonZeroExitCode", "")])
def test_a_run_whose_batch_script_ended_before_any_attempt_is_told_where_to_look(
    shell: Shell, queued: str, how: str
) -> None:
    shell.make_run("r", "7").submission(0).batch_log.touch()
    shell.queue(f"7|{queued}")
    assert shell.ok("why", "r").splitlines()[-1] == (
        f"next      the batch script ended{how} before any attempt had begun: see hpc-train logs r --batch; if that "
        "says nothing, a line of [program] setup or of the site's prologue ended it, as `exit` does; after a repair "
        "outside the job file: hpc-train requeue r; after one in it: hpc-train submit"
    )


@pytest.mark.parametrize("command", [["python", "train.py", "--layers", "4"], ["python", "two words.py"]])
def test_after_a_resume_with_another_command_that_of_before_is_told(shell: Shell, command: list[str]) -> None:
    run = shell.make_run("r", "7")
    later = run.submission(1)
    later.path.mkdir()
    for submission, words in ((run.submission(0), command), (later, ["python", "other.py"])):
        record = json.loads(run.submission(0).launch.read_text())
        write_json(submission.launch, {**record, "command": words})
    note_submitted(later, "8", scheduler="slurm", site="slurm")
    attempt = make_attempt(run, 0, word="stop", failure="data", reason="CheckpointError: 'w' has another shape")
    write_json(attempt.started, {"submission": 1})
    shell.queue("8|FAILED|n1|None")
    assert shell.ok("why", "r").splitlines()[-1] == (
        "next      it does not start again by itself; after a repair: hpc-train requeue r; with the command of before: "
        f"hpc-train resume r -- {shlex.join(command)}"
    )


NOT_THERE = "the program could not be started: FileNotFoundError: [Errno 2] No such file or directory: "


@pytest.mark.parametrize(
    ("failure", "reason", "is_of_command"),
    [
        ("usage", "the program ended with code 2; no new checkpoint", True),
        ("config", f"{NOT_THERE}'true'; correct the job file or the program's configuration", True),
        ("config", f"{NOT_THERE}'/gone/directory'; correct the job file", False),  # to be made again
        ("config", "ConfigError: no such key", False),
        ("data", "DataError: damaged", False),
    ],
)
def test_a_wrong_command_is_not_repeated(shell: Shell, failure: str, reason: str, is_of_command: bool) -> None:
    run = shell.make_run("r", "7")
    make_attempt(run, 0, word="stop", failure=failure, reason=reason)
    shell.queue("7|FAILED|n1|None")
    wrong = "with the command put right: hpc-train resume r -- COMMAND; if the fault was elsewhere, after its repair: "
    said = shell.json("why", "r")["next"]
    assert (wrong in said, "; after a repair: hpc-train requeue r" in said) == (is_of_command, not is_of_command)
    shell.ok("cancel", "r")
    assert (wrong in shell.json("why", "r")["next"]) == is_of_command


def test_options_that_the_program_does_not_take_are_advised_with_resume(shell: Shell) -> None:
    attempt = make_attempt(shell.make_run("r", "7"), 0, word="stop", failure="usage", reason="code 2")
    attempt.logs.joinpath("n1.log").write_text("train.py: error: unrecognized arguments: --rl 3\n")
    shell.queue("7|FAILED|n1|None")
    told = shell.json("why", "r")["diagnosis"]
    assert told["pattern"] == "bad-arguments" and told["next"].endswith(": hpc-train resume r -- COMMAND")


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("again", "its attempt has ended; it starts again by itself"),
        ("done", "nothing: it is complete, and its job is about to end"),
        ("hold", "its attempt has ended, and it is about to be held until you ask: hpc-train requeue r"),
        ("stop", "its attempt has ended; once its job has too, it does not start again by itself; after a repair: "),
    ],
)
def test_a_decision_is_newer_than_a_job_that_still_runs(shell: Shell, word: str, said: str) -> None:
    run = shell.make_run("r", "7")
    make_attempt(run, 0, word=word)
    shell.queue("7|RUNNING|n1|None")
    assert shell.json("why", "r")["next"].startswith(said)
    make_attempt(run, 1)
    assert shell.json("why", "r")["next"] == "it runs"


def test_what_srun_says_of_a_launch_counts_only_before_all_ranks_were_ready(shell: Shell) -> None:
    run = shell.make_run("r", "7")
    attempt = make_attempt(run)
    attempt.launcher_log.write_text("srun: error: Application launch failed: Communication connection failure\n")
    shell.queue("7|NODE_FAIL|n1|None")
    failed = shell.json("why", "r")["diagnosis"]
    assert failed["pattern"] == "step-launch-failed" and "HOST" not in failed["next"]
    (attempt.ready / "0").write_text("n1")  # the only one
    assert shell.json("why", "r")["diagnosis"] is None


def test_a_local_run_is_told_nothing_of_slurm(shell: Shell) -> None:
    attempt = make_attempt(shell.make_run("r", "7", scheduler="local"), 0, word="stop", failure="killed")
    attempt.logs.joinpath("n1.log").write_text("/tmp/x: line 7: 31337 Killed                  python train.py\n")
    out = shell.ok("why", "r")
    assert "(killed)" in out and "fewer DataLoader workers" in out
    assert not [word for word in ("sacct", "sbatch", "Slurm", "srun", "the site") if word in out], out
