"""What must be written down finds room on a full disk: a real one, of a few hundred KiB."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpc_train.recovery.evidence import decide_attempt, read_decision
from hpc_train.run.journal import read_journal
from hpc_train.run.layout import RunDir
from hpc_train.run.marks import read_marks, write_mark
from hpc_train.run.reserve import DECISION, MARKS, keep_reserve
from hpc_train.scheduler.local.record import SupervisorRecord, read_record, write_record
from tests.run.records import make_run, mark, start_attempt


@pytest.fixture
def run(tmp_path: Path) -> Iterator[RunDir]:
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=600k", "tmpfs", str(disk)], check=True, timeout=20)
    try:
        yield make_run(disk / "run")
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True, timeout=20)


def fill(run: RunDir) -> None:
    """To the last byte."""
    with contextlib.suppress(OSError), open(run.path.parent / "filler", "ab", buffering=0) as file:
        while True:
            file.write(bytes(4096))


def test_marks_and_decision_of_a_full_disk_are_written_with_the_reserve(run: RunDir) -> None:
    keep_reserve(run, 2)
    attempt = start_attempt(run, {0: "n0", 1: "n0"})
    fill(run)
    for rank in (0, 1):
        write_mark(attempt, mark("no_space", rank, code=73))
    assert [each.failure for each in read_marks(attempt)] == ["no_space"] * 2
    assert not (run.path / MARKS).exists() and (run.path / DECISION).exists()
    fill(run)  # the others on this disk take what the ranks left
    assert decide_attempt(run, attempt, submission=0, launcher_code=73).word == "hold"
    decision = read_decision(attempt)
    assert decision is not None and decision.failure == "no_space"
    assert [event.event for event in read_journal(run)] == ["decision"]


def test_a_reserve_that_does_not_fit_is_an_error_and_takes_no_room(run: RunDir) -> None:
    fill(run)
    with pytest.raises(OSError) as caught:
        keep_reserve(run, 2)
    assert caught.value.errno == errno.ENOSPC
    assert not list(run.path.glob(".reserve-*"))


def test_a_reserve_is_kept_as_it_is_and_grows_with_the_ranks(run: RunDir) -> None:
    keep_reserve(run, 2)
    before = (run.path / MARKS).stat()
    keep_reserve(run, 2)
    assert (run.path / MARKS).stat().st_mtime_ns == before.st_mtime_ns
    keep_reserve(run, 20)
    assert (run.path / MARKS).stat().st_size > before.st_size
    assert before.st_blocks * 512 >= before.st_size, "a hole holds nothing back"


def test_the_supervisors_record_is_replaced_where_nothing_new_has_room(run: RunDir) -> None:
    submission = run.submission(0)
    write_record(submission, SupervisorRecord(1, 2, "here", "running"))
    fill(run)
    written = SupervisorRecord(1, 2, "here", "held", "no space: " + "\x1bü" * 500)
    write_record(submission, written)
    read = read_record(submission)
    assert read is not None and read.state == "held" and written.reason.startswith(read.reason)
    assert len(os.listdir(submission.path)) == 2  # with the launch record


@pytest.mark.timeout(20)
def test_a_pipe_in_place_of_the_reserve_is_an_error_and_no_wait(tmp_path: Path) -> None:
    run = make_run(tmp_path / "r")
    os.mkfifo(run.path / MARKS)
    with pytest.raises(OSError, match="No such device"):
        keep_reserve(run, 4)
    keep_reserve(run, 4)  # it was put away
    assert (run.path / MARKS).is_file()
