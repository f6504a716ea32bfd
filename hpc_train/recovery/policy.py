"""The policy: from what is known of an ended attempt to one word. Pure.

Apart from the evidence (which reads files) and from the batch shell (which acts), so that every row of the policy is a
row of a table test. Standard library only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hpc_train.recovery.outside import CANCEL, NODE_FAILURE, PREEMPTION, REQUEUE, TIME_LIMIT
from hpc_train.run.marks import SECONDARY, ExitMark, class_of_code, first_cause

__all__ = ["GOES_ON", "WORDS", "Decision", "Evidence", "Limits", "Past", "decide", "delay_s"]

WORDS = ("done", "again", "again-elsewhere", "hold", "stop")
GOES_ON = ("again", "again-elsewhere")

# Running the same again cannot help: the user or the site must act first.
_NEVER = {
    "usage": "correct the program or its arguments",
    "data": "repair or replace the data (see: hpc-train data verify DATASET, hpc-train checkpoint verify RUN)",
    "permission": "ask for the missing right",
    "config": "correct the job file or the program's configuration",
    "launch": "correct the launch mode",
    "forbidden": "the program asked not to be run again",
    "bug": "report the traceback in the log: this is a fault of hpc-train",
}
# What of class data is at fault, by the first word of its cause: the name of the error that a rank raised.
_NEVER_OF_DATA = {
    "DataError": "a dataset is damaged, missing or does not fit; hpc-train data verify DATASET names damage",
    "CheckpointError": "a checkpoint is damaged or of another program; hpc-train checkpoint verify RUN names damage",
}
_HOLD = {
    "out_of_memory": "give it more memory (hpc-train resume RUN --memory SIZE), fewer ranks a node, or a smaller batch",
    "no_space": "free space or raise the quota, then: hpc-train requeue RUN",
    "io": "see to the file system, then: hpc-train requeue RUN",
}
# On this machine alone, which gives each job all its memory.
_HOLD_HERE = {"out_of_memory": "give it fewer ranks (hpc-train resume RUN --ranks-per-node N), or a smaller batch"}
# The rank that tells of a lost peer is not the one that was lost: peer_lost blames no node.
_SUSPECT_NODE = ("infrastructure", "hang", "node_fail")
_CLASS_OF_ENDER = {NODE_FAILURE: "node_fail", PREEMPTION: "preempted", REQUEUE: "preempted"}
_SUSPECT_NODE_IF_TWICE = ("crash", "killed", "unknown")
# What an end from outside can look like from within: a data worker that dies of Slurm's SIGTERM is an exception of the
# program's own. What only a person can mend is not undone by it.
_MAY_BE_FROM_OUTSIDE = ("stopped", "program", "killed", "crash", "terminated", "peer_lost", "unknown")
_NO_FAILURE = ("stopped", "preempted")  # nobody's fault: they are not counted, and nothing is waited for after them


@dataclass(frozen=True)
class Limits:
    """How often a run may go on.

    Attributes:  max_failures: so many attempts in a row that failed without a new checkpoint hold the run; 0: any
    failure does.   max_attempts: in all.   can_continue: False where the job file or the site forbids to run again.
    num_nodes: of the allocation.   num_ranks: declared; 0 if not known.   can_move: the next attempt can be given other
    hosts; False on this machine alone.   backoff_s: between a failure and the next attempt.
    """

    max_failures: int
    max_attempts: int
    can_continue: bool = True
    num_nodes: int = 1
    num_ranks: int = 0
    can_move: bool = True
    backoff_s: int = 0


@dataclass(frozen=True)
class Past:
    """An earlier attempt, as far as the policy needs it."""

    failure: str
    signature: str
    made_progress: bool
    node: str = ""


@dataclass(frozen=True)
class Evidence:
    """What is known of an attempt that has ended.

    Attributes:  is_done: all ranks ended cleanly.   is_cancelled: its user cancelled the run.   launcher_code: exit
    code of srun or mpirun, None where no shell lived to see it.   start_step: the committed step it could start from.
    last_commit: newest committed step now.   silent: ranks that started but wrote neither a mark nor an end, with their
    nodes.   ended: ranks that ended with code 0, the first of them first, with their nodes.   abrupt: those of them
    that left past every exit hook.   num_started: ranks that started at all.   num_alone: ranks that ended cleanly and
    had nothing to do with others.   stop_reason: why the scheduler wanted the attempt to end, "" if it did not.
    seen_to_end: ranks whose end the launcher reported.   ended_by: who ended the job from outside, in
    recovery/outside's words.
    cleared: the last attempt after which a person let the run go on; -1 if none. Earlier ones no longer count.
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
    ended: Sequence[tuple[int, str]] = ()
    abrupt: Sequence[tuple[int, str]] = ()
    num_started: int = 0
    num_alone: int = 0
    seen_to_end: frozenset[int] = frozenset()
    ended_by: str = ""
    cleared: int = -1

    @property
    def vanished(self) -> list[tuple[int, str]]:
        """Silent ranks whose end the launcher did not see either: what is left of a node that went away."""
        return [(rank, node) for rank, node in self.silent if rank not in self.seen_to_end]

    @property
    def made_progress(self) -> bool:
        """Whether a newer checkpoint exists than the attempt started from."""
        return self.last_commit is not None and (self.start_step is None or self.last_commit > self.start_step)


@dataclass(frozen=True)
class Decision:
    """What happens next, and why.

    Attributes:  word: done, again, again-elsewhere, hold or stop.   failure: class of the attempt ("done" if none).
    reason: one line for a person.   cause: that line without what follows from it, "" in a record of before it was
    kept.   rank, node, step, phase: the first failing rank, as far as known.
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
    cause: str = ""


def decide(evidence: Evidence, limits: Limits) -> Decision:
    """The word for an ended attempt. Deterministic; reads nothing but its arguments."""
    if evidence.is_done:
        return Decision("done", "done", _clean_end(evidence, limits), last_commit=evidence.last_commit)
    mark = find_cause(evidence, limits.num_ranks)
    if evidence.ended_by in (PREEMPTION, REQUEUE) and mark.failure in _MAY_BE_FROM_OUTSIDE:
        mark = replace(mark, failure="preempted")
    is_cancelled = evidence.is_cancelled or evidence.ended_by == CANCEL
    word, reason = ("stop", "cancelled by its user") if is_cancelled else _word(mark, evidence, limits)
    failure = "cancelled" if is_cancelled else mark.failure
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
        cause=mark.cause,
    )


def _clean_end(evidence: Evidence, limits: Limits) -> str:
    reason = "all ranks ended cleanly"
    if not 1 < limits.num_ranks <= evidence.num_alone:
        return reason
    remedy = "call torch.distributed.init_process_group or hpc_train.init if they belong together"
    return f"{reason}, but none met another: each of the {limits.num_ranks} worked by itself; {remedy}"


def delay_s(decision: Decision, limits: Limits) -> int:
    """Whole seconds that the next attempt has to wait: the back-off after a failure, else none."""
    if decision.word not in GOES_ON or decision.failure in _NO_FAILURE:
        return 0
    return limits.backoff_s


def find_cause(evidence: Evidence, num_ranks: int = 0) -> ExitMark:
    """The first cause as a mark, made up from the circumstances where no rank could write one.

    Args:  num_ranks: declared ranks, 0 if not known.
    """
    mark = first_cause(evidence.marks)
    if mark is not None and mark.failure == "hang" and not mark.stuck:
        silent = _telling_silence(evidence.silent, evidence.marks)
        if silent:
            return _blame_the_silent(mark, silent)
    if mark is not None and mark.failure not in SECONDARY:
        lost = _lost_nodes(evidence) if mark.failure == "crash" else []
        return _blame_the_lost(mark, lost) if lost else mark
    if evidence.abrupt and (mark is not None or _spared_a_node(evidence)):
        rank, node = evidence.abrupt[0]
        cause = "left with code 0 by os._exit, past MPI_Finalize, while other ranks still ran"
        return ExitMark(writer=-1, rank=rank, node=node, failure="program", cause=cause, code=1)
    # Where every rank is gone, the launcher itself went down, if it lived to tell: no node stands out.
    vanished = evidence.vanished
    stands_out = evidence.launcher_code is None or len(vanished) < evidence.num_started
    if vanished and stands_out and not _was_ended(evidence):
        return _blame_the_vanished(vanished)
    if evidence.stop_reason:
        step = None if mark is None else mark.step
        cause = f"ended before it could save ({evidence.stop_reason})"
        failure = _CLASS_OF_ENDER.get(evidence.ended_by, "timeout")
        return ExitMark(writer=-1, rank=-1, node="", failure=failure, cause=cause, code=143, step=step)
    if mark is not None and mark.failure == "peer_lost" and evidence.ended and not evidence.silent:
        return _blame_the_early(mark, evidence.ended)
    if mark is not None and len(evidence.silent) == 1 and not vanished:
        rank, node = evidence.silent[0]
        cause = "killed from outside (SIGKILL) together with its monitor, before either could say a word"
        return ExitMark(writer=-1, rank=rank, node=node, failure="killed", cause=cause, code=137)
    if mark is not None and (mark.failure == "peer_lost" or evidence.num_started >= num_ranks):
        return mark
    return _cause_without_marks(evidence, num_ranks)


def _telling_silence(silent: Sequence[tuple[int, str]], marks: Sequence[ExitMark]) -> list[tuple[int, str]]:
    """The silent ranks whose silence tells that they hung: of whole nodes, and not the most.

    A rank that hangs is ended only once every monitor that lives has spoken (`launch.verdict.roll_call_s`). Where most
    are silent all the same, all were killed before they could speak. Also ranks that the launcher saw end: frozen ones
    are woken to be killed.
    """
    nodes_that_spoke = {mark.node for mark in marks}
    telling = [(rank, node) for rank, node in silent if node not in nodes_that_spoke]
    return telling if len(telling) <= len(marks) else []


def _blame_the_silent(mark: ExitMark, silent: Sequence[tuple[int, str]]) -> ExitMark:
    """Who cannot even say that it waits is who the others waited for."""
    rank, node = silent[0]
    others = f" and {len(silent) - 1} more" if len(silent) > 1 else ""
    cause = f"rank {rank}{others} on node {node} did not answer any more; rank {mark.writer} waited: {mark.cause}"
    return ExitMark(writer=-1, rank=rank, node=node, failure="hang", cause=cause, code=76, step=mark.step)


def _was_ended(evidence: Evidence) -> bool:
    """Whether the scheduler ended all ranks at once: no node's fault."""
    return evidence.ended_by in (PREEMPTION, TIME_LIMIT)


def _blame_the_vanished(vanished: Sequence[tuple[int, str]]) -> ExitMark:
    rank, node = vanished[0]
    others = f" and {len(vanished) - 1} more" if len(vanished) > 1 else ""
    cause = f"rank {rank}{others} vanished without a word: node {node} failed, or everything on it was killed"
    return ExitMark(writer=-1, rank=rank, node=node, failure="node_fail", cause=cause, code=76)


def _lost_nodes(evidence: Evidence) -> list[tuple[int, str]]:
    """The ranks of whole nodes of which nothing is left, though the launcher told of other ranks' ends.

    Where a rank crashes by itself, srun tells of the end of every other one too.
    """
    if _was_ended(evidence) or not evidence.seen_to_end:
        return []
    spoke = {mark.node for mark in evidence.marks} | {node for _, node in evidence.ended}
    spoke |= {node for rank, node in evidence.silent if rank in evidence.seen_to_end}
    return [(rank, node) for rank, node in evidence.vanished if node not in spoke]


def _blame_the_lost(mark: ExitMark, lost: Sequence[tuple[int, str]]) -> ExitMark:
    """Who crashed while a whole node went away crashed of that: MPICH does so (SIGSEGV) in about half of all cases."""
    vanished = _blame_the_vanished(lost)
    return replace(vanished, cause=f"{vanished.cause}; rank {mark.writer} then: {mark.cause}", step=mark.step)


def _blame_the_early(mark: ExitMark, ended: Sequence[tuple[int, str]]) -> ExitMark:
    """Nobody failed: who lost a peer lost one that had ended as if all were over."""
    rank, node = ended[0]
    cause = (
        f"rank {rank} ended with code 0 while rank {mark.writer} still worked with it: fewer batches on one rank, an "
        f"early return, or sys.exit; rank {mark.writer} then: {mark.cause}"
    )
    return ExitMark(writer=-1, rank=rank, node=node, failure="program", cause=cause, code=1, step=mark.step)


def _spared_a_node(evidence: Evidence) -> bool:
    """Whether silent ranks lie on the node of one that had its say: the launcher killed them there, no node failed.

    MPICH's mpiexec kills at once, monitors too, where a rank has gone past MPI_Finalize.
    """
    spoke = {node for _, node in evidence.abrupt}
    return evidence.launcher_code is not None and any(node in spoke for _, node in evidence.vanished)


def _cause_without_marks(evidence: Evidence, num_ranks: int) -> ExitMark:
    code = evidence.launcher_code
    if code is None:
        failure, cause = "node_fail", "the attempt ended without a word from any node"
    elif 0 < evidence.num_started < num_ranks:
        missing = f"{num_ranks - evidence.num_started} of {num_ranks} ranks never started"
        failure, cause = "infrastructure", f"{missing}; the log of their nodes may say why (launcher code {code})"
    else:
        # Launchers lose codes (srun says 143 for all), but one that stands for a class is not made up.
        failure = class_of_code(code) if class_of_code(code) != "program" else "unknown"
        seen = "no rank had started" if num_ranks and not evidence.num_started else "no rank said how it had ended"
        cause = f"the launcher ended with code {code}, but {seen}"
    return ExitMark(writer=-1, rank=-1, node="", failure=failure, cause=cause, code=76 if code is None else code or 1)


def _word(mark: ExitMark, evidence: Evidence, limits: Limits) -> tuple[str, str]:
    failure = mark.failure
    if failure in _NEVER:
        kind = mark.cause.partition(":")[0] if failure == "data" else ""
        return "stop", _NEVER_OF_DATA.get(kind, _NEVER[failure])
    if failure in _HOLD:
        return "hold", _HOLD[failure] if limits.can_move else _HOLD_HERE.get(failure, _HOLD[failure])
    if failure == "superseded":
        return "stop", "another attempt goes on with the run"
    if not limits.can_continue:
        return "stop", "continuing is switched off ([recovery] requeue = false)"
    if evidence.attempt - evidence.cleared >= limits.max_attempts:
        return "hold", f"the limit of {limits.max_attempts} attempts is reached"
    if failure == "preempted":  # nobody's failure, and it can happen any number of times
        return "again", _start(evidence)
    if failure == "stopped":
        # A stop that saved nothing new would loop for ever at full price.
        if evidence.made_progress or _idle_stops(evidence) < limits.max_failures:
            return "again", "saved on request; goes on from the last checkpoint"
        return "hold", f"stopped {limits.max_failures} times in a row without a new checkpoint"
    if failure in ("program", "timeout", "unknown", "crash") and not evidence.made_progress:
        if failure in ("program", "timeout"):
            return "stop", "no new checkpoint in this attempt: running the same again would end the same way"
        same = [past for past in evidence.past if past.signature == _signature(mark) and not past.made_progress]
        if same and not (limits.can_move and _failed_there_before(mark, evidence)):
            return "stop", "the same end as before, without a new checkpoint"
    failures = _failures_in_a_row(evidence)
    if failures >= limits.max_failures:
        return "hold", f"{failures} of at most {limits.max_failures} failures in a row without a new checkpoint"
    counted = f"{failures} of at most {limits.max_failures} failures in a row without a new checkpoint"
    return "again", f"{_start(evidence)} ({counted})"


def _start(evidence: Evidence) -> str:
    return "goes on from the last checkpoint" if evidence.last_commit is not None else "starts again"


def _failures_in_a_row(evidence: Evidence) -> int:
    count = 0 if evidence.made_progress else 1
    if count:
        for past in reversed(evidence.past):
            if past.made_progress:
                break
            count += past.failure not in _NO_FAILURE
    return count


def _idle_stops(evidence: Evidence) -> int:
    count = 1
    for past in reversed(evidence.past):
        if past.made_progress or past.failure != "stopped":
            break
        count += 1
    return count


def _suspects(mark: ExitMark, evidence: Evidence, limits: Limits) -> tuple[str, ...]:
    if not limits.can_move or not mark.node or mark.node == "?" or evidence.launcher_code is None:
        return ()  # the last: decided at the next start, when the nodes are given already
    is_suspect = mark.failure in _SUSPECT_NODE and not mark.waits  # who waits for others is not who is stuck
    if not is_suspect and not _failed_there_before(mark, evidence):
        return ()
    gone = {node for _, node in evidence.vanished} if mark.failure == "node_fail" else {mark.node}
    # All hosts of several at once: that says nothing about any of them.
    return tuple(sorted(gone - {""})) if len(gone) < max(2, limits.num_nodes) else ()


def _failed_there_before(mark: ExitMark, evidence: Evidence) -> bool:
    """Whether the attempt before ended on the same node: one bad node must not use up all retries."""
    if mark.failure not in _SUSPECT_NODE_IF_TWICE or not mark.node or not evidence.past:
        return False
    before = evidence.past[-1]
    return before.node == mark.node and before.failure in _SUSPECT_NODE_IF_TWICE


def _signature(mark: ExitMark) -> str:
    """What makes two failures the same: class, code and the cause without its numbers."""
    return f"{mark.failure}/{mark.code}/{''.join(c for c in mark.cause[:200] if not c.isdigit())}"
