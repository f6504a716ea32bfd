"""Exit marks, and which of them tells why an attempt ended."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_train.run.layout import AttemptDir
from hpc_train.run.marks import (
    CODE_OF_CLASS,
    ExitMark,
    class_of_code,
    class_of_signal,
    first_cause,
    read_marks,
    write_mark,
)
from tests.run.records import mark


@pytest.fixture
def attempt(tmp_path: Path) -> AttemptDir:
    return AttemptDir(tmp_path, 0)


def test_a_mark_is_read_as_it_was_written(attempt: AttemptDir) -> None:
    written = mark("hang", 12, step=None, phase="load", waits=True, time=5.5)
    write_mark(attempt, written)
    assert read_marks(attempt) == [written]


def test_a_mark_gets_the_time_of_its_writing(attempt: AttemptDir) -> None:
    write_mark(attempt, mark("program", time=0.0))
    assert read_marks(attempt)[0].time > 1e9


def test_marks_come_in_the_order_of_ranks(attempt: AttemptDir) -> None:
    for rank in (10, 9, 100):
        write_mark(attempt, mark("program", rank))
    assert [known.writer for known in read_marks(attempt)] == [9, 10, 100]


def test_the_first_word_of_a_rank_stays_unless_it_was_only_an_announcement(attempt: AttemptDir) -> None:
    write_mark(attempt, mark("terminated"))
    write_mark(attempt, mark("program"))
    assert read_marks(attempt)[0].failure == "terminated"
    write_mark(attempt, mark("stopped"), replace=True)
    assert read_marks(attempt)[0].failure == "stopped"


def test_no_mark_directory_means_no_marks(attempt: AttemptDir) -> None:
    assert read_marks(attempt) == []


SOUND = {"writer": 1, "rank": 1, "node": "n", "failure": "program", "cause": "c", "code": 1}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "NaN",
        json.dumps({**SOUND, "extra": 1}),  # of a later version
        json.dumps({key: value for key, value in SOUND.items() if key != "code"}),
        json.dumps({**SOUND, "rank": "1"}),
        json.dumps({**SOUND, "code": True}),
        json.dumps({**SOUND, "cause": None}),
        json.dumps({**SOUND, "step": "7"}),
        json.dumps({**SOUND, "time": "now"}),
        json.dumps({**SOUND, "waits": 1}),
        json.dumps({**SOUND, "call": 7}),
        json.dumps({**SOUND, "writer": 2}),  # another rank's word in this rank's file
        json.dumps({**SOUND, "cause": "x" * 100_000}),
        '{"writer": 1, "writer": 1}',
    ],
)
def test_a_damaged_mark_is_passed_over(attempt: AttemptDir, text: str) -> None:
    attempt.exits.mkdir()
    (attempt.exits / "rank-1.json").write_text(text)
    write_mark(attempt, mark("program", 2))
    assert [known.writer for known in read_marks(attempt)] == [2]


def test_foreign_files_beside_marks_are_passed_over(attempt: AttemptDir) -> None:
    attempt.exits.mkdir()
    for name in (".rank-1.json.ab12.tmp", "rank-x.json", "rank-1.json~"):
        (attempt.exits / name).write_text(json.dumps(SOUND))
    (attempt.exits / "rank-3.json").mkdir()
    assert read_marks(attempt) == []


@pytest.mark.parametrize(
    ("marks", "expected"),
    [
        ([], None),
        ([mark("program", 2)], (2, "program")),
        # causes before consequences, however early these were written
        ([mark("terminated", 0, time=1), mark("program", 2, time=9)], (2, "program")),
        ([mark("peer_lost", 0, time=1), mark("killed", 2, time=9)], (2, "killed")),
        ([mark("terminated", 0, time=1), mark("peer_lost", 2, time=9)], (2, "peer_lost")),
        # among causes the earliest
        ([mark("program", 0, time=5), mark("crash", 2, time=4)], (2, "crash")),
        # stopped and hang come on all ranks; anything else explains more
        ([mark("stopped", 0, time=1), mark("program", 2, time=9)], (2, "program")),
        ([mark("hang", 0, time=1), mark("crash", 2, time=9)], (2, "crash")),
        ([mark("stopped", 0, time=1), mark("hang", 2, time=9)], (2, "hang")),
        ([mark("terminated", 0, time=1), mark("stopped", 2, time=9)], (2, "stopped")),
        # among hanging ranks the one that does not wait for others, then the one furthest behind
        ([mark("hang", 0, time=1, waits=True), mark("hang", 2, time=9)], (2, "hang")),
        ([mark("hang", 0, time=1, step=5), mark("hang", 2, time=9, step=4)], (2, "hang")),
        ([mark("hang", 0, time=1, step=5), mark("hang", 2, time=9, step=None)], (2, "hang")),
        # the launcher ended the stuck rank before its own watchdog spoke
        ([mark("hang", 0, waits=True), mark("terminated", 1, waits=True), mark("terminated", 2)], (2, "hang")),
        ([mark("hang", 0, waits=True), mark("terminated", 1, step=3), mark("terminated", 2, step=2)], (2, "hang")),
        # everybody waits for everybody
        ([mark("hang", 0, time=1, waits=True), mark("terminated", 2, waits=True)], (0, "hang")),
        # one that could not go on comes before all, also where nobody seemed to wait (gloo inside backward)
        ([mark("hang", 0, step=3), mark("hang", 1, step=4, stuck="was stopped")], (1, "hang")),
        ([mark("hang", 0, step=3), mark("terminated", 1, step=3, stuck="stood still")], (1, "hang")),
        ([mark("peer_lost", 0, step=3), mark("terminated", 1, step=3, stuck="stood still")], (1, "hang")),
        ([mark("hang", 0, step=3), mark("peer_lost", 1, step=3, stuck="stood still")], (1, "hang")),
        ([mark("peer_lost", 0), mark("peer_lost", 1, stuck="stood still", time=9)], (1, "hang")),
        ([mark("hang", 0, stuck="was stopped"), mark("terminated", 1, stuck="stood still")], (0, "hang")),
        # a cause is known: that a rank stood still meanwhile is not it
        ([mark("crash", 0), mark("terminated", 1, stuck="stood still")], (0, "crash")),
    ],
)
def test_the_first_cause_is_found(marks: list[ExitMark], expected: tuple[int, str] | None) -> None:
    for _ in range(3):
        found = first_cause(marks)
        assert (None if found is None else (found.rank, found.failure)) == expected
        random.shuffle(marks)


SAVING = {"waits": True, "call": "checkpoint.save (t.py:4), which all ranks must call"}
WAITING = {"waits": True, "call": "comm.Barrier (t.py:5)"}
HUNG = "no progress; main thread in comm.Barrier (t.py:5)"


@pytest.mark.parametrize(
    ("marks", "cause"),
    [
        # where the others waited, each call once
        (
            [mark("hang", 1, cause=HUNG, **WAITING), mark("terminated", 2, **WAITING), mark("terminated", 0, **SAVING)],
            f"{HUNG}; rank 0 in checkpoint.save (t.py:4), which all ranks must call",
        ),
        (
            [mark("hang", 0, cause="hung in save", **SAVING), *(mark("terminated", n, **WAITING) for n in (1, 2, 3))],
            "hung in save; ranks 1-3 in comm.Barrier (t.py:5)",
        ),
        # all in one call: that says nothing new
        ([mark("hang", 1, cause=HUNG, **WAITING), mark("terminated", 2, **WAITING)], HUNG),
        # the one that does something else is named, and what it does
        (
            [mark("hang", 1, cause=HUNG, **WAITING), mark("terminated", 2, call="time.sleep (t.py:6)")],
            f"rank 1 waited for this rank in vain: {HUNG}; this rank in time.sleep (t.py:6)",
        ),
        # of other failures calls tell nothing
        ([mark("program", 1, **WAITING), mark("terminated", 2, **SAVING)], "program"),
    ],
)
def test_the_cause_of_a_hang_tells_where_the_others_waited(marks: list[ExitMark], cause: str) -> None:
    found = first_cause(marks)
    assert found is not None
    assert found.cause == cause


CLASSES = st.sampled_from([*CODE_OF_CLASS, "program", "killed", "crash", "terminated", "peer_lost", "out_of_memory"])


@given(st.lists(st.builds(mark, CLASSES, st.integers(0, 9)), min_size=1))
def test_a_consequence_is_never_named_while_a_cause_is_known(marks: list[ExitMark]) -> None:
    found = first_cause(marks)
    assert found is not None
    consequences = ("terminated", "peer_lost")
    assert found.failure not in consequences or all(known.failure in consequences for known in marks)


@pytest.mark.parametrize(("name", "code"), CODE_OF_CLASS.items())
def test_a_class_and_its_code_belong_together(name: str, code: int) -> None:
    shared = {"hang": "infrastructure", "superseded": "infrastructure", "launch": "config"}
    assert class_of_code(code) == shared.get(name, name)


@pytest.mark.parametrize(
    ("number", "name"),
    [
        (9, "killed"),
        (15, "terminated"),
        (2, "terminated"),
        (1, "terminated"),
        (11, "crash"),
        (6, "crash"),
        (7, "crash"),
    ],
)
def test_a_signal_has_a_class(number: int, name: str) -> None:
    assert class_of_signal(number) == name


@pytest.mark.parametrize("code", [1, 3, 16, 64, 134, 137, 143, 255])
def test_other_codes_are_the_programs_own(code: int) -> None:
    assert class_of_code(code) == "program"
