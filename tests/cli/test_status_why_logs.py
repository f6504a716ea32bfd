"""`status`, `why` and `logs` of runs in every condition."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import subprocess
import time
from typing import Any

import pytest

from hpc_train.run.journal import Journal
from tests.cli.conftest import Shell
from tests.scheduler.making import make_attempt, write_program

DOCUMENTED = {"run", "name", "job_id", "site", "state", "attempts", "step", "reason", "run_dir", "format", "version"}
FAILED: dict[str, Any] = {
    "word": "stop", "failure": "program", "rank": 3, "node": "n7", "step": 41, "phase": "step", "code": 1,
    "reason": "KeyError: 'x' (train.py:9); no new checkpoint in this attempt",
}  # fmt: skip


def test_status_of_nothing_says_how_to_begin(shell: Shell) -> None:
    assert shell.ok("status") == "no runs yet; start one with: hpc-train submit\n"
    assert shell.json("status") == []


def test_status_json_has_the_documented_fields(shell: Shell) -> None:
    run = shell.make_run("r-1", "7", job_name="it's 50%")
    make_attempt(run, **FAILED)
    journal = Journal(run, "rank0", 0)
    journal.append("step", step=41, loss=2.5)
    shell.queue("7|FAILED|n7|NonZeroExitCode")
    (status,) = shell.json("status", "r-1")
    assert set(status) >= DOCUMENTED
    assert (status["run"], status["name"], status["job_id"], status["site"]) == ("r-1", "it's 50%", "7", "slurm")
    assert (status["state"], status["attempts"], status["step"], status["loss"]) == ("failed", 1, 41, 2.5)
    assert status["reason"] == FAILED["reason"]
    assert (status["run_dir"], status["format"], status["version"]) == (str(run.path), "hpc-train-status", 1)
    assert status["decision"]["rank"] == 3


def test_status_finds_a_run_by_name_beginning_path_and_job_id(shell: Shell) -> None:
    run = shell.make_run("train-20260101-aaaa", "7")
    shell.queue("7|RUNNING|n1|None")
    for reference in ("train-20260101-aaaa", "train-", str(run.path), "runs/train-20260101-aaaa", "7"):
        (status,) = shell.json("status", reference)
        assert status["run"] == run.name


def test_status_of_a_half_written_run_tells_what_there_is(shell: Shell) -> None:
    shell.make_run("r")
    (status,) = shell.json("status", "r")
    assert (status["state"], status["job_id"]) == ("unknown", "")
    assert status["reason"] == "not submitted: no scheduler has taken it"
    assert "to go on: hpc-train requeue r" in shell.ok("why", "r")


def test_status_goes_on_where_the_scheduler_does_not_answer(shell: Shell) -> None:
    write_program(shell.bin, "squeue", "echo 'Unable to contact slurm controller' >&2; exit 1")
    shell.make_run("r", "7")
    (status,) = shell.json("status")
    assert status["state"] == "unknown"
    assert "Unable to contact slurm controller" in status["reason"]


def test_a_run_whose_directory_is_gone_is_not_listed(shell: Shell) -> None:
    run = shell.make_run("r", "7")
    run.path.rename(run.path.with_name("moved"))
    assert shell.json("status") == []


def test_a_table_that_goes_into_a_pipe_is_plain_text_of_one_line_a_run(shell: Shell) -> None:
    run = shell.make_run("r", "7")
    make_attempt(run, reason="bad\x1b[2J\nnews\ttab [recovery] [/]")
    shell.queue("7|FAILED|n1|None")
    header, row = shell.ok("status").splitlines()
    assert header.split("\t")[:5] == ["run", "job", "site", "state", "attempts"]
    assert row.split("\t")[:5] == ["r", "7", "slurm", "failed", "1"]
    assert header.split("\t")[-1] == "reason"
    assert row.split("\t")[-1] == "bad [2J news tab [recovery] [/]"
    assert len(row.split("\t")) == len(header.split("\t"))


def test_a_table_on_a_terminal_shows_texts_as_they_are(shell: Shell) -> None:
    run = shell.make_run("r", "7")
    make_attempt(run, reason="off ([recovery] requeue = false) [/] [bold]")
    shell.queue("7|FAILED|n1|None")
    assert "off ([recovery] requeue = false) [/] [bold]" in on_terminal(shell, 200)


@pytest.mark.parametrize("width", [20, 80, 120, 300])
def test_a_run_is_one_line_on_any_terminal_and_its_name_whole(shell: Shell, width: int) -> None:
    name, reason = "train-20260101-120000-abcdef", "no new checkpoint in this attempt " * 6
    make_attempt(shell.make_run(name, "4711"), reason=reason)
    shell.queue("4711|FAILED|n1|None")
    header, row = on_terminal(shell, width).splitlines()
    assert row.startswith(f"{name}  ")
    assert ("4711" in row, "job  " in header, "site" in header) == ((width >= 120,) * 3)
    assert "loss" not in header and "eta" not in header  # of which nothing is known
    assert (reason.strip() in row) == (width == 300)
    assert row.endswith("…") == (width < 300)
    assert width - len(row) in (0, 1) or width in (20, 300)  # 1: a blank before the "…"


def on_terminal(shell: Shell, width: int) -> str:
    """What `status` shows on a terminal of that many columns, without colours."""
    ours, theirs = pty.openpty()
    environ = {**shell.environ, "TERM": "xterm", "COLUMNS": str(width), "PYTHONIOENCODING": "utf-8"}
    done = subprocess.run(
        shell.argv("status"), cwd=shell.directory, env=environ, stdout=theirs, stderr=subprocess.PIPE, timeout=60
    )
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # EIO: that was all
        while data := os.read(ours, 1 << 16):
            shown += data
    os.close(ours)
    assert (done.returncode, done.stderr) == (0, b"")
    return re.sub(r"\x1b\[[0-9;]*m", "", shown.decode())


DONE = {"word": "done", "failure": "done", "reason": "all ranks ended cleanly"}
FULL = {"word": "hold", "failure": "no_space", "reason": "No space left; free space, then: hpc-train requeue RUN"}
LOST: dict[str, Any] = {"word": "again-elsewhere", "failure": "node_fail", "reason": "n1 failed", "exclude": ["n1"]}
SAVED: dict[str, Any] = {"word": "again", "failure": "stopped", "reason": "saved on request"}
REQUEUE = "to go on: hpc-train requeue r"


@pytest.mark.parametrize(
    ("queued", "decision", "said"),
    [
        ("COMPLETED|n1|None", DONE, ["state     completed", "next      nothing: it is complete"]),
        ("RUNNING|n[1-2]|None", {}, ["attempt 0 runs on n[1-2]", "next      it runs"]),
        ("FAILED|n7|NonZeroExitCode", FAILED, ["first failing rank 3 on n7, step 41, phase step", "KeyError: 'x'"]),
        ("FAILED|n7|NonZeroExitCode", FAILED, ["does not start again by itself; after a repair: hpc-train requeue r"]),
        (
            "PENDING||job_requeued_in_held_state",
            FULL,
            ["state     held", "No space left", "hpc-train requeue r; see the"],
        ),
        (
            "PENDING||launch failed requeued held",
            SAVED,
            ["state     held", "it is held: its last start failed on a node before", "sinfo -R; to go on, elsewhere:"],
        ),
        # what was decided before it was asked to go on is not why it is held now
        ("PENDING||launch_failed_requeued_held", FULL, ["it is held: its last start failed on a node before"]),
        ("PENDING||JobHeldUser", SAVED, ["it is held: you hold it (scontrol hold, sbatch --hold)", REQUEUE]),
        ("PENDING||JobHeldAdmin", SAVED, ["it is held: an administrator", "(JobHeldAdmin); ask the site"]),
        ("PENDING||Priority", {}, ["state     pending", "starts by itself: jobs with a higher priority"]),
        (
            "PENDING||BeginTime",
            LOST,
            ["state     pending", "avoided from then on, where enough other nodes are up: n1", "two minutes"],
        ),
        (
            "PENDING||BadConstraints",
            {},
            ["never starts: no nodes of this queue can ever fulfil the request: cancel it"],
        ),
        ("CANCELLED by 501|n1|None", {}, ["state     cancelled", "to go on after all: hpc-train requeue r"]),
        ("FAILED|n1|None", SAVED, ["state     failed", "it was to start again, but its job has ended", REQUEUE]),
        ("TIMEOUT|n1|TimeLimit", {}, ["state     timeout", "ended without a decision", REQUEUE]),
        ("", {}, ["state     unknown", "neither squeue nor sacct lists it", "nobody knows"]),
    ],
)
def test_why_says_what_happened_and_what_comes_next(
    shell: Shell, queued: str, decision: dict[str, Any], said: list[str]
) -> None:
    make_attempt(shell.make_run("r", "7"), **decision)
    shell.queue(*[f"7|{queued}"] if queued else [])
    out = shell.ok("why", "r")
    assert [text for text in said if text not in out] == [], out
    assert out.splitlines()[-1].startswith("next      ")


def test_why_doubts_that_the_nodes_see_the_run_where_nothing_began(shell: Shell) -> None:
    run = shell.make_run("r", "7")
    shell.queue("7|FAILED|n1|JobLaunchFailure")
    assert f"do the nodes see {run.path}?" in shell.ok("why", "r")


def test_why_does_not_bury_an_attempt_whose_scheduler_does_not_answer(shell: Shell) -> None:
    shell.make_run("r", "7").attempt(0).path.mkdir()  # and nothing in it
    write_program(shell.bin, "squeue", "echo 'Socket timed out' >&2; exit 1")
    out = shell.ok("why", "r")
    assert "attempt 0 has no decision: it runs, or its batch shell did not live to take one" in out


def test_why_shows_progress_and_the_last_attempts(shell: Shell) -> None:
    run = shell.make_run("r", "7")
    for number in range(8):
        make_attempt(run, number, word="again", failure="stopped", reason="saved on request")
    journal = Journal(run, "rank0", 7)
    journal.append("progress", total_steps=100)
    journal.append("step", step=60)
    journal.append("commit", step=50, path="x")
    shell.queue("7|PENDING||Priority")
    out = shell.ok("why", "r").splitlines()
    assert "step      60 of 100; last commit: step 50; attempts: 8" in out
    assert [line.split()[1] for line in out if line.startswith("attempt")] == ["3", "4", "5", "6", "7"]


@pytest.mark.parametrize(
    ("events", "step", "told"),
    [
        (
            [],
            "none told; last commit: none",
            "only the life of its ranks is watched; tell steps with hpc_train.Progress,",
        ),
        (["commit"], "none told; last commit: step 5", "a hang is not seen; tell steps with hpc_train.Progress"),
        (["progress"], "none yet; last commit: none", ""),  # its first step may take minutes
        (["step"], "5; last commit: none", ""),
    ],
)
def test_of_a_program_that_tells_no_steps_it_is_said_what_is_not_watched(
    shell: Shell, events: list[str], step: str, told: str
) -> None:
    run = shell.make_run("r", "7")
    attempt = make_attempt(run)
    for event in events:
        Journal(run, "rank0", 0).append(event, step=5)
    shell.queue("7|RUNNING|n1|None")
    if told:  # not before it may have come to its first step
        early = shell.ok("status", "r").splitlines()[1].split("\t")[-1]
        assert early == "starting: no step told so far"
        assert f"step      {step.replace('none told', 'none yet')}; " in shell.ok("why", "r")
    long_ago = time.time() - 1000
    os.utime(attempt.ready, (long_ago, long_ago))
    why, row = shell.ok("why", "r"), shell.ok("status", "r").splitlines()[1].split("\t")
    assert f"step      {step}; attempts: 1\n" in why
    assert [line for line in why.splitlines() if line.startswith("watch ")] == (
        [f"watch     {row[-1]}"] if told else []
    )
    assert (told in row[-1]) if told else row[-1] == ""


@pytest.mark.parametrize(("queued", "step"), [("PENDING||Priority", "none yet"), ("FAILED|n1|None", "none told")])
def test_only_a_program_that_runs_is_called_unwatched(shell: Shell, queued: str, step: str) -> None:
    run = shell.make_run("r", "7")
    if step == "none told":
        make_attempt(run, **FAILED)
    shell.queue(f"7|{queued}")
    why = shell.ok("why", "r")
    assert f"step      {step}; " in why and "watch " not in why
    assert "hpc_train.Progress" not in shell.ok("status", "r")


def test_why_in_json_has_every_attempt(shell: Shell) -> None:
    run = shell.make_run("r", "7")
    make_attempt(run, **FAILED)
    make_attempt(run, 1)
    record = shell.json("why", "r")
    assert (record["format"], record["version"]) == ("hpc-train-why", 1)
    assert [(each["attempt"], each["word"]) for each in record["attempts"]] == [(0, "stop"), (1, None)]
    assert record["status"]["run"] == "r"
    assert record["next"]


def test_why_lets_no_text_act_on_the_terminal(shell: Shell) -> None:
    make_attempt(shell.make_run("r", "7"), reason="\x1b]0;title\x07 and\nmore", node="n\x1b[1m")
    assert "\x1b" not in shell.ok("why", "r")


@pytest.fixture
def logged(shell: Shell) -> Shell:
    """A run of two attempts on one and two nodes, with a batch log."""
    run = shell.make_run("r", "7")
    for number, nodes in enumerate((["n1"], ["n1", "n2"])):
        for node in nodes:
            (make_attempt(run, number) if node == "n1" else run.attempt(number)).logs.joinpath(
                f"{node}.log"
            ).write_text(f"attempt {number} on {node}\n")
    run.submission(0).batch_log.write_text("batch\n")
    return shell


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        ([], ["attempt 1 on n1", "attempt 1 on n2", "batch"]),
        (["--attempt", "0"], ["attempt 0 on n1", "batch"]),
        (["--all"], ["attempt 0 on n1", "attempt 1 on n1", "attempt 1 on n2", "batch"]),
        (["--batch"], ["batch"]),
    ],
)
def test_logs_are_those_that_were_asked_for(logged: Shell, words: list[str], lines: list[str]) -> None:
    assert [line for line in logged.ok("logs", "r", *words).splitlines() if not line.startswith("==> ")] == lines


def test_logs_name_their_files(logged: Shell) -> None:
    out = logged.ok("logs", "r").splitlines()
    assert [line for line in out if line.startswith("==>")] == [
        "==> attempt-001/logs/n1.log <==", "==> attempt-001/logs/n2.log <==", "==> submission-00/batch.log <==",
    ]  # fmt: skip
    paths = logged.ok("logs", "r", "--paths").splitlines()
    assert paths[0] == f"{logged.directory}/runs/r/attempt-001/logs/n1.log"


def test_logs_of_an_attempt_that_never_was_are_refused(logged: Shell) -> None:
    assert logged.fails(78, "logs", "r", "--attempt", "5") == "run r has no attempt 5; it has 2, numbered from 0"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--rank", "4"], "run r has no rank 4; it has ranks 0 to 3"),
        (["--rank", "9", "--all"], "run r has no rank 9; it has ranks 0 to 3"),
        (["--rank", "9", "--follow"], "run r has no rank 9; it has ranks 0 to 3"),
        (["--node", "n9"], "run r has no log of a node 'n9'; it ran on n1, n2"),
    ],
)
def test_logs_of_a_rank_or_node_that_never_was_are_refused(logged: Shell, words: list[str], said: str) -> None:
    launch = logged.directory / "runs" / "r" / "submission-00" / "launch.json"
    launch.write_text(json.dumps({**json.loads(launch.read_text()), "num_ranks": 4}))
    assert logged.fails(78, "logs", "r", *words) == said
    # a rank that has not begun, and a node by its long name, are none
    assert "has no logs yet" in logged.run("logs", "r", "--rank", "3").stderr
    assert "attempt 1 on n2" in logged.ok("logs", "r", "--node", "n2.cluster.example")


def test_a_node_of_an_earlier_attempt_is_known(logged: Shell) -> None:
    (logged.directory / "runs" / "r" / "attempt-000" / "logs" / "n5.log").write_text("once\n")
    assert logged.run("logs", "r", "--node", "n5").returncode == 0
    assert logged.ok("logs", "r", "--attempt", "0", "--node", "n5") == "once\n"


def test_logs_that_are_not_there_yet_are_said_to_be_so(shell: Shell) -> None:
    shell.make_run("r", "7")
    done = shell.run("logs", "r")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr == "run r has no logs yet; see: hpc-train why r\n"


def test_logs_are_copied_byte_for_byte(logged: Shell) -> None:
    data = bytes(range(256)) * 10
    (logged.directory / "runs" / "r" / "submission-00" / "batch.log").write_bytes(data)
    argv = logged.argv("logs", "r", "--batch")
    done = subprocess.run(argv, cwd=logged.directory, env=logged.environ, capture_output=True, timeout=60, check=False)
    assert done.stdout == data


@pytest.mark.parametrize("command", ["logs r --batch", "logs r --paths --all", "status --json"])
def test_a_reader_that_has_seen_enough_is_no_error(logged: Shell, command: str) -> None:
    (logged.directory / "runs" / "r" / "submission-00" / "batch.log").write_text("line\n" * 200_000)
    text = f"set -o pipefail; {' '.join(logged.argv())} {command} | head -n 1 >/dev/null"
    done = subprocess.run(
        ["bash", "-c", text],
        cwd=logged.directory,
        env=logged.environ,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_json_of_a_run_with_a_strange_decision_is_still_json(shell: Shell) -> None:
    attempt = make_attempt(shell.make_run("r", "7"))
    attempt.decision.write_text(json.dumps({"word": 5}))
    assert shell.json("status", "r")[0]["decision"] is None
    assert f"attempt 0 ended; {attempt.decision} is damaged (it is no decision)" in shell.ok("why", "r")


def test_a_run_that_slurm_holds_says_in_the_table_what_to_type(shell: Shell) -> None:
    make_attempt(shell.make_run("r", "7"), **SAVED)
    shell.queue("7|PENDING||launch failed requeued held")
    (status,) = shell.json("status")
    assert status["state"] == "held"
    assert status["reason"].startswith("hpc-train requeue r: its last start failed on a node before the script ran")


@pytest.mark.parametrize(("queued", "is_told"), [("PENDING||Resources", True), ("RUNNING|n2|None", False)])
def test_a_run_that_waits_says_which_hosts_it_is_kept_off_and_how_to_end_that(
    shell: Shell, queued: str, is_told: bool
) -> None:
    run = shell.make_run("r", "7")
    make_attempt(run, **LOST)
    run.submission(0).job.write_text(json.dumps({"job": {"exclude": "n[7-8]"}}))
    Journal(run, "decide", 0).append("avoided", submission=0, nodes=["n1", "n3"], spared=[])
    shell.queue(f"7|{queued}")
    out = shell.ok("why", "r")
    assert ("avoids    n1, n3: earlier attempts failed there" in out) == is_told
    assert ("scontrol update jobid=7 ExcNodeList=n[7-8]" in out) == is_told
