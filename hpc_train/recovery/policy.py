"""The policy: from what is known of an ended attempt to one word. Pure.

Apart from the evidence (which reads files) and from the batch shell (which acts), so that every row of the policy is a
row of a table test. Standard library only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpc_train.run.marks import ExitMark, first_cause

__all__ = ["Decision", "Evidence", "Limits", "Past", "decide"]

WORDS = ("done", "again", "again-elsewhere", "hold", "stop")

# Running the same again cannot help: the user or the site must act first.
_NEVER = {
    "usage": "correct the program's arguments",
    "data": "repair or replace the data (hpc-train data verify, hpc-train checkpoint verify)",
    "permission": "ask for the missing right",
    "config": "correct the job file or the program's configuration",
    "launch": "correct the launch mode",
    "forbidden": "the program asked not to be run again",
    "bug": "report the traceback in the log: this is a fault of hpc-train",
}
_HOLD = {
    "no_space": "free space or raise the quota, then: hpc-train requeue RUN",
    "io": "see to the file system, then: hpc-train requeue RUN",
}
_SUSPECT_NODE = ("infrastructure", "hang", "peer_lost", "node_fail")


@dataclass(frozen=True)
class Limits:
    """How often a run may go on.

    Attributes:  max_failures: attempts in a row that failed without a new checkpoint.   max_attempts: in all.
    can_continue: False where the job file or the site forbids to run again.   num_nodes: of the allocation.
    """

    max_failures: int
    max_attempts: int
    can_continue: bool = True
    num_nodes: int = 1


@dataclass(frozen=True)
class Past:
    """An earlier attempt, as far as the policy needs it."""

    failure: str
    signature: str
    made_progress: bool


@dataclass(frozen=True)
class Evidence:
    """What is known of an attempt that has ended.

    Attributes:  is_done: all ranks ended cleanly.   is_cancelled: its user cancelled the run.   launcher_code: exit code
    of srun or mpirun, None where no shell lived to see it.   start_step: the committed step it could start from.
    last_commit: newest committed step now.   silent: ranks that wrote neither a mark nor an end, with their nodes.
    """

    attempt: int
    is_done: bool
    is_cancelled: bool
    launcher_code: int | None
    marks: Sequence[ExitMark]
    silent: Sequence[tuple[int, str]]
    start_step: int | None
    last_commit: int | None
    past: Sequence[Past]
    stop_reason: str = ""

    @property
    def made_progress(self) -> bool:
        """Whether a newer checkpoint exists than the attempt started from."""
        return self.last_commit is not None and (self.start_step is None or self.last_commit > self.start_step)


@dataclass(frozen=True)
class Decision:
    """What happens next, and why.

    Attributes:  word: done, again, again-elsewhere, hold or stop.   failure: class of the attempt ("done" if none).
    reason: one line for a person.   rank, node, step, phase: the first failing rank, as far as known.
    exclude: nodes that the next attempt should avoid.   code: what the batch script exits with if it stops here.
    """

    word: str
    failure: str
    reason: str
    code: int = 0
    rank: int | None = None
    node: str = ""
    step: int | None = None
    phase: str = ""
    signature: str = ""
    made_progress: bool = False
    exclude: tuple[str, ...] = ()
    last_commit: int | None = None


def decide(evidence: Evidence, limits: Limits) -> Decision:
    """The word for an ended attempt. Deterministic; reads nothing but its arguments."""
    if evidence.is_done:
        return Decision("done", "done", "all ranks ended cleanly", last_commit=evidence.last_commit)
    mark = find_cause(evidence)
    word, reason = ("stop", "cancelled by its user") if evidence.is_cancelled else _word(mark, evidence, limits)
    failure = "cancelled" if evidence.is_cancelled else mark.failure
    exclude = _suspects(mark, evidence, limits) if word == "again" else ()
    return Decision(
        word="again-elsewhere" if exclude else word,
        failure=failure,
        reason=f"{mark.cause}; {reason}",
        code=0 if failure == "cancelled" else mark.code or 1,
        rank=mark.rank if mark.rank >= 0 else None,
        node=mark.node,
        step=mark.step,
        phase=mark.phase,
        signature=_signature(mark),
        made_progress=evidence.made_progress,
        exclude=exclude,
        last_commit=evidence.last_commit,
    )


def find_cause(evidence: Evidence) -> ExitMark:
    """The first cause as a mark, made up from the circumstances where no rank could write one."""
    mark = first_cause(list(evidence.marks))
    told_only = mark is None or mark.failure in ("terminated", "peer_lost")
    if told_only and evidence.silent and (mark is not None or evidence.launcher_code is None):
        rank, node = evidence.silent[0]
        others = f" and {len(evidence.silent) - 1} more" if len(evidence.silent) > 1 else ""
        cause = f"rank {rank}{others} vanished without a word: node {node} failed, or everything on it was killed"
        return ExitMark(writer=-1, rank=rank, node=node, failure="node_fail", cause=cause, code=76)
    if told_only and evidence.stop_reason:
        step = None if mark is None else mark.step
        cause = f"ended before it could save ({evidence.stop_reason})"
        return ExitMark(writer=-1, rank=-1, node="", failure="timeout", cause=cause, code=143, step=step)
    if mark is not None:
        return mark
    if evidence.launcher_code is None:
        cause = "the attempt ended without a word from any node"
        return ExitMark(writer=-1, rank=-1, node="", failure="node_fail", cause=cause, code=76)
    code = evidence.launcher_code
    cause = f"the launcher ended with code {code}, but no rank said that it had finished"
    return ExitMark(writer=-1, rank=-1, node="", failure="unknown", cause=cause, code=code or 1)


def _word(mark: ExitMark, evidence: Evidence, limits: Limits) -> tuple[str, str]:
    failure = mark.failure
    if failure in _NEVER:
        return "stop", _NEVER[failure]
    if failure in _HOLD:
        return "hold", _HOLD[failure]
    if failure == "superseded":
        return "stop", "another attempt goes on with the run"
    if not limits.can_continue:
        return "stop", "continuing is switched off ([recovery] requeue = false)"
    if evidence.attempt + 1 >= limits.max_attempts:
        return "hold", f"the limit of {limits.max_attempts} attempts is reached"
    if failure == "stopped":
        # A stop that saved nothing new would loop for ever at full price.
        if evidence.made_progress or _idle_stops(evidence) < limits.max_failures:
            return "again", "saved on request; goes on from the last checkpoint"
        return "hold", f"stopped {limits.max_failures} times in a row without a new checkpoint"
    if failure in ("program", "timeout", "unknown", "crash") and not evidence.made_progress:
        if failure in ("program", "timeout"):
            return "stop", "no new checkpoint in this attempt: running the same again would end the same way"
        if any(past.signature == _signature(mark) and not past.made_progress for past in evidence.past):
            return "stop", "the same end as before, without a new checkpoint"
    failures = _failures_in_a_row(evidence)
    if failures >= limits.max_failures:
        return "hold", f"{failures} failures in a row without a new checkpoint"
    start = "goes on from the last checkpoint" if evidence.last_commit is not None else "starts again"
    return "again", f"{start} (failure {failures} of at most {limits.max_failures} without a new checkpoint)"


def _failures_in_a_row(evidence: Evidence) -> int:
    count = 0 if evidence.made_progress else 1
    if count:
        for past in reversed(evidence.past):
            if past.made_progress:
                break
            count += past.failure != "stopped"
    return count


def _idle_stops(evidence: Evidence) -> int:
    count = 1
    for past in reversed(evidence.past):
        if past.made_progress or past.failure != "stopped":
            break
        count += 1
    return count


def _suspects(mark: ExitMark, evidence: Evidence, limits: Limits) -> tuple[str, ...]:
    if limits.num_nodes < 2 or mark.failure not in _SUSPECT_NODE or not mark.node or mark.node == "?":
        return ()
    if mark.failure == "peer_lost":  # the rank that tells of a lost peer is not the one that was lost
        return ()
    gone = {node for _, node in evidence.silent} if mark.failure == "node_fail" else {mark.node}
    return tuple(sorted(gone)) if len(gone) < limits.num_nodes else ()


def _signature(mark: ExitMark) -> str:
    """What makes two failures the same: class, code and the cause without its numbers."""
    return f"{mark.failure}/{mark.code}/{''.join(c for c in mark.cause[:200] if not c.isdigit())}"
