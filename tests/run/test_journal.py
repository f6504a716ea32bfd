"""The journal: who writes when, and what a reader makes of it."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_train.run.journal import Event, Journal, last_commit, read_journal
from hpc_train.run.layout import RunDir
from hpc_train.run.newest import JournalTail
from tests.run.records import make_run


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return make_run(tmp_path / "run")


def names(run: RunDir) -> list[str]:
    return [f"{event.attempt} {event.writer} {event.event}" for event in read_journal(run)]


def test_events_are_merged_by_attempt_and_by_the_order_of_acting(run: RunDir) -> None:
    # Written in another order than they happened, as clocks and file systems may show them.
    Journal(run, "decide", 1).append("decision")
    Journal(run, "rank0", 1).append("step", step=2)
    Journal(run, "rank0", 0).append("step", step=1)
    Journal(run, "decide", 0).append("decision")
    Journal(run, "batch", 1).append("attempt_started")
    Journal(run, "batch", 0).append("attempt_started")
    Journal(run, "login").append("submitted")
    assert names(run) == [
        "-1 login submitted",
        "0 batch attempt_started",
        "0 rank0 step",
        "0 decide decision",
        "1 batch attempt_started",
        "1 rank0 step",
        "1 decide decision",
    ]


def test_attempts_beyond_999_are_merged_by_number(run: RunDir) -> None:
    for attempt in (1000, 999):
        Journal(run, "rank0", attempt).append("step")
    assert names(run) == ["999 rank0 step", "1000 rank0 step"]


def test_one_writers_lines_keep_their_order_whatever_the_clock_says(run: RunDir) -> None:
    path = run.journal / "rank0-000.jsonl"
    path.write_text("".join(f'{{"event": "step", "attempt": 0, "time": {9 - n}, "step": {n}}}\n' for n in range(5)))
    assert [event.fields["step"] for event in read_journal(run)] == [0, 1, 2, 3, 4]


def test_a_torn_last_line_is_passed_over_and_the_next_writer_mends_it(run: RunDir) -> None:
    Journal(run, "rank0", 0).append("step", step=1)
    path = run.journal / "rank0-000.jsonl"
    with open(path, "ab") as file:
        file.write(b'{"event": "step", "att')
    assert names(run) == ["0 rank0 step"]
    Journal(run, "rank0", 0).append("commit", step=2)
    assert names(run) == ["0 rank0 step", "0 rank0 commit"]


def test_a_line_torn_by_a_full_disk_does_not_spoil_the_next(run: RunDir, tmp_path: Path) -> None:
    journal = Journal(run, "rank0", 0)
    journal.append("step", step=1)
    with open(run.journal / "rank0-000.jsonl", "ab") as file:
        file.write(b'{"event": "st')
    journal.close()  # as append does after a short write
    journal.append("step", step=2)
    assert [event.fields["step"] for event in read_journal(run)] == [1, 2]


@pytest.mark.parametrize(
    "line",
    [
        b"not json\n",
        b"[1, 2]\n",
        b"\n",
        b"\xff\xfe\x00\n",
        b'{"event": 3, "attempt": 0, "time": 1}\n',
        b'{"event": "x", "attempt": "0", "time": 1}\n',
        b'{"event": "x", "attempt": true, "time": 1}\n',
        b'{"event": "x", "attempt": 0}\n',
        b'{"event": "x", "attempt": 0, "time": 1' + b"0" * 400 + b"}\n",
        b"[" * 50_000 + b"\n",
        b'{"event": "x", "attempt": 0, "time": 1, "long": "' + b"a" * 200_000 + b'"}\n',
    ],
)
def test_a_foreign_line_is_passed_over(run: RunDir, line: bytes) -> None:
    Journal(run, "rank0", 0).append("before")
    with open(run.journal / "rank0-000.jsonl", "ab") as file:
        file.write(line)
    Journal(run, "rank0", 0).append("after")
    assert names(run) == ["0 rank0 before", "0 rank0 after"]


def test_foreign_files_are_passed_over(run: RunDir) -> None:
    for name in ("rank0-1.jsonl", "other-000.jsonl", "rank0-000.jsonl.swp", ".rank0-000.jsonl"):
        (run.journal / name).write_text('{"event": "x", "attempt": 0, "time": 1}\n')
    assert names(run) == []


def test_a_run_without_a_journal_has_no_events(tmp_path: Path) -> None:
    assert read_journal(RunDir(tmp_path)) == []


def test_fields_cannot_take_the_place_of_the_events_own_keys(run: RunDir) -> None:
    Journal(run, "rank0", 2).append("step", attempt=7, time="never", loss=float("inf"))
    (event,) = read_journal(run)
    assert (event.event, event.attempt, event.fields) == ("step", 2, {"loss": float("inf")})


def test_a_line_that_no_reader_would_take_is_refused(run: RunDir) -> None:
    with pytest.raises(ValueError, match="65536 are the limit"):
        Journal(run, "rank0", 0).append("step", text="x" * 70_000)
    assert names(run) == []


def _append_many(path: Path, number: int) -> None:
    journal = Journal(RunDir(path), "login")
    for step in range(100):
        journal.append("submitted", durable=False, number=number, step=step)


def test_two_processes_with_the_login_file_lose_no_line(run: RunDir) -> None:
    processes = [multiprocessing.Process(target=_append_many, args=(run.path, number)) for number in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(30)
    seen = [(event.fields["number"], event.fields["step"]) for event in read_journal(run)]
    assert sorted(seen) == [(number, step) for number in range(2) for step in range(100)]


def test_a_journal_that_is_a_link_is_not_followed(run: RunDir, tmp_path: Path) -> None:
    os.symlink(tmp_path / "elsewhere", run.journal / "rank0-000.jsonl")
    with pytest.raises(OSError, match="symbolic links"):
        Journal(run, "rank0", 0).append("step")


@given(st.lists(st.tuples(st.sampled_from(["step", "commit"]), st.one_of(st.integers(), st.text(), st.none()))))
def test_the_newest_commit_is_the_largest_step_committed(pairs: list[tuple[str, object]]) -> None:
    events = [Event(name, "rank0", 0, 0.0, {"step": step}) for name, step in pairs]
    expected = [step for name, step in pairs if name == "commit" and isinstance(step, int)]
    assert last_commit(events) == max(expected, default=None)


@pytest.mark.timeout(20)
@pytest.mark.parametrize("name", ["rank0-000.jsonl", "batch-000.jsonl"])
def test_what_is_no_file_in_place_of_a_journal_is_named_and_keeps_nobody_waiting(run: RunDir, name: str) -> None:
    path = run.journal / name
    for device in ("", "/dev/zero"):
        if device:
            path.symlink_to(device)
        else:
            os.mkfifo(path)
        for read in (lambda: read_journal(run), JournalTail(run).read):
            with pytest.raises(OSError, match="not a regular file") as caught:
                read()
            assert caught.value.filename == str(path)
        path.unlink()


def test_numbers_of_other_libraries_are_journalled_and_what_is_no_value_is_refused(run: RunDir) -> None:
    journal = Journal(run, "rank0", 0)
    journal.append("step", step=np.int64(3), loss=np.float32(0.5))
    with pytest.raises(TypeError, match="a journal event cannot hold bytes"):
        journal.append("step", step=b"1")
    (event,) = read_journal(run)
    assert event.fields == {"step": 3, "loss": 0.5}
