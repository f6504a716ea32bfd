"""`status` and `why` where a file of a run is damaged or may not be read: what is wrong, who acts, and all the rest."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from hpc_train.files import why_unreadable
from hpc_train.run.journal import Journal
from hpc_train.run.layout import RunDir
from tests.cli.conftest import Shell
from tests.scheduler.making import make_attempt

IN_PLACE = (
    "cannot be read (Is a directory); something else lies in its place: put it back from a copy, or move that away"
)


@pytest.fixture
def run(shell: Shell) -> RunDir:
    """A run that failed at step 41."""
    made = shell.make_run("r", "7")
    make_attempt(made, reason="KeyError: 'x'")
    Journal(made, "rank0", 0).append("step", step=41)
    shell.queue("7|FAILED|n1|None")
    return made


def test_a_journal_that_cannot_be_read_hides_nothing_else(shell: Shell, run: RunDir) -> None:
    (run.journal / "rank0-000.jsonl").rename(run.path / "aside")
    (run.journal / "rank0-000.jsonl").mkdir()
    (status,) = shell.json("status", "r")
    assert (status["state"], status["step"], status["attempts"]) == ("failed", None, 1)
    assert status["reason"] == f"{run.journal}/rank0-000.jsonl {IN_PLACE}; KeyError: 'x'"
    out = shell.ok("why", "r").splitlines()
    assert f"note      {run.journal}/rank0-000.jsonl {IN_PLACE}" in out
    assert "          KeyError: 'x'" in out and out[-1].endswith("hpc-train requeue r")
    assert shell.json("why", "r")["notes"][0] == f"{run.journal}/rank0-000.jsonl {IN_PLACE}"


@pytest.mark.parametrize("name", ["rank0-000.jsonl", "batch-000.jsonl"])
def test_a_pipe_in_place_of_a_journal_keeps_no_command_waiting(shell: Shell, run: RunDir, name: str) -> None:
    path = run.journal / name
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    told = f"{path} {IN_PLACE.replace('Is a directory', 'not a regular file')}"
    assert shell.json("status", "r")[0]["reason"] == f"{told}; KeyError: 'x'"
    assert f"note      {told}" in shell.ok("why", "r").splitlines()
    begun = shell.run("begin", run.path, "--submission", "0")
    assert begun.returncode == 74 and f"{path}: not a regular file" in begun.stderr, begun.stderr


def test_a_pipe_in_place_of_a_log_keeps_no_command_waiting(shell: Shell, run: RunDir) -> None:
    os.mkfifo(run.attempt(0).ready / "0")
    assert "has no logs yet" in shell.run("logs", "r", "--rank", "0").stderr


def test_a_journal_that_is_no_directory_is_told_too(shell: Shell, run: RunDir) -> None:
    run.journal.rename(run.path / "aside")
    run.journal.touch()
    assert f"note      {run.journal} cannot be read (Not a directory)" in shell.ok("why", "r")
    run.journal.unlink()  # cleaned away
    assert "note" not in shell.ok("why", "r")


@pytest.mark.parametrize("text", ["", "{", '{"word": "no"}', "[]"])
def test_a_damaged_decision_is_not_a_batch_shell_that_died(shell: Shell, run: RunDir, text: str) -> None:
    run.attempt(0).decision.write_text(text)
    out = shell.ok("why", "r")
    assert f"attempt 0 ended; {run.attempt(0).decision} is damaged (" in out and "did not live" not in out


@pytest.mark.parametrize("text", ["", "{", "{}", "[]"])
def test_a_damaged_submit_record_is_not_a_run_that_was_never_submitted(shell: Shell, text: str) -> None:
    run = shell.make_run("r", "7")
    run.submission(0).submit.write_text(text)
    (status,) = shell.json("status", "r")
    assert status["reason"].startswith(f"{run.submission(0).submit} is damaged (")
    assert status["reason"].endswith("nobody knows its job")


def test_the_other_runs_are_shown_and_the_damaged_one_is_named(shell: Shell, run: RunDir) -> None:
    other = shell.make_run("other", "8")
    other.record.write_text("{")
    told = f"{other.record} is damaged ("
    done = shell.run("status")
    assert done.returncode == 0 and [line.split("\t")[0] for line in done.stdout.splitlines()] == ["run", "r"]
    assert done.stderr.startswith(f"hpc-train: left out: {told}") and done.stderr.count("\n") == 1
    for words in (["r", "other"], ["other", "r"]):
        done = shell.run("status", *words)
        assert done.returncode == 78 and [line.split("\t")[0] for line in done.stdout.splitlines()] == ["run", "r"]
        assert done.stderr.startswith(f"hpc-train: error: {told}") and done.stderr.count("\n") == 1
    assert shell.fails(78, "status", "other").startswith(told)
    assert shell.fails(78, "why", "other").startswith(told)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ValueError("a key appears twice"), " is damaged (a key appears twice); put it back from a copy, if there is"),
        (PermissionError(errno.EACCES, "Permission denied"),
         " cannot be read (Permission denied); who owns it must give you the right: chmod u+r "),
        (OSError(errno.EISDIR, "Is a directory"), f" {IN_PLACE}"),
        (FileNotFoundError(errno.ENOENT, "No such file"), " cannot be read (No such file); it was moved or removed"),
        (OSError(errno.EIO, "Input/output error"), "does not do its work: ask the site, with this path"),
    ],
)  # fmt: skip
def test_what_is_said_of_a_file_names_it_the_cause_and_who_acts(
    tmp_path: Path, error: OSError | ValueError, said: str
) -> None:
    path = tmp_path / "a file"
    path.touch()
    told = why_unreadable(path, error)
    assert told.startswith(f"{path} ") and said in told


def test_the_owner_of_what_may_not_be_read_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.touch()
    error = PermissionError(errno.EACCES, "Permission denied")
    assert why_unreadable(path, error).endswith(f"chmod u+r {path}")
    assert why_unreadable(tmp_path / "gone" / "x", error).endswith(f"ls -ld {tmp_path}/gone")
    if os.geteuid() == 0:
        os.chown(path, 12345, -1)
        assert why_unreadable(path, error).endswith("user id 12345")
