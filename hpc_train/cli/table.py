"""Runs as a table: which columns, how they are written for people, and which of them a narrow terminal keeps.

Apart from `status` because one look and a repeated one draw the same lines.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hpc_train.cli.text import human_duration, one_line, shortened

if TYPE_CHECKING:
    from hpc_train.scheduler.view import RunView

__all__ = ["fit_lines", "header", "rows"]

NOTHING = "-"
MIN_REASON = 8
WANTED_REASON = 40  # columns are left out until the last one has so much room


@dataclass(frozen=True)
class _Column:
    """leaves: the order in which columns give way to the reason; 0 for one that never does."""

    name: str
    leaves: int
    text: Callable[[RunView], str]


def _step(view: RunView) -> str:
    if view.step is None:
        return NOTHING
    return f"{view.step}/{view.total_steps}" if view.total_steps else str(view.step)


def _done(view: RunView) -> str:
    progress = view.standing.progress
    return NOTHING if progress is None else f"{math.floor(100 * progress)}%"  # 100 % is the end, not nearly


def _speed(view: RunView) -> str:
    if view.standing.samples_per_s is not None:
        return f"{_three_digits(view.standing.samples_per_s)} samples/s"
    return NOTHING if view.standing.steps_per_s is None else f"{_three_digits(view.standing.steps_per_s)} steps/s"


def _three_digits(value: float) -> str:
    return f"{value:.0f}" if 100 <= value < 1e7 else f"{value:.3g}"


def _loss(view: RunView) -> str:
    return NOTHING if view.loss is None else f"{view.loss:.4f}" if abs(view.loss) < 1e6 else f"{view.loss:.3g}"


def _duration(seconds: float | None) -> str:
    return NOTHING if seconds is None else human_duration(seconds)


_COLUMNS = (
    _Column("run", 0, lambda view: view.run.name),
    _Column("job", 2, lambda view: view.job_id_shown),
    _Column("site", 1, lambda view: view.site or NOTHING),
    _Column("state", 0, lambda view: view.state),
    _Column("attempts", 3, lambda view: str(view.attempts)),
    _Column("step", 0, _step),
    _Column("done", 9, _done),
    _Column("speed", 4, _speed),
    _Column("loss", 5, _loss),
    _Column("saved", 8, lambda view: NOTHING if view.last_commit is None else str(view.last_commit)),
    _Column("ago", 7, lambda view: _duration(view.age_s(view.standing.commit_time))),
    _Column("left", 6, lambda view: _duration(view.walltime_left_s)),
    _Column("eta", 10, lambda view: _duration(view.eta_s)),
    _Column("reason", 0, lambda view: shortened(view.reason) or view.unwatched),
)


def header() -> list[str]:
    """The names of all columns."""
    return [column.name for column in _COLUMNS]


def rows(views: Sequence[RunView]) -> list[list[str]]:
    """One row of texts a run, without control characters; "-" for what is not known."""
    return [[one_line(column.text(view)) for column in _COLUMNS] for view in views]


def fit_lines(table: Sequence[Sequence[str]], width: int) -> list[str]:
    """The header and the rows in columns of a terminal's width.

    Columns of which nothing is known are left out, then others until the reason has room; then the reason is cut. A
    run's name is whole, whatever the width.
    """
    from rich.cells import cell_len, set_cell_size  # a letter may be two cells wide

    sizes = [max(map(cell_len, column)) for column in zip(*table, strict=True)]
    kept = [number for number, column in enumerate(_COLUMNS) if not column.leaves or _is_told(table, number)]
    for number in sorted(kept, key=lambda number: _COLUMNS[number].leaves):
        if _fixed(sizes, kept) + min(sizes[-1], WANTED_REASON) <= width:
            break
        if _COLUMNS[number].leaves:
            kept.remove(number)
    room = max(width - _fixed(sizes, kept), MIN_REASON)
    lines = []
    for row in table:
        last = row[-1] if cell_len(row[-1]) <= room else set_cell_size(row[-1], room - 1).rstrip() + "…"
        padded = [set_cell_size(row[number], sizes[number]) for number in kept[:-1]]
        lines.append("  ".join([*padded, last]).rstrip())
    return lines


def _is_told(table: Sequence[Sequence[str]], number: int) -> bool:
    return any(row[number] != NOTHING for row in table[1:])


def _fixed(sizes: Sequence[int], kept: Sequence[int]) -> int:
    """Cells of all columns but the last, with the gaps."""
    return sum(sizes[number] + 2 for number in kept[:-1])
