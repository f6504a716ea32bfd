"""The newest events of a run without reading its whole journal.

Apart from the journal's own reader because a million steps are 100 MB: `status` of twenty runs must not read them, and
one that is repeated must not read again what it has seen. Files are read from their ends. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice

from hpc_train.files import open_regular
from hpc_train.run.journal import MAX_LINE_BYTES, Event, parse_event
from hpc_train.run.layout import AttemptDir, RunDir

__all__ = ["KEPT_STEPS", "JournalTail", "Newest", "find_ready_time", "newest_checkpoint"]

KEPT_STEPS = 50  # enough to even out what single steps take
_BLOCK_BYTES = 256 << 10  # some 2000 steps
_RANK0 = re.compile(r"rank0-(\d{3,})\.jsonl")
_STEP = re.compile(r"step-(\d{9,16})")  # checkpoint/names.py
_BATCH = re.compile(r"batch-(\d{3,})\.jsonl")


@dataclass(frozen=True)
class Newest:
    """The newest event of each kind that says how far a run is.

    Attributes:  steps: up to KEPT_STEPS of the newest attempt that has any, oldest first.   is_from_start: the first
    of them is that attempt's first.   commit, progress: None where there is none.   started: of the newest attempt.
    """

    steps: tuple[Event, ...] = ()
    is_from_start: bool = False
    commit: Event | None = None
    progress: Event | None = None
    started: Event | None = None


def find_ready_time(attempt: AttemptDir) -> float | None:
    """When the last of an attempt's ranks so far was ready [s since 1970], None where nobody can say."""
    try:
        return attempt.ready.stat().st_mtime  # of the newest entry: one a rank
    except OSError:
        return None


def newest_checkpoint(run: RunDir) -> tuple[int, float] | None:
    """Step and time of the newest checkpoint in the run's own directory, for where the journal that told of it is gone.

    Only names and COMMIT's presence are looked at. Raises: nothing; what cannot be read is None.
    """
    try:
        steps = sorted(
            (int(match[1]), match[0]) for name in os.listdir(run.checkpoints) if (match := _STEP.fullmatch(name))
        )
    except OSError:
        return None
    for step, name in reversed(steps):
        with contextlib.suppress(OSError):
            return step, os.stat(run.checkpoints / name / "COMMIT").st_mtime
    return None


@dataclass
class _Seen:
    """What one file has shown up to the byte `end`, which is the beginning of a line."""

    inode: int
    end: int = 0
    steps: list[Event] = field(default_factory=list)
    is_from_start: bool = True
    commit: Event | None = None
    progress: Event | None = None


class JournalTail:
    """Reads a run's newest events; each `read` after the first takes only what was appended since.

    A commit is looked for back to the beginning of each attempt; the total number of steps is found where it is written
    in the first or the last 256 KiB of an attempt's journal.
    """

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._seen: dict[str, _Seen] = {}

    def read(self) -> Newest:
        """The newest events now. Raises: OSError if a file cannot be read."""
        names = _names(self._run)
        steps: _Seen | None = None
        commit = progress = None
        for name in _numbered(names, _RANK0):
            seen = self._scan(name)
            steps = steps or (seen if seen.steps else None)
            commit, progress = commit or seen.commit, progress or seen.progress
            if steps and commit and progress:
                break
        started = next((self._started(name) for name in _numbered(names, _BATCH)), None)
        if steps is None:
            return Newest(commit=commit, progress=progress, started=started)
        return Newest(tuple(steps.steps), steps.is_from_start, commit, progress, started)

    def _scan(self, name: str) -> _Seen:
        with open_regular(self._run.journal / name) as file:
            status = os.fstat(file.fileno())
            seen = self._seen.get(name)
            if seen is None or seen.inode != status.st_ino or seen.end > status.st_size:
                seen = self._seen[name] = _Seen(status.st_ino)
                head = os.pread(file.fileno(), _BLOCK_BYTES, 0)
                seen.progress = next(_found(head, "progress"), None)
            _take_in(seen, file.fileno(), status.st_size)
        return seen

    def _started(self, name: str) -> Event | None:
        with open_regular(self._run.journal / name) as file:
            return next(_found(file.read(_BLOCK_BYTES), "attempt_started"), None)


def _names(run: RunDir) -> list[str]:
    try:
        return os.listdir(run.journal)
    except FileNotFoundError:
        return []


def _numbered(names: list[str], pattern: re.Pattern[str]) -> list[str]:
    """The names that fit, the highest number first."""
    found = [(int(match[1]), name) for name in names if (match := pattern.fullmatch(name))]
    return [name for _, name in sorted(found, reverse=True)]


def _take_in(seen: _Seen, fd: int, size: int) -> None:
    """Add what lies between `seen.end` and the last whole line, from its end backwards."""
    start, seen.end = seen.end, _end_of_lines(fd, seen.end, size)
    steps: list[Event] = []  # newest first
    commit = progress = None
    for number, block in enumerate(_blocks_backwards(fd, start, seen.end)):
        if len(steps) < KEPT_STEPS:
            steps += islice(_found(block, "step"), KEPT_STEPS - len(steps))
        if number == 0:
            progress = next(_found(block, "progress"), None)
        commit = commit or next(_found(block, "commit"), None)
        if commit and len(steps) >= KEPT_STEPS:
            break
    known = [*seen.steps, *reversed(steps)]
    seen.is_from_start = seen.is_from_start and len(known) < KEPT_STEPS
    seen.steps = known[-KEPT_STEPS:]
    seen.commit, seen.progress = commit or seen.commit, progress or seen.progress


def _end_of_lines(fd: int, start: int, size: int) -> int:
    """Where the last whole line ends: a torn one may still be completed."""
    begin = max(start, size - MAX_LINE_BYTES)
    tail = os.pread(fd, size - begin, begin)
    if (newline := tail.rfind(b"\n")) >= 0:
        return begin + newline + 1
    return start if begin == start else size  # so long a line is none of ours


def _blocks_backwards(fd: int, start: int, end: int) -> Iterator[bytes]:
    """Blocks of whole lines between two ends of lines, the last one first."""
    rest = b""
    while end > start:
        begin = max(start, end - _BLOCK_BYTES)
        block = os.pread(fd, end - begin, begin) + rest
        end, rest = begin, b""
        if begin > start:
            cut = block.find(b"\n") + 1
            rest, block = (block[:cut], block[cut:]) if cut else (block, b"")
            if len(rest) > MAX_LINE_BYTES:  # no line of ours
                rest = b""
        yield block


def _found(block: bytes, name: str) -> Iterator[Event]:
    """The events of one kind in a block, the last one first. Only whole lines, in the form in which we write them."""
    pattern = f'"event":"{name}","attempt":'.encode()
    at = len(block)
    while (at := block.rfind(pattern, 0, at)) >= 0:
        first, last = block.rfind(b"\n", 0, at) + 1, block.find(b"\n", at)
        if 0 <= last < first + MAX_LINE_BYTES:
            event = parse_event(block[first:last], "rank0")
            if event is not None and event.event == name:
                yield event
        at = first
