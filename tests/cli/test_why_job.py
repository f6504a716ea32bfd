"""`why` for jobs that are no runs, for logs alone, and what logs add to a run's story."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from hpc_train.cli.why_job import job_lines
from hpc_train.diagnosis.job_facts import ACCOUNTING_FIELDS, SEPARATOR
from tests.cli.conftest import Shell
from tests.scheduler.making import make_attempt, write_program

RAISED = "[rank5]: Traceback (most recent call last):\n[rank5]:   File x\n[rank5]: KeyError: 'labels'\n"
RECORD = {
    "format",
    "version",
    "status",
    "attempts",
    "job",
    "notes",
    "diagnosis",
    "findings",
    "next",
    "fallbacks",
    "space",
}


@pytest.fixture
def slurm(shell: Shell) -> Shell:
    """A Slurm that knows no job: its squeue refuses, its sacct is empty."""
    write_program(shell.bin, "squeue", "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1")
    return shell


def account(shell: Shell, **fields: str) -> None:
    """What sacct says of job 99."""
    values = {
        "JobID": "99",
        "State": "FAILED",
        "ExitCode": "1:0",
        "NNodes": "1",
        "NodeList": "n1",
        "User": "ann",
        **fields,
    }
    line = SEPARATOR.join(values.get(name, "") for name in ACCOUNTING_FIELDS)
    write_program(shell.bin, "sacct", f"printf '%s\\n' '{line}'")


def log(shell: Shell, name: str, text: str = RAISED) -> Path:
    """A log in the working directory."""
    path = shell.directory / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    return path


def test_a_log_alone_needs_no_scheduler(shell: Shell) -> None:
    for name in ("squeue", "sacct", "scontrol"):
        write_program(shell.bin, name, "echo called >&2; exit 1")
    log(shell, "job.out")
    out = shell.ok("why", "--log", "job.out").splitlines()
    assert out[0] == "class     program"
    assert "where     rank 5" in out
    assert "evidence  job.out:3: KeyError: 'labels'" in out
    assert out[-1].startswith("next      read the traceback")


def test_several_logs_come_by_one_flag_or_many(shell: Shell) -> None:
    log(shell, "logs/n1.log", "Connection closed by peer\n")
    log(shell, "logs/n2.log")
    for words in (["--log", "logs/n1.log", "logs/n2.log"], ["--log", "logs/n1.log", "--log", "logs/n2.log"]):
        out = shell.ok("why", *words)
        assert "evidence  logs/n2.log:3: KeyError" in out and "where     rank 5, host n2" in out
        assert "also      logs/n1.log:1: Connection closed by peer (peer-lost)" in out


def test_a_job_of_anybody_with_the_log_that_slurm_names(slurm: Shell) -> None:
    account(slurm, WorkDir=str(slurm.directory))
    log(slurm, "slurm-99.out")
    out = slurm.ok("why", "99").splitlines()
    assert out[0] == "job       99, user ann"
    assert "evidence  slurm-99.out:3: KeyError: 'labels'" in out
    assert out[-1].startswith("next      ")
    assert slurm.ok("why", "99.0") == "\n".join(out) + "\n"


def test_the_logs_that_are_named_count_and_not_slurms(slurm: Shell) -> None:
    account(slurm, WorkDir=str(slurm.directory))
    log(slurm, "slurm-99.out")
    log(slurm, "other.out", "RuntimeError: can't start new thread\n")
    assert "other.out:1: RuntimeError: can't start new thread" in slurm.ok("why", "99", "--log", "other.out")


def test_a_job_that_nobody_knows_is_unknown_and_never_completed(slurm: Shell) -> None:
    out = slurm.ok("why", "99")
    assert "state     unknown" in out and "neither squeue nor sacct lists it" in out
    assert "class     unknown" in out and "class     completed" not in out


@pytest.mark.parametrize("said", ["Slurm accounting storage is disabled", "Connection refused"])
def test_where_accounting_is_off_or_down_it_is_said(slurm: Shell, said: str) -> None:
    write_program(slurm.bin, "sacct", f"echo 'sacct: error: {said}' >&2; exit 1")
    out = slurm.ok("why", "99")
    assert "note      there is no accounting to ask, or it does not answer" in out and said in out
    assert "class     unknown" in out and "completed" not in out.replace("not the same as completed", "")


def test_a_slurm_that_does_not_answer_at_all_is_an_error_unless_there_is_a_log(slurm: Shell) -> None:
    for name in ("squeue", "sacct"):
        write_program(slurm.bin, name, "echo 'Unable to contact slurm controller' >&2; exit 1")
    assert "Unable to contact slurm controller" in slurm.fails(69, "why", "99")
    log(slurm, "job.out")
    out = slurm.ok("why", "99", "--log", "job.out")
    assert "note      Slurm does not answer" in out and "KeyError" in out


def test_the_json_is_the_same_object_for_runs_jobs_and_logs(slurm: Shell) -> None:
    account(slurm)
    log(slurm, "job.out")
    make_attempt(slurm.make_run("r", "7"))
    for words in (["99"], ["--log", "job.out"], ["r"], ["99", "--log", "job.out"]):
        record = slurm.json("why", *words)
        assert set(record) == RECORD, words
        assert (record["format"], record["version"]) == ("hpc-train-why", 1)
    found = slurm.json("why", "--log", "job.out")
    diagnosis: dict[str, Any] = found["diagnosis"]
    assert (diagnosis["class"], diagnosis["pattern"], diagnosis["rank"]) == ("program", "python-exception", 5)
    assert found["findings"][0]["place"] == "job.out:3"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ([], 2, "give a run, a job id, or --log FILE"),
        (["99", "98"], 2, "give one run or job, not 2"),
        (["nonsense"], 78, "no run 'nonsense'"),
        (["--log", "missing.out"], 2, "cannot read the log missing.out: No such file or directory; give text files"),
        (["--log", "."], 2, "cannot read the log .: Is a directory"),
        (["--log", "pipe/x"], 2, "cannot read the log pipe/x: Not a directory"),
        (["0"], 78, "no run '0'"),
        (["--log", "pipe"], 2, "not a regular file"),
    ],
)
def test_bad_input_is_one_line(slurm: Shell, words: list[str], code: int, said: str) -> None:
    os.mkfifo(slurm.directory / "pipe")
    assert said in slurm.fails(code, "why", *words)


@pytest.mark.parametrize(
    ("data", "note"),
    [
        (b"", "is empty"),
        (b" \n\r\n\t\n", "is empty"),
        (bytes(range(256)) * 40, "does not look like text"),
        (bytes(5000), "does not look like text"),
        ("step 3\n".encode("utf-16-le"), "does not look like text"),  # without a mark nobody can tell
        (b"all well\n", ""),
        ("Zugriff verweigert: Datei \xe4\n".encode("latin-1"), ""),
        (b"\x1b[32mstep 3\x1b[0m\r 50%|##\b\b\n", ""),
    ],
)
def test_a_log_in_which_nothing_can_be_read_is_named(slurm: Shell, data: bytes, note: str) -> None:
    (slurm.directory / "job.out").write_bytes(data)
    account(slurm, WorkDir=str(slurm.directory))
    for words in (["--log", "job.out"], ["99", "--log", "job.out"]):
        record = slurm.json("why", *words)
        assert [text for text in record["notes"] if text.startswith("job.out ")] == [
            text for text in record["notes"] if note and note in text
        ], record["notes"]
        assert bool(note) == any("job.out" in text for text in record["notes"])
    alone = slurm.json("why", "--log", "job.out")
    assert alone["diagnosis"]["class"] == "unknown"
    assert (alone["diagnosis"]["what"] == "there is nothing to read") == bool(note)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-8-sig"])
@pytest.mark.parametrize("size", [0, 6 << 20])
def test_a_log_of_another_encoding_is_read(slurm: Shell, encoding: str, size: int) -> None:
    text = "x" * 79 + "\n"
    text = text * (size // 80) + "OSError: [Errno 28] No space left on device\n"
    mark = "\ufeff" if encoding == "utf-16-be" else ""
    (slurm.directory / "job.out").write_bytes((mark + text).encode(encoding))
    record = slurm.json("why", "--log", "job.out")
    assert record["diagnosis"]["pattern"] == "disk-full"
    assert record["diagnosis"]["evidence"][0].startswith(f"job.out:{size // 80 + 1}: OSError")


def test_nothing_of_a_log_or_of_slurm_acts_on_the_terminal(slurm: Shell) -> None:
    account(slurm, Reason="\x1b]0;x\x07", User="\x1b[2J", WorkDir=str(slurm.directory))
    log(slurm, "slurm-99.out", "OSError: [Errno 28] No space left on device: '\x1b[2J\x9b1m\x1b]0;t\x07x'\n")
    out = slurm.ok("why", "99")
    assert out.replace("\n", "").isprintable()
    assert "disk-full" not in out and "class     no_space" in out


FAILED: dict[str, Any] = {"word": "stop", "failure": "crash", "reason": "SIGSEGV; no new checkpoint", "rank": 3}


def test_a_run_s_story_has_the_line_of_its_log(shell: Shell) -> None:
    run = shell.make_run("r", "7")
    make_attempt(run, 0, **FAILED).logs.joinpath("n1.log").write_text("RuntimeError: can't start new thread\n")
    make_attempt(run, 1, **FAILED).logs.joinpath("n2.log").write_text("x\nFatal Python error: Segmentation fault\n")
    shell.queue("7|FAILED|n2|NonZeroExitCode")
    out = shell.ok("why", "r").splitlines()
    assert "evidence  attempt-001/logs/n2.log:2: Fatal Python error: Segmentation fault" in out
    assert any(line.startswith("advice    you: run again with PYTHONFAULTHANDLER=1") for line in out)
    assert not [line for line in out if "new thread" in line]  # an earlier attempt's
    assert out[-1] == "next      it does not start again by itself; after a repair: hpc-train requeue r"


@pytest.mark.parametrize(
    ("queued", "decision"),
    [
        ("RUNNING|n1|None", {}),
        ("COMPLETED|n1|None", {"word": "done", "failure": "done", "reason": "all ranks ended cleanly"}),
        ("PENDING||BeginTime", {"word": "again", "failure": "stopped", "reason": "saved on request"}),
    ],
)
def test_logs_of_an_attempt_that_did_not_fail_are_left_alone(
    shell: Shell, queued: str, decision: dict[str, Any]
) -> None:
    make_attempt(shell.make_run("r", "7"), **decision).logs.joinpath("n1.log").write_text(RAISED)
    shell.queue(f"7|{queued}")
    assert "evidence" not in shell.ok("why", "r")


def test_a_run_whose_ranks_never_began_is_told_by_its_batch_log(shell: Shell) -> None:
    run = shell.make_run("r", "7")
    run.submission(0).batch_log.write_text("/spool/slurm_script: line 9: module: command not found\n")
    shell.queue("7|FAILED|n1|NonZeroExitCode")
    assert "evidence  submission-00/batch.log:1: /spool/slurm_script: line 9: module: command not found" in shell.ok(
        "why", "r"
    )


def test_a_decided_run_is_not_told_twice_that_somebody_ended(shell: Shell) -> None:
    attempt = make_attempt(shell.make_run("r", "7"), **FAILED)
    attempt.launcher_log.write_text("srun: error: n1: task 3: Exited with exit code 1\n")
    attempt.logs.joinpath("n1.log").write_text("RuntimeError: Connection closed by peer\n")
    shell.queue("7|FAILED|n1|NonZeroExitCode")
    assert "evidence" not in shell.ok("why", "r")


@pytest.mark.parametrize(
    ("text", "advice"),
    [
        (
            "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=7.0.\n",
            "ask for more: hpc-train resume r --memory SIZE (",
        ),
        (
            "kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid=1\n",
            "run again without that node: hpc-train resume r --exclude n1",
        ),
        ("RuntimeError: No CUDA GPUs are available\n", "ask for GPUs (hpc-train resume r --gpus-per-rank N)"),
    ],
)
def test_the_advice_for_a_run_is_a_command_of_hpc_train(shell: Shell, text: str, advice: str) -> None:
    attempt = make_attempt(shell.make_run("r", "7"), **FAILED)
    attempt.logs.joinpath("n1.log").write_text(text)
    shell.queue("7|FAILED|n1|NonZeroExitCode")
    out = shell.ok("why", "r")
    assert advice in out and "sbatch" not in out


def test_the_advice_says_how_much_where_slurm_knows_how_much_there_was(shell: Shell) -> None:
    attempt = make_attempt(shell.make_run("r", "7"), **FAILED)
    attempt.logs.joinpath("n1.log").write_text("slurmstepd: error: Exceeded job memory limit\n")
    shell.queue("7|FAILED|n1|NonZeroExitCode")
    account(shell, JobID="7", ReqMem="32G")
    assert "ask for more: hpc-train resume r --memory 49152M" in shell.ok("why", "r")


MIB, GIB = 1 << 20, 1 << 30
MEMORY: dict[str, Any] = {
    "id": "99", "state": "FAILED", "reason": None, "exit_code": 1, "signal": 0, "user": None, "account": None,
    "queue": None, "elapsed_s": 3600, "limit_s": None, "nodes": "n1", "memory_per_node": 4 * GIB, "max_rss": 3 * GIB,
    "max_rss_step": "99.0", "max_rss_node": "n1", "earlier_starts": [], "array_tasks": {},
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({}, "memory    at most 3.0 GiB in one task (step 99.0 on n1); 4.0 GiB asked for on each node"),
        ({"elapsed_s": 5}, "memory    at most 3.0 GiB in one task (step 99.0 on n1); 4.0 GiB asked for on each node"),
        ({"max_rss": None}, "memory    4.0 GiB asked for on each node; what was used was not measured"),
        (
            {"max_rss": None, "elapsed_s": None},
            "memory    4.0 GiB asked for on each node; what was used was not measured",
        ),
        # over before the accounting had looked, or had seen more than the shell that became the program
        ({"max_rss": None, "elapsed_s": 5}, ""),
        ({"max_rss": None, "elapsed_s": 0}, ""),
        ({"max_rss": 0, "elapsed_s": 29}, ""),
        ({"max_rss": 2 * MIB, "elapsed_s": 5}, ""),
        ({"max_rss": 2 * MIB, "elapsed_s": 5, "state": "OUT_OF_MEMORY"}, "memory    4.0 GiB asked for on each node"),
        ({"max_rss": None, "elapsed_s": 0, "state": "PENDING"}, "memory    4.0 GiB asked for on each node"),
        ({"max_rss": None, "memory_per_node": None}, ""),
    ],
)
def test_memory_is_told_where_it_was_measured(changes: dict[str, Any], line: str) -> None:
    assert [each for each in job_lines({**MEMORY, **changes}) if each.startswith("memory")] == [line][: bool(line)]


@pytest.mark.parametrize(
    ("text", "then"),
    [
        ("", "there is nothing to read in {log}: does its output go elsewhere (srun --output)?"),
        ("all well\n", "nothing known is in its log; read its end: tail {log}"),
    ],
)
def test_a_log_that_was_looked_at_is_not_asked_for_again(slurm: Shell, text: str, then: str) -> None:
    account(slurm, WorkDir=str(slurm.directory))
    said = then.format(log=log(slurm, "slurm-99.out", text))
    assert slurm.json("why", "99")["next"] == said
    assert slurm.json("why", "99", "--log", "slurm-99.out")["next"].startswith(said.partition("/")[0])


def test_who_cancelled_a_waiting_job_is_named_and_not_why_it_waited(slurm: Shell) -> None:
    account(slurm, State="CANCELLED by 0", ExitCode="0:0", User="root", Reason="Resources", NodeList="", ElapsedRaw="0")
    out = slurm.ok("why", "99").splitlines()
    assert "what      it was cancelled by its user, root, before it started: it never had a node" in out
    assert [line for line in out if line.startswith("state     CANCELLED by root;")]
    shell_run = slurm.make_run("r", "99")
    write_program(slurm.bin, "squeue", "echo '99|CANCELLED by 0||Resources'")
    assert "state     cancelled (CANCELLED by root)" in slurm.ok("why", shell_run.name).splitlines()


def test_one_earlier_start_is_once() -> None:
    assert "before    started once before: NODE_FAIL" in job_lines({**MEMORY, "earlier_starts": ["NODE_FAIL"]})
