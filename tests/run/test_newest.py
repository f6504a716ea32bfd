"""The newest events of a run, read from the ends of its files."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpc_train.run.journal import Event, Journal, read_journal
from hpc_train.run.layout import RunDir
from hpc_train.run.newest import KEPT_STEPS, JournalTail, Newest
from tests.run.records import make_run


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return make_run(tmp_path / "run")


def expected(run: RunDir) -> tuple[list[Event], Event | None]:
    """What a reader of everything would say: the newest steps of one attempt, and the newest commit."""
    events = read_journal(run)
    steps = [event for event in events if event.event == "step"]
    steps = [event for event in steps if event.attempt == steps[-1].attempt][-KEPT_STEPS:]
    return steps, next((event for event in reversed(events) if event.event == "commit"), None)


def shown(newest: Newest) -> tuple[list[Event], Event | None]:
    return list(newest.steps), newest.commit


# Lines of up to 40 kB, so that a few of them fill more than one block that is read.
EVENTS = st.lists(
    st.tuples(st.sampled_from(["step", "commit", "other", "torn"]), st.integers(0, 40_000)), min_size=1, max_size=60
)


@settings(max_examples=40, deadline=None)
@given(st.lists(EVENTS, min_size=1, max_size=4))
def test_reading_from_the_end_finds_what_reading_everything_finds(batches: list[list[tuple[str, int]]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        run = make_run(Path(directory) / "run")
        tail = JournalTail(run)
        number = 0
        for attempt, batch in enumerate(batches):
            journal = Journal(run, "rank0", attempt // 2)  # two readings of each file
            for name, size in batch:
                number += 1
                if name == "torn":
                    with open(run.journal / journal.path.name, "ab") as file:
                        file.write(b'{"event":"step","attempt":0')
                    journal.close()  # the next append mends it
                else:
                    journal.append(name, durable=False, step=number, text="x" * size)
            assert shown(tail.read()) == shown(JournalTail(run).read()) == expected(run)
            journal.close()


def test_a_million_steps_cost_a_look_at_the_end(run: RunDir) -> None:
    line = b'{"step":%7d,"loss":2.5,"digest":4611686018427387904,"samples":512,"seconds":0.12,"event":"step",'
    line += b'"attempt":0,"time":1.5}\n'
    commit = b'{"step":990000,"event":"commit","attempt":0,"time":1.5}\n'
    with open(run.journal / "rank0-000.jsonl", "wb") as file:
        file.write(b'{"total_steps":2000000,"event":"progress","attempt":0,"time":1.0}\n')
        for thousand in range(1000):
            file.write(b"".join(line % (1000 * thousand + n) for n in range(1000)))
            if thousand == 998:
                file.write(commit)
    assert os.path.getsize(run.journal / "rank0-000.jsonl") > 100e6
    tail = JournalTail(run)
    before = bytes_read()
    newest = tail.read()
    assert bytes_read() - before < 2 << 20
    assert newest.steps[-1].fields["step"] == 999_999
    assert newest.commit is not None and newest.commit.fields["step"] == 990_000
    assert newest.progress is not None and newest.progress.fields["total_steps"] == 2_000_000
    before = bytes_read()
    assert tail.read() == newest
    assert bytes_read() - before < 100_000  # nothing was added


def bytes_read() -> int:
    """What this process has read so far, from a disk or not."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("rchar")).split()[1])


def test_an_attempt_without_a_step_yet_shows_those_of_the_one_before(run: RunDir) -> None:
    Journal(run, "rank0", 0).append("step", step=7)
    Journal(run, "batch", 1).append("attempt_started", submission=0)
    Journal(run, "rank0", 1).append("progress", total_steps=9)
    newest = JournalTail(run).read()
    assert [event.fields["step"] for event in newest.steps] == [7]
    assert newest.progress is not None and newest.progress.attempt == 1
    assert newest.started is not None and newest.started.attempt == 1


def test_a_line_that_is_still_being_written_is_read_once_it_is_whole(run: RunDir) -> None:
    path = run.journal / "rank0-000.jsonl"
    line = json.dumps({"step": 2, "event": "step", "attempt": 0, "time": 1.0}, separators=(",", ":")).encode()
    Journal(run, "rank0", 0).append("step", step=1)
    tail = JournalTail(run)
    with open(path, "ab", buffering=0) as file:
        file.write(line[:30])
        assert [event.fields["step"] for event in tail.read().steps] == [1]
        file.write(line[30:] + b"\n")
        assert [event.fields["step"] for event in tail.read().steps] == [1, 2]


def test_a_file_that_was_replaced_or_cut_is_read_anew(run: RunDir) -> None:
    path = run.journal / "rank0-000.jsonl"
    for step in range(1, 4):
        Journal(run, "rank0", 0).append("step", step=step)
    tail = JournalTail(run)
    assert len(tail.read().steps) == 3
    os.truncate(path, len(path.read_bytes().splitlines(keepends=True)[0]))
    assert [event.fields["step"] for event in tail.read().steps] == [1]
    path.unlink()
    assert tail.read() == Newest()
    Journal(run, "rank0", 0).append("step", step=9)
    assert [event.fields["step"] for event in tail.read().steps] == [9]


def test_a_run_without_a_journal_has_nothing_new(tmp_path: Path) -> None:
    assert JournalTail(RunDir(tmp_path)).read() == Newest()


def test_kinds_that_are_not_asked_for_are_left_out(run: RunDir) -> None:
    journal = Journal(run, "rank0", 0)
    for name in ("step", "commit", "steps"):
        journal.append(name, step=1, inner={"event": "step"})
    assert [event.event for event in read_journal(run, without=("step",))] == ["commit", "steps"]
