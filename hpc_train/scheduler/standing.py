"""How far a run is and how fast it goes, in numbers, out of its newest journal events. Pure.

Apart from the view so that each number has one definition: tables, JSON and `why` show the same.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from hpc_train.run.journal import Event
from hpc_train.run.newest import Newest

__all__ = ["Standing", "measure", "revised_total", "sane_seconds"]

MAX_COUNT = 1 << 63  # JSON's whole numbers have no end; a float's have
_COUNT = re.compile(r"[0-9]{1,18}")
MAX_SECONDS = 100 * 365 * 86400.0


@dataclass(frozen=True)
class Standing:
    """What the journal says; None where it says nothing.

    Attributes:  loss: of the newest step that has one.   steps_per_s, samples_per_s: over the newest steps of one
    attempt, saves included, its first step left out.   step_time, commit_time: when the newest step and checkpoint were
    done, on the clock of the node that wrote them.   attempt_time: when the newest attempt began.   tells_steps: the
    program has said a step, or that it will.
    """

    step: int | None = None
    total_steps: int | None = None
    loss: float | None = None
    steps_per_s: float | None = None
    samples_per_s: float | None = None
    step_time: float | None = None
    last_commit: int | None = None
    commit_time: float | None = None
    attempt_time: float | None = None
    tells_steps: bool = False

    @property
    def progress(self) -> float | None:
        """The share of the steps that is done, 0 to 1."""
        if self.step is None or not self.total_steps or self.total_steps < 0:
            return None
        return min(max(self.step / self.total_steps, 0.0), 1.0)

    @property
    def eta_s(self) -> float | None:
        """Seconds of computing that are left at the present speed, without waiting in a queue."""
        if self.progress is None or not self.steps_per_s or self.step is None or self.total_steps is None:
            return None
        return sane_seconds(max(0, self.total_steps - self.step) / self.steps_per_s)


def measure(newest: Newest) -> Standing:
    """The numbers of a run's newest events; values of the wrong kind count as none."""
    counted = [event for event in newest.steps if _int(event, "step") is not None]
    losses = (_number(event, "loss") for event in reversed(newest.steps))
    # The first step of an attempt compiles, fills caches and waits for the first batch.
    timed = counted[1:] if newest.is_from_start and len(counted) > 1 else counted
    seconds = sum(max(0.0, _finite(event, "seconds")) for event in timed)
    samples = sum(max(0.0, _finite(event, "samples")) for event in timed)
    last = counted[-1] if counted else None
    return Standing(
        step=None if last is None else _int(last, "step"),
        total_steps=_int(newest.progress, "total_steps"),
        loss=next((loss for loss in losses if loss is not None), None),
        steps_per_s=len(timed) / seconds if seconds > 0 else None,
        samples_per_s=samples / seconds if seconds > 0 and samples > 0 else None,
        step_time=None if last is None else last.time,
        last_commit=_int(newest.commit, "step"),
        commit_time=None if newest.commit is None else newest.commit.time,
        attempt_time=None if newest.started is None else newest.started.time,
        tells_steps=last is not None or newest.progress is not None,
    )


def revised_total(total: int, before: Sequence[str], now: Sequence[str]) -> int | None:
    """Where a run ends whose command has changed since it said so, until it says so again; None if that is not known.

    Args:  before, now: both commands. An option that held the total then, as `--steps 1000`, holds the new one now.
    """
    then, later = _numbers(before), _numbers(now)
    flags = [flag for flag, value in then.items() if value == total]
    totals = {later.get(flag) for flag in flags}
    if not flags:
        return total  # it stands elsewhere, as in a file
    return totals.pop() if len(totals) == 1 else None


def _numbers(command: Sequence[str]) -> dict[str, int]:
    """The options of a command that have a whole number: `--steps 10` and `--steps=10` alike."""
    pairs = [word.split("=", 1) for word in command if "=" in word]
    pairs += [[word, value] for word, value in pairwise(command)]
    return {flag: int(text) for flag, text in pairs if flag.startswith("-") and _COUNT.fullmatch(text)}


def sane_seconds(seconds: float) -> float | None:
    """A time that a person can read, not below zero; None for one of a century or of no number."""
    return max(0.0, seconds) if seconds < MAX_SECONDS else None


def _int(event: Event | None, key: str) -> int | None:
    value: Any = None if event is None else event.fields.get(key)
    return value if type(value) is int and abs(value) < MAX_COUNT else None


def _number(event: Event, key: str) -> float | None:
    value: Any = event.fields.get(key)
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def _finite(event: Event, key: str) -> float:
    value = _number(event, key)
    return value if value is not None and math.isfinite(value) else 0.0
