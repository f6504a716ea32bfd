"""Exit marks: how each rank that did not end cleanly ended, and the classes of failure.

Apart because launchers lose exit codes (srun returns 143 whatever the first rank's code was), so the class of a
failure travels in files: written by the shim on the node, read by the decision and by `why`. Standard library only.
"""

from __future__ import annotations

import dataclasses
import os
import re
import signal
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hpc_train.files import read_json, write_json
from hpc_train.quantities import format_ranks
from hpc_train.run.layout import AttemptDir
from hpc_train.run.reserve import MARKS, with_reserve

__all__ = [
    "CODE_OF_CLASS",
    "SECONDARY",
    "ExitMark",
    "class_of_code",
    "class_of_signal",
    "first_cause",
    "read_marks",
    "write_mark",
]

# Class of a failure -> the exit code that stands for it (sysexits.h where it has one).
CODE_OF_CLASS = {
    "usage": 2,
    "data": 65,
    "unavailable": 69,
    "bug": 70,
    "no_space": 73,
    "io": 74,
    "stopped": 75,
    "infrastructure": 76,
    "hang": 76,
    "superseded": 76,
    "permission": 77,
    "config": 78,
    "launch": 78,
    "forbidden": 93,
}
_CLASS_OF_CODE = {
    2: "usage", 65: "data", 69: "unavailable", 70: "bug", 73: "no_space", 74: "io", 75: "stopped",
    76: "infrastructure", 77: "permission", 78: "config", 93: "forbidden",
}  # fmt: skip

# Consequences of somebody else's end, from the least to the most telling; never the first cause if another is known.
SECONDARY = ("terminated", "peer_lost")

MAX_CALLS = 4  # named in the cause of a hang

_MARK = re.compile(r"rank-(\d+)\.json")


@dataclass(frozen=True)
class ExitMark:
    """How one rank ended.

    Attributes:  failure: the class.   cause: one line for a person.   code: the exit code it left with (128 + signal
    for a signal).   step, phase: where the program was, as far as it had said.   rank, node: the rank that failed first
    as this rank saw it (its own, except when it ended because a peer left early).   writer: the rank that wrote the
    mark.   time: seconds since 1970 on that node's clock.   waits: whether its main thread waited for other ranks.
    stuck: why its process could not go on before it was ended, in words that follow "it" ("" where it could).
    call: the one call that its main thread had been in, with its place, "" where there was none or nobody looked.
    """

    writer: int
    rank: int
    node: str
    failure: str
    cause: str
    code: int
    step: int | None = None
    phase: str = ""
    time: float = 0.0
    waits: bool = False
    stuck: str = ""
    call: str = ""


def class_of_code(code: int) -> str:
    """The class that an exit code stands for; "program" for a program's own codes."""
    return _CLASS_OF_CODE.get(code, "program")


def class_of_signal(number: int) -> str:
    """The class of a death by signal: "killed" (KILL), "terminated" (TERM, INT, HUP), else "crash"."""
    if number == signal.SIGKILL:
        return "killed"
    if number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        return "terminated"
    return "crash"


def write_mark(attempt: AttemptDir, mark: ExitMark, *, replace: bool = False, durable: bool = True) -> None:
    """Write a rank's mark atomically; a second mark of the same writer does not replace the first.

    Args:  replace: replace it after all: a mark that was written when the end was only announced.   durable: False
    does not wait for the disk: for that announcement, since SIGKILL may follow within a second.
    Raises: OSError as the system gives it.
    """
    path = attempt.exits / f"rank-{mark.writer}.json"
    record = dataclasses.asdict(dataclasses.replace(mark, time=mark.time or time.time()))

    def write() -> None:
        attempt.exits.mkdir(exist_ok=True)  # no parents: a run that was removed must not come back as a shell
        # Seen first, durable second: the launcher's SIGKILL can follow within milliseconds; a written file outlives it.
        write_json(path, record, durable=False)
        if durable:
            write_json(path, record)

    if replace or not path.exists():
        with_reserve(attempt.run, MARKS, write)


def read_marks(attempt: AttemptDir) -> list[ExitMark]:
    """All marks of an attempt in rank order; a mark that cannot be read is passed over (its rank counts as silent)."""
    try:
        names = os.listdir(attempt.exits)
    except FileNotFoundError:
        return []
    numbered = sorted((int(match[1]), name) for name in names if (match := _MARK.fullmatch(name)))
    marks = (_parse(attempt, name, writer) for writer, name in numbered)
    return [mark for mark in marks if mark is not None]


def _parse(attempt: AttemptDir, name: str, writer: int) -> ExitMark | None:
    try:
        record: Any = read_json(attempt.exits / name, limit=64 << 10)
        mark = ExitMark(**record)
    except (OSError, ValueError, TypeError):
        return None
    numbers = (mark.writer, mark.rank, mark.code, 0 if mark.step is None else mark.step)
    texts = (mark.node, mark.failure, mark.cause, mark.phase, mark.stuck, mark.call)
    is_sound = (
        all(type(number) is int for number in numbers)
        and all(isinstance(text, str) for text in texts)
        and isinstance(mark.time, int | float)
        and isinstance(mark.waits, bool)
        and mark.writer == writer
    )
    return mark if is_sound else None


def first_cause(marks: Sequence[ExitMark]) -> ExitMark | None:
    """The mark that tells best why the attempt ended: causes before consequences, then the earliest.

    Clocks of nodes differ, so time only decides between marks of the same weight. Where ranks hang, one that could not
    go on comes first, then one that did not itself wait for others, then the one furthest behind: the others wait for
    it. The launcher ends such a rank before its own watchdog speaks, so a rank that was told to end counts too.
    The cause of a hang tells in which calls the other ranks waited.
    """
    first = _first(marks)
    return _with_calls(first, marks) if first is not None and first.failure == "hang" else first


def _with_calls(first: ExitMark, marks: Sequence[ExitMark]) -> ExitMark:
    ranks_of: dict[str, list[int]] = {}
    for mark in marks:
        if mark.waits and mark.call and mark.writer == mark.rank != first.rank and mark.call not in first.cause:
            ranks_of.setdefault(mark.call, []).append(mark.rank)
    told = [f"{format_ranks(ranks)} in {call}" for call, ranks in list(ranks_of.items())[:MAX_CALLS]]
    return dataclasses.replace(first, cause="; ".join([first.cause, *told]))


def _first(marks: Sequence[ExitMark]) -> ExitMark | None:
    first = min(marks, key=_weight, default=None)
    if first is None or first.failure not in ("hang", "peer_lost") or (first.failure == "hang" and first.stuck):
        return first
    stuck = [mark for mark in marks if mark.failure in SECONDARY and mark.stuck]  # woken to be ended
    moving = [mark for mark in marks if mark.failure == "terminated" and not mark.waits]
    if first.failure != "hang" or not first.waits:
        moving = []
    awaited = min(stuck or moving, key=_weight_of_stuck, default=None)
    if awaited is None:
        return first
    cause = f"rank {first.writer} waited for this rank in vain: {first.cause}"
    if awaited.call and not awaited.waits:
        cause = f"{cause}; this rank in {awaited.call}"
    if awaited.stuck:
        cause = f"it {awaited.stuck}" if first is awaited else f"it {awaited.stuck}; {cause}"
    return dataclasses.replace(awaited, failure="hang", cause=cause, code=CODE_OF_CLASS["hang"])


def _weight(mark: ExitMark) -> tuple[int, bool, bool, int, float]:
    consequence = -1 - SECONDARY.index(mark.failure) if mark.failure in SECONDARY else -10
    # stopped and hang come on all ranks at once; any other class on another rank explains more
    told = {"stopped": 2, "hang": 1}.get(mark.failure, 0)
    stuck = _weight_of_stuck(mark) if mark.failure == "hang" else (False, False, 0, mark.time)
    return (consequence + told, *stuck)


def _weight_of_stuck(mark: ExitMark) -> tuple[bool, bool, int, float]:
    return (not mark.stuck, mark.waits, -1 if mark.step is None else mark.step, mark.time)
