"""Which steps made the model: a run's history over its attempts, from the journal alone.

Apart because "nothing lost, nothing twice" must be computed from what was recorded while it happened. Pure; standard
library only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpc_train.run.journal import Event

__all__ = ["Lineage", "StepRecord", "trace_lineage"]


@dataclass(frozen=True)
class StepRecord:
    """One step as the attempt recorded it. digest: of the global batch's sample ids, None where none was given."""

    step: int
    attempt: int
    loss: float | None
    digest: int | None


@dataclass(frozen=True)
class Lineage:
    """The steps that the newest state of the model rests on.

    Attributes:  steps: in order, one record a step, of the last attempt that did it.   num_recomputed: steps that were
    done before and done again, because a failure came after the last commit.   resumed: per attempt the step it started
    from (0: from nothing).   missing: steps between 1 and the last that no surviving attempt recorded.   doubled: steps
    that one attempt recorded twice.
    """

    steps: tuple[StepRecord, ...]
    num_recomputed: int
    resumed: dict[int, int]
    missing: tuple[int, ...]
    doubled: tuple[int, ...]


def trace_lineage(events: Sequence[Event]) -> Lineage:
    """The lineage of a run from its merged journal (`run.journal.read_journal`).

    An attempt that resumed at step s discards what earlier attempts did after s.
    """
    history: dict[int, StepRecord] = {}
    resumed: dict[int, int] = {}
    seen: set[int] = set()
    num_recomputed = 0
    doubled: list[int] = []
    for event in events:
        if event.event == "progress" and event.attempt not in resumed:
            resumed[event.attempt] = 0  # no checkpoint was loaded before: this attempt began from nothing
        if event.event == "resumed" and isinstance(step := event.fields.get("step"), int):
            resumed[event.attempt] = step
        if event.event != "step" or not isinstance(step := event.fields.get("step"), int):
            continue
        known = history.get(step)
        if known is None or known.attempt != event.attempt:
            start = resumed.setdefault(event.attempt, 0)
            history = {n: r for n, r in history.items() if n <= start or r.attempt == event.attempt}
        else:
            doubled.append(step)
        num_recomputed += step in seen
        seen.add(step)
        history[step] = StepRecord(step, event.attempt, event.fields.get("loss"), event.fields.get("digest"))
    last = max(history, default=0)
    missing = tuple(step for step in range(1, last + 1) if step not in history)
    ordered = tuple(history[step] for step in sorted(history))
    return Lineage(ordered, num_recomputed, resumed, missing, tuple(doubled))
