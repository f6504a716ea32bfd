"""The soak's report: one JSON document, and from it a Markdown table. Pure.

Apart so that the table in the documentation can be written again from a kept report.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from soaking.findings import Injection, Losses, Outcome
from soaking.plan import EXPECTATIONS

__all__ = ["Case", "Ended", "find_faults_of_ours", "table", "to_json"]


OUTRUN = "done"  # the run came to its end before anybody could notice the fault


@dataclass(frozen=True)
class Case:
    """One fault and what became of it."""

    injection: Injection
    outcome: Outcome


@dataclass(frozen=True)
class Ended:
    """One run of the soak. end: the last decision's word, "cut short" where time ran out, "hung" where nothing came.

    is_equal: its last checkpoint equals the undisturbed run's, bit for bit; None where it did not come to its end, or
    went on at another size.
    """

    run: str
    ranks: int
    attempts: int
    end: str
    is_equal: bool | None
    losses: Losses | None
    false_alarms: tuple[str, ...]


def to_json(cases: Sequence[Case], runs: Sequence[Ended], about: dict[str, Any]) -> dict[str, Any]:
    """The whole report."""
    return {
        "format": "hpc-train-soak",
        "version": 1,
        **about,
        "faults": [{**asdict(case.injection), "outcome": asdict(case.outcome)} for case in cases],
        "runs": [asdict(run) for run in runs],
    }


def find_faults_of_ours(cases: Sequence[Case], runs: Sequence[Ended]) -> list[str]:
    """What must not happen, in words; empty where every promise held."""
    found = []
    for run in runs:
        if run.end == "hung":
            found.append(f"{run.run} hung")
        elif run.end not in ("done", "cut short"):
            found.append(f"{run.run} was given up: {run.end}")
        if run.is_equal is False:
            found.append(f"{run.run} differs from the undisturbed run")
        if run.losses is not None and run.losses != Losses(0, 0, 0):
            found.append(f"{run.run} lost or repeated samples: {run.losses}")
        found += [f"{run.run}: false alarm: {text}" for text in run.false_alarms]
    for case in cases:
        if case.outcome.failure not in (None, OUTRUN) and not case.outcome.is_class_right:
            kind, at = case.injection.kind, f"{case.injection.run} attempt {case.injection.attempt}"
            found.append(f"{kind} was taken for {case.outcome.failure} ({at})")
    return found


def table(cases: Sequence[Case], runs: Sequence[Ended]) -> str:
    """Markdown: one line a kind of fault, and one sentence on the runs."""
    lines = [
        "| fault | times | class right | culprit named | detected after [s] | first step after [s] | steps redone |",
        "|---|---|---|---|---|---|---|",
    ]
    for kind in EXPECTATIONS:
        outcomes = [case.outcome for case in cases if case.injection.kind == kind]
        of_kind = [outcome for outcome in outcomes if outcome.failure != OUTRUN]
        if of_kind:
            lines.append(_line(kind, of_kind))
    return "\n".join([*lines, "", _sentence(cases, runs)]) + "\n"


def _sentence(cases: Sequence[Case], runs: Sequence[Ended]) -> str:
    ended = [run for run in runs if run.end == "done"]
    equal, hung = sum(run.is_equal is True for run in ended), sum(run.end == "hung" for run in runs)
    comparable = sum(run.is_equal is not None for run in ended)
    outrun = sum(case.outcome.failure == OUTRUN for case in cases)
    alarms = sum(len(run.false_alarms) for run in runs)
    lost = sum(run.losses.missing + run.losses.doubled + run.losses.wrong for run in ended if run.losses is not None)
    return (
        f"{len(runs)} runs, {len(ended)} of them to their end, {sum(run.attempts for run in runs)} attempts, "
        f"{len(cases)} faults, {outrun} of them outrun by the end of the run. "
        f"Bit-equal to the undisturbed run: {equal} of {comparable}. "
        f"Samples lost or repeated: {lost}. Hangs: {hung}. False alarms: {alarms}."
    )


def _line(kind: str, outcomes: Sequence[Outcome]) -> str:
    num = len(outcomes)
    names = EXPECTATIONS[kind].names
    named = f"{sum(outcome.is_name_right for outcome in outcomes)}/{num} ({names})" if names else "–"
    cells = (
        kind,
        str(num),
        f"{sum(outcome.is_class_right for outcome in outcomes)}/{num}",
        named,
        _spread([outcome.detect_s for outcome in outcomes]),
        _spread([outcome.resume_s for outcome in outcomes]),
        _spread([outcome.recomputed for outcome in outcomes]),
    )
    return f"| {' | '.join(cells)} |"


def _spread(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "–"
    if len(known) == 1:
        return f"{known[0]:.0f}"
    return f"{median(known):.0f} ({min(known):.0f}–{max(known):.0f})"
