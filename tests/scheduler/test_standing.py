"""How far and how fast, out of the newest events."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_train.cli.table import header, rows
from hpc_train.run.journal import Event
from hpc_train.run.layout import RunDir
from hpc_train.run.newest import Newest
from hpc_train.scheduler.standing import Standing, measure, revised_total
from hpc_train.scheduler.view import RunView


def step(number: Any, time: float = 0.0, **fields: Any) -> Event:
    return Event("step", "rank0", 0, time, {"step": number, **fields})


def test_the_first_step_of_an_attempt_does_not_count_for_its_speed() -> None:
    steps = (step(1, seconds=60.0, samples=8), step(2, seconds=2.0, samples=8), step(3, seconds=2.0, samples=8))
    assert measure(Newest(steps, is_from_start=True)).steps_per_s == 0.5
    assert measure(Newest(steps, is_from_start=True)).samples_per_s == 4.0
    assert measure(Newest(steps, is_from_start=False)).steps_per_s == pytest.approx(3 / 64)
    assert measure(Newest(steps[:1], is_from_start=True)).steps_per_s == pytest.approx(1 / 60)  # better than nothing


@pytest.mark.parametrize(
    ("step_", "total", "progress", "eta_s"),
    [
        (25, 100, 0.25, 75.0),
        (100, 100, 1.0, 0.0),
        (120, 100, 1.0, 0.0),  # trained on
        (25, None, None, None),
        (25, 0, None, None),
        (25, -5, None, None),
        (None, 100, None, None),
    ],
)
def test_progress_and_what_is_left(
    step_: int | None, total: int | None, progress: float | None, eta_s: float | None
) -> None:
    standing = Standing(step=step_, total_steps=total, steps_per_s=1.0)
    assert (standing.progress, standing.eta_s) == (progress, eta_s)


@pytest.mark.parametrize(
    ("before", "now", "total"),
    [
        ("train.py --steps 100", "train.py --steps 300", 300),
        ("train.py --steps=100 --lr 1", "train.py --lr 2 --steps 60", 60),
        ("train.py --steps 100 --lr 1", "train.py --steps 100 --lr 2", 100),
        ("train.py --config a", "train.py --config b", 100),  # it stands elsewhere
        ("train.py --steps 100", "train.py", None),
        ("train.py --steps 100", "train.py --steps many", None),
        ("train.py --steps 100 --warmup 100", "train.py --steps 300 --warmup 100", None),  # which of them is it?
        ("train.py --steps 100 --save 100", "train.py --steps 300 --save 300", 300),
        ("", "", 100),
        ("train.py --steps 100", f"train.py --steps {'9' * 5000}", None),
    ],
)
def test_the_total_of_a_changed_command(before: str, now: str, total: int | None) -> None:
    assert revised_total(100, before.split(), now.split()) == total


JUNK = st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.lists(st.integers()) | st.just(10**400)


RECORDS = st.lists(st.fixed_dictionaries({}, optional=dict.fromkeys(("step", "loss", "seconds", "samples"), JUNK)))


@given(RECORDS, JUNK, st.floats())
def test_no_journal_makes_it_fail_or_say_nonsense(records: list[dict[str, Any]], total: Any, time: float) -> None:
    steps = tuple(Event("step", "rank0", 0, time, record) for record in records)
    commit = Event("commit", "rank0", 0, time, {"step": total})
    standing = measure(Newest(steps, True, commit, Event("progress", "rank0", 0, 1.0, {"total_steps": total})))
    run = RunDir(Path("/r"))
    view = RunView(run, "r", "7", "slurm", "slurm", "running", standing=standing, walltime_s=60, time=1e9)
    (row,) = rows([view])
    assert "nan" not in [row[header().index(name)] for name in ("ago", "left", "eta", "done")]
    assert max(map(len, row)) < 60
    json.dumps(view.to_json(), allow_nan=False)
    assert standing.progress is None or 0 <= standing.progress <= 1
    assert standing.eta_s is None or standing.eta_s >= 0
