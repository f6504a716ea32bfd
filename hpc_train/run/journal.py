"""The journal: what happened in a run, one JSON object a line, one file a writer.

Apart because login side, batch shell and rank 0 all append to it and every question about a run is answered from it.
One file a writer, so that no two hosts append to the same file (O_APPEND is not atomic on NFS). Merged by attempt and
by order within an attempt, never by clock: nodes' clocks differ. Standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import json
import operator
import os
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hpc_train.files import open_regular
from hpc_train.run.layout import RunDir

__all__ = ["MAX_LINE_BYTES", "Event", "Journal", "last_commit", "parse_event", "read_journal"]

MAX_LINE_BYTES = 64 << 10
_WRITER = re.compile(r"(login|batch|rank0|decide)(?:-(\d{3,}))?\.jsonl")
_ORDER = {"login": 0, "batch": 1, "rank0": 2, "decide": 3}  # the order in which they act within one attempt


@dataclass(frozen=True)
class Event:
    """One line of the journal.

    Attributes:  event: its kind (attempt_started, resumed, step, commit, decision, …).   writer: login, batch, rank0 or
    decide.   attempt: its attempt, -1 for what the login side wrote.   time: seconds since 1970 on the writer's clock.
    """

    event: str
    writer: str
    attempt: int
    time: float
    fields: dict[str, Any] = field(default_factory=dict)


class Journal:
    """Appends to one writer's file. Not for use by two processes at once, except for the login writer's rare lines.

    Args:  writer: "login", "batch", "rank0" or "decide".   attempt: None for the login writer.
    """

    def __init__(self, run: RunDir, writer: str, attempt: int | None = None) -> None:
        self.writer = writer
        self.attempt = -1 if attempt is None else attempt
        suffix = "" if attempt is None else f"-{attempt:03d}"
        self.path = run.journal / f"{writer}{suffix}.jsonl"
        self._fd: int | None = None

    def append(self, event: str, *, durable: bool = True, **fields: Any) -> None:
        """Write one event with a single write(2).

        Args:  durable: fsync after it. Steps do without: losing the last few lines of a dead node is harmless.
        fields: JSON values, numbers of NumPy and torch too; they cannot replace the event's own keys.
        Raises: OSError as the system gives it; ValueError if the line would be longer than readers take.
        """
        record = {**fields, "event": event, "attempt": self.attempt, "time": round(time.time(), 3)}
        line = json.dumps(record, allow_nan=True, separators=(",", ":"), default=_plain_number).encode() + b"\n"
        if len(line) > MAX_LINE_BYTES:
            raise ValueError(f"journal event {event!r} has {len(line)} bytes; {MAX_LINE_BYTES} are the limit")
        if self._fd is None:
            self.path.parent.mkdir(exist_ok=True)  # no parents: a run that was removed must not come back as a shell
            flags = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
            self._fd = os.open(self.path, flags, 0o666)
            line = self._mend_torn_line(self._fd) + line
        if os.write(self._fd, line) != len(line):
            self.close()  # so that the next append mends this torn line
            raise OSError(errno.ENOSPC, "short write: no space left", str(self.path))
        if durable:
            os.fsync(self._fd)

    @staticmethod
    def _mend_torn_line(fd: int) -> bytes:
        # A killed writer can leave half a line; a newline first keeps our line whole.
        size = os.fstat(fd).st_size
        return b"\n" if size and os.pread(fd, 1, size - 1) != b"\n" else b""

    def close(self) -> None:
        """Close the file; a later append opens it again."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None


def _plain_number(value: Any) -> int | float:
    """A number of another library as JSON has it. Raises: TypeError for what is none."""
    with contextlib.suppress(TypeError):
        return operator.index(value)
    if not hasattr(value, "__float__"):  # float() itself takes texts
        raise TypeError(f"a journal event cannot hold {type(value).__name__}")
    return float(value)


def read_journal(run: RunDir, *, without: Sequence[str] = ()) -> list[Event]:
    """All events of a run, merged by attempt and by the order in which the writers act within it.

    Torn or foreign lines are passed over.
    Args:  without: kinds of events that are not asked for. Without "step" a million steps cost a second.
    Raises: OSError if a file cannot be read.
    """
    keyed: list[tuple[tuple[int, int, int], Event]] = []
    for path in sorted(run.journal.glob("*.jsonl")):
        match = _WRITER.fullmatch(path.name)
        if match is None:
            continue
        writer = match[1]
        for number, event in enumerate(_read_file(path, writer, without)):
            keyed.append(((event.attempt, _ORDER[writer], number), event))
    return [event for _, event in sorted(keyed, key=lambda pair: pair[0])]


def _read_file(path: Path, writer: str, without: Sequence[str]) -> Iterator[Event]:
    unwanted = [f'"event":"{name}","attempt":'.encode() for name in without]
    with open_regular(path) as file:
        while line := file.readline(MAX_LINE_BYTES):
            if any(text in line for text in unwanted):
                continue  # before it is parsed, which is what costs
            event = parse_event(line, writer)
            if event is not None and event.event not in without:
                yield event


def parse_event(line: bytes, writer: str) -> Event | None:
    """The event of one line, None if the line is torn or none of ours."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict):
        return None
    name, attempt, when = record.pop("event", None), record.pop("attempt", None), record.pop("time", None)
    if not isinstance(name, str) or type(attempt) is not int or not isinstance(when, int | float):
        return None
    try:
        return Event(event=name, writer=writer, attempt=attempt, time=float(when), fields=record)
    except OverflowError:  # a whole number that no float holds
        return None


def last_commit(events: list[Event]) -> int | None:
    """Step of the newest checkpoint that the journal saw committed, None if there was none."""
    steps = [event.fields.get("step") for event in events if event.event == "commit"]
    known = [step for step in steps if isinstance(step, int)]
    return max(known) if known else None
