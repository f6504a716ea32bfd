"""What became of a fault and of a run, from the journal alone. Pure.

Apart from what runs the soak, because these are its claims: a wrong sum here would be a wrong promise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hpc_train.observe.lineage import trace_lineage
from hpc_train.run.journal import Event
from soaking.plan import EXPECTATIONS

__all__ = ["Injection", "Losses", "Outcome", "Sickness", "find_false_alarms", "find_losses", "find_outcome"]


@dataclass(frozen=True)
class Injection:
    """A fault that was done. time: seconds since 1970, on the clock that all hosts of the cluster share."""

    kind: str
    run: str
    attempt: int
    rank: int
    node: str
    time: float


@dataclass(frozen=True)
class Outcome:
    """What hpc-train made of it; None where that never came.

    Attributes:  failure, rank, node: as the decision named them.   detect_s: from the fault to the decision.
    resume_s: from the fault to the first step of a later attempt.   recomputed: steps of the attempt that were done
    again.   is_class_right, is_name_right: as expected of this kind of fault.
    """

    failure: str | None
    rank: int | None
    node: str
    detect_s: float | None
    resume_s: float | None
    recomputed: int | None
    is_class_right: bool
    is_name_right: bool


@dataclass(frozen=True)
class Sickness:
    """A node that could not work for some time [s since 1970]: an attempt that got it then was bound to fail."""

    node: str
    since: float
    until: float


@dataclass(frozen=True)
class Losses:
    """What a finished run lacks against the plan of its data.

    Attributes:  missing: steps that no surviving attempt did.   doubled: steps done twice in one attempt.   wrong:
    steps whose batch held other samples than the undisturbed run's.
    """

    missing: int
    doubled: int
    wrong: int


def find_outcome(injection: Injection, events: Sequence[Event]) -> Outcome:
    """What became of one fault, from the run's merged journal."""
    expected = EXPECTATIONS[injection.kind]
    decided = [event for event in events if event.event == "decision" and event.attempt == injection.attempt]
    later = [event for event in events if event.event == "step" and event.attempt > injection.attempt]
    decision = decided[0] if decided else None
    fields = {} if decision is None else decision.fields
    failure, rank, node = fields.get("failure"), fields.get("rank"), str(fields.get("node", ""))
    named = {"rank": rank == injection.rank, "node": node == injection.node, "": True}
    recomputed = None
    if later:
        done = [
            event.fields["step"] for event in events if event.event == "step" and event.attempt <= injection.attempt
        ]
        recomputed = max(0, max(done, default=0) - trace_lineage(events).resumed.get(later[0].attempt, 0))
    return Outcome(
        failure=failure,
        rank=rank,
        node=node,
        detect_s=None if decision is None else round(decision.time - injection.time, 2),
        resume_s=round(later[0].time - injection.time, 2) if later else None,
        recomputed=recomputed,
        is_class_right=failure in expected.classes,
        is_name_right=named[expected.names],
    )


def find_false_alarms(
    events: Sequence[Event],
    hit: Sequence[int],
    nodes: Mapping[int, Sequence[str]],
    sick: Sequence[Sickness],
) -> list[str]:
    """Decisions that no fault explains, in words.

    Args:  hit: attempts at which a fault was aimed.   nodes: of each attempt.   sick: nodes that could not work.
    """
    began = {event.attempt: event.time for event in events if event.event == "attempt_started"}
    found = []
    for event in events:
        if event.event != "decision" or event.fields.get("word") == "done" or event.attempt in hit:
            continue
        since = began.get(event.attempt, event.time)
        mine = set(nodes.get(event.attempt, ()))
        if any(case.node in mine and case.since <= event.time and since <= case.until for case in sick):
            continue
        found.append(f"attempt {event.attempt}: {event.fields.get('failure')}: {event.fields.get('reason')}")
    return found


def find_losses(events: Sequence[Event], planned: Sequence[int]) -> Losses:
    """What is lost or repeated. `planned`: the digest of each step's samples, from step 1 on."""
    lineage = trace_lineage(events)
    known = {record.step: record.digest for record in lineage.steps}
    missing = [step for step in range(1, len(planned) + 1) if step not in known]
    wrong = [step for step, digest in enumerate(planned, start=1) if step in known and known[step] != digest]
    return Losses(len(missing), len(lineage.doubled), len(wrong))
