"""Gathers what is known of an ended attempt from the run directory, and writes the decision down.

Apart from the policy, which is pure. Runs on the batch host after the launcher has ended, or at the start of the next
attempt where no shell lived to decide. Standard library only.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
from typing import Any, NamedTuple

from hpc_train.files import open_regular, read_json, read_text, write_atomic, write_json
from hpc_train.recovery.launcher_log import MAX_LOG_BYTES, ranks_seen_to_end
from hpc_train.recovery.policy import WORDS, Decision, Evidence, Limits, Past, decide
from hpc_train.run.journal import Event, Journal, last_commit, read_journal
from hpc_train.run.layout import AttemptDir, RunDir
from hpc_train.run.marks import read_marks
from hpc_train.run.reserve import DECISION, with_reserve

__all__ = [
    "decide_attempt",
    "gather",
    "is_loss_accepted",
    "job_of",
    "last_cleared_attempt",
    "read_decision",
    "read_limits",
    "read_not_continued",
    "submission_of",
]

_ASKED = ("requeue_asked", "resume_asked")  # a person let the run go on


def read_decision(attempt: AttemptDir) -> Decision | None:
    """The decision of an attempt, None where none was written or it cannot be read."""
    try:
        record: Any = read_json(attempt.decision)
        record["exclude"] = tuple(map(str, record["exclude"]))
        decision = Decision(**record)
        return decision if decision.word in WORDS else None
    except (OSError, ValueError, TypeError, KeyError):
        return None


def read_not_continued(attempt: AttemptDir) -> str:
    """Why the run did not go on after an attempt, though its decision was to; "" where it did, or nobody noted it."""
    with contextlib.suppress(OSError, ValueError):
        return read_text(attempt.not_continued, limit=64 << 10)
    return ""


def submission_of(attempt: AttemptDir, otherwise: int) -> int:
    """Number of the submission whose job started an attempt; `otherwise` where its shell did not live to note it."""
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        number = read_json(attempt.started, limit=64 << 10)["submission"]
        if type(number) is int and number >= 0:
            return number
    return otherwise


def job_of(attempt: AttemptDir) -> str:
    """The job that ran an attempt; "" where it did not note it."""
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        record: Any = read_json(attempt.started, limit=64 << 10)
        return str(record["job_id"])
    return ""


def read_limits(run: RunDir, submission: int) -> Limits:
    """The limits that the submission's launch record carries. Raises: OSError; ValueError if the record is damaged."""
    path = run.submission(submission).launch
    try:
        launch = read_json(path)
        num_ranks, ranks_per_node = int(launch["num_ranks"]), max(1, int(launch["ranks_per_node"]))
        num_nodes = -(-num_ranks // ranks_per_node)
        return Limits(
            max_failures=int(launch["max_failures"]),
            max_attempts=int(launch["max_attempts"]),
            can_continue=bool(launch["can_continue"]),
            num_nodes=num_nodes,
            num_ranks=num_ranks,
            can_move=bool(launch.get("can_move", num_nodes > 1)),  # a record of an older release has none
            backoff_s=math.ceil(launch.get("backoff_s", 0)),
        )
    except (ValueError, KeyError, TypeError, OverflowError) as error:
        raise ValueError(f"{path}: the launch record is damaged ({type(error).__name__}: {error})") from error


def gather(
    run: RunDir, attempt: AttemptDir, launcher_code: int | None, *, num_ranks: int = 0, ended_by: str = ""
) -> Evidence:
    """Read marks, journal and earlier decisions of a run.

    Args:  num_ranks: declared ranks: so many clean ends are a done run, even if nobody lived to write DONE.   ended_by:
    see Evidence.
    Raises: OSError if the run directory cannot be read.
    """
    events = read_journal(run, without=("step",))
    before = [event for event in events if 0 <= event.attempt < attempt.number]
    own = [event for event in events if event.attempt == attempt.number]
    committed, newest = last_commit(own), _newest_commit(before)
    cleared = last_cleared_attempt(events)
    marks, finished, ready = read_marks(attempt), set(_names(attempt.finished)), _names(attempt.ready)
    told = {mark.writer for mark in marks} | finished
    clean_ends = _clean_ends(attempt, finished)
    silent = sorted(set(ready) - told)
    return Evidence(
        attempt=attempt.number,
        is_done=attempt.done.exists() or (num_ranks > 0 and len(finished) >= num_ranks and not _has_marks(attempt)),
        is_cancelled=run.cancelled.exists(),
        launcher_code=launcher_code,
        marks=marks,
        silent=[(rank, _node_of_ready(attempt, rank)) for rank in silent],
        start_step=newest if committed is None else _to_exceed(before, own, cleared),
        last_commit=newest if committed is None else committed,
        past=_past(run, attempt.number, cleared),
        cleared=cleared,
        stop_reason=_stop_reason(attempt),
        ended=[(end.rank, end.node) for end in clean_ends],
        abrupt=[(end.rank, end.node) for end in clean_ends if end.is_abrupt] if marks or silent else (),
        num_started=len(ready),
        num_alone=sum(end.was_alone for end in clean_ends),
        seen_to_end=_seen_to_end(attempt),
        ended_by=ended_by,
    )


def _to_exceed(before: list[Event], own: list[Event], cleared: int) -> int | None:
    """The step that a commit of an attempt must exceed to be progress, None where any is.

    That from which the attempt went on: it may have gone back on purpose, or because newer checkpoints are damaged or
    gone. But to come as far as an earlier attempt from the same step is none. An attempt that tells nothing of where it
    went on may have begun anew, and must exceed all that there was.
    """
    start = _resumed(own)
    if start is None:
        return last_commit(before)
    again = [last_commit(events) for events in _by_attempt(before, cleared) if _resumed(events) == start]
    return max([start, *(step for step in again if step is not None)])


def _newest_commit(before: list[Event]) -> int | None:
    """The step of the newest commit: of the last attempt that has one, which may lie before those of earlier ones."""
    steps = [last_commit(events) for events in _by_attempt(before, -1)]
    return next((step for step in reversed(steps) if step is not None), None)


def _by_attempt(events: list[Event], after: int) -> list[list[Event]]:
    numbers = sorted({event.attempt for event in events if event.attempt > after})
    return [[event for event in events if event.attempt == number] for number in numbers]


def _resumed(events: list[Event]) -> int | None:
    steps = [event.fields.get("step") for event in events if event.event == "resumed"]
    return next((step for step in reversed(steps) if isinstance(step, int)), None)


def _seen_to_end(attempt: AttemptDir) -> frozenset[int]:
    try:
        with open_regular(attempt.launcher_log) as file:
            return ranks_seen_to_end(file.read(MAX_LOG_BYTES).decode(errors="replace"))
    except OSError:
        return frozenset()


def _has_marks(attempt: AttemptDir) -> bool:
    # Also one that cannot be read speaks against a clean end.
    with contextlib.suppress(FileNotFoundError):
        return any(name.startswith("rank-") for name in os.listdir(attempt.exits))
    return False


def _node_of_ready(attempt: AttemptDir, rank: int) -> str:
    with contextlib.suppress(OSError, ValueError):
        return read_text(attempt.ready / str(rank)).strip()[:255]
    return ""


class _CleanEnd(NamedTuple):
    time: float
    rank: int
    node: str
    is_abrupt: bool  # past every exit hook
    was_alone: bool  # had nothing to do with other ranks


def _clean_ends(attempt: AttemptDir, finished: set[int]) -> list[_CleanEnd]:
    """Ranks that ended with code 0, the first of them first."""
    found = []
    for rank in sorted(finished):
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError, AttributeError):
            record = read_json(attempt.finished / str(rank), limit=4096)
            is_abrupt, was_alone = record.get("abrupt") is True, record.get("alone") is True
            found.append(_CleanEnd(float(record["time"]), rank, str(record["node"]), is_abrupt, was_alone))
    return sorted(found)


def _names(directory: os.PathLike[str]) -> list[int]:
    try:
        return [int(name) for name in os.listdir(directory) if name.isdecimal()]
    except FileNotFoundError:
        return []


def last_cleared_attempt(events: list[Event]) -> int:
    """Number of the last attempt whose failures no longer count, as the user asked to go on after it; -1 if none."""
    cleared = [event.fields.get("after_attempt") for event in events if event.event in _ASKED]
    return max((number for number in cleared if isinstance(number, int)), default=-1)


def is_loss_accepted(events: list[Event], attempt: int) -> bool:
    """Whether a person let the run go on after an attempt, and knew that its checkpoints are gone.

    Who asked for other reasons, where they could be seen, has not agreed to begin anew where a host does not.
    """
    asked = [event.fields for event in events if event.event in _ASKED]
    after = [each for each in asked if isinstance(each.get("after_attempt"), int) and each["after_attempt"] >= attempt]
    return any(each.get("knew_gone") is not False for each in after)  # a record of an older release has none


def _past(run: RunDir, before: int, after: int) -> list[Past]:
    decisions = (read_decision(attempt) for attempt in run.attempts() if after < attempt.number < before)
    return [Past(d.failure, d.signature, d.made_progress, d.node) for d in decisions if d is not None]


def _stop_reason(attempt: AttemptDir) -> str:
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
        return str(read_json(attempt.stop, limit=4096)["reason"])
    return ""


def decide_attempt(
    run: RunDir,
    attempt: AttemptDir,
    *,
    submission: int,
    launcher_code: int | None,
    ended_by: str = "",
    remark: str = "",
) -> Decision:
    """Decide an ended attempt, write the decision into it and into the journal, and return it.

    Deciding twice gives the first decision again: a late shell must not overrule the attempt that follows.
    Args:  remark: what a person must hear beside the reason, however the attempt ended.
    Raises: OSError; ValueError if the submission's launch record is damaged.
    """
    known = read_decision(attempt)
    if known is not None:
        return known
    limits = read_limits(run, submission)
    evidence = gather(run, attempt, launcher_code, num_ranks=limits.num_ranks, ended_by=ended_by)
    decision = decide(evidence, limits)
    if remark:
        cause = f"{decision.cause}; {remark}" if decision.cause else ""
        decision = dataclasses.replace(decision, reason=f"{decision.reason}; {remark}", cause=cause)
    record = dataclasses.asdict(decision)

    def write() -> None:
        if evidence.is_done and not attempt.done.exists():
            write_atomic(attempt.done, "all ranks ended cleanly\n")
        write_json(attempt.decision, record)
        Journal(run, "decide", attempt.number).append("decision", **record, launcher_code=launcher_code)

    with_reserve(run, DECISION, write)
    return decision
