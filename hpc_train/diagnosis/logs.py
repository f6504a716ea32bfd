"""Reads logs that may be huge, binary or hostile: head and tail only, and every line made fit for a terminal.

Apart from the engine because it alone touches files. A log is looked at as bytes; only lines that matter are decoded.
Standard library only.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass, field, replace
from pathlib import Path

__all__ = ["HEAD_BYTES", "TAIL_BYTES", "Line", "Log", "Part", "last_start", "make_log", "read_log", "why_unreadable"]

# Causes stand at an end of a log: what never began at its head, what broke at its tail.
HEAD_BYTES = 1 << 20
TAIL_BYTES = 4 << 20
# So far lines between head and tail are counted, to give true line numbers; beyond, a line is told from the end.
MAX_COUNTED_BYTES = 256 << 20
# Of a longer line, so much on each side of the place that matters: no regex sees more.
WINDOW = 1000
MAX_SHOWN = 300

_ESCAPES = re.compile(r"\x1b(?:\[[0-?]{0,16}[ -/]{0,8}[@-~]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)|.)", re.DOTALL)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u200e\u200f\u2028-\u202e\u2066-\u2069]+")
# The last words of a start that Slurm ended to start the job again; what follows may be its next start.
_ENDED = re.compile(
    rb"\*\*\* job \S{1,40} on \S{1,200} cancelled at \S{1,40} due to (?:node failure|preemption|job requeue)"
)
MIN_LINES_OF_A_START = 3
# Byte order marks, as shells of other systems put them before what they redirect.
_MARKS = ((b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be"), (b"\xef\xbb\xbf", "utf-8"))
_USUAL = bytes(byte for byte in range(256) if byte >= 0x80 or byte >= 0x20 or byte in b"\b\t\n\f\r\x1b")
MAX_ODD_SHARE = 0.05  # of other bytes: a log may hold a few
_LABEL = re.compile(r"\[(?P<bracket>rank(?P<torch>\d{1,7}))\]:? ?|\[\d{1,9},(?P<mpi>\d{1,7})\]<std(?:out|err)>: ?")
_SRUN_LABEL = re.compile(r" {0,6}(\d{1,7}): ")


@dataclass(frozen=True)
class Line:
    """One cleaned line.

    Attributes:  text: without escapes and without the label of its rank.   rank: of the label, None without one.
    start, end: where it lies in its part.
    """

    text: str
    rank: int | None
    start: int
    end: int


@dataclass(frozen=True)
class Part:
    """A stretch of a log.

    Attributes:  data: its bytes.   lower: the same in lower case, for searching.   first: number of its first line;
    None where it is not known: then lines are counted from the end.
    """

    data: bytes = field(repr=False)
    lower: bytes = field(repr=False)
    first: int | None


@dataclass(frozen=True)
class Log:
    """A log as far as it was read.

    Attributes:  name: as the user gave it.   host: node whose log it is, "" if not known.   parts: head, and tail where
    the log is longer.   is_labelled: whether lines begin with the rank and a colon, as of `srun --label`.   path: of
    the file, "" without one.
    """

    name: str
    host: str
    parts: tuple[Part, ...]
    is_labelled: bool
    path: str = ""

    def line_at(self, part: int, offset: int) -> Line:
        """The line around an offset; of a very long one a window around it."""
        data = self.parts[part].data
        start, end = _bounds(data, offset)
        return _clean(data[start:end], start, end, is_labelled=self.is_labelled)

    def line_after(self, part: int, line: Line) -> Line | None:
        """The next line of the same part, None at its end."""
        data = self.parts[part].data
        begin = line.end
        while begin < len(data) and data[begin] not in b"\r\n":  # the rest of a line longer than its window
            found = [at for at in (data.find(b"\n", begin), data.find(b"\r", begin)) if at >= 0]
            begin = min(found, default=len(data))
        begin += 1
        return self.line_at(part, begin) if begin < len(data) else None

    def place(self, part: int, offset: int) -> str:
        """FILE:LINE, or how far from the end where the line's number is not known."""
        number = self.number(part, offset)
        if number is not None:
            return f"{self.name}:{number}"
        left = self.parts[part].data.count(b"\n", offset)
        return f"{self.name} ({left} lines before its end)"

    def number(self, part: int, offset: int) -> int | None:
        """The line's number, None where it is not known."""
        piece = self.parts[part]
        return None if piece.first is None else piece.first + piece.data.count(b"\n", 0, offset)

    def lines_left(self, part: int, offset: int) -> int:
        """How many lines follow, as far as the log was read."""
        after = sum(piece.data.count(b"\n") for piece in self.parts[part + 1 :])
        return self.parts[part].data.count(b"\n", offset) + after


def read_log(path: str | os.PathLike[str], *, name: str = "", host: str = "", max_counted: int | None = None) -> Log:
    """Head and tail of a log.

    Args:  name: as it is shown; default: the path.   host: node whose log it is.   max_counted: bytes between head and
    tail that are read only to number the lines; default: 256 MiB.
    Raises: OSError as the system gives it; ValueError for what is no regular file. Cost: at most 5 MiB are kept.
    """
    limit = MAX_COUNTED_BYTES if max_counted is None else max_counted
    # O_NONBLOCK: opening a FIFO somebody put there must not hang.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with open(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            raise ValueError(f"{os.fspath(path)}: not a regular file")
        head = file.read(HEAD_BYTES + TAIL_BYTES)
        size = max(status.st_size, len(head))
        mark, encoding = next((pair for pair in _MARKS if head.startswith(pair[0])), (b"", ""))
        if size <= HEAD_BYTES + TAIL_BYTES:
            head = _as_utf_8(head[len(mark) :], encoding)
            return replace(make_log(head, name=name or os.fspath(path), host=host), path=os.fspath(path))
        head = head[:HEAD_BYTES]
        first = _number_of_line_at(file.fileno(), size - TAIL_BYTES, head) if size - TAIL_BYTES <= limit else None
        tail = os.pread(fd, TAIL_BYTES, size - TAIL_BYTES)
    is_wide = encoding.startswith("utf-16")
    head, tail = _as_utf_8(head[len(mark) :], encoding), _as_utf_8(tail[size % 2 :] if is_wide else tail, encoding)
    return replace(make_log(head, tail, first, name=name or os.fspath(path), host=host), path=os.fspath(path))


def _as_utf_8(data: bytes, encoding: str) -> bytes:
    return data.decode(encoding, errors="replace").encode() if encoding else data


def why_unreadable(log: Log) -> str:
    """Why nothing can be read in a log, in words that follow its name; "" where there is text."""
    data = b"".join(part.data for part in log.parts)
    if not data.strip():
        return "is empty: its program has not printed anything, or its output is held back (PYTHONUNBUFFERED=1)"
    sample = data[: 64 << 10].translate(None, _USUAL)
    if len(sample) > MAX_ODD_SHARE * min(len(data), 64 << 10):
        return "does not look like text"
    return ""


def last_start(log: Log) -> Log:
    """Without what earlier starts of the same job wrote into the log (`--open-mode=append`).

    Where only a launcher's words follow the end of a start, they belong to that start: nothing is left out then.
    """
    for number, part in reversed(list(enumerate(log.parts))):
        at = max((match.end() for match in _ENDED.finditer(part.lower)), default=-1)
        after = part.data[at:].split(b"\n", 1)[-1] if at >= 0 else b""
        own = [line for line in after.splitlines() if line.strip() and not line.startswith((b"srun: ", b"slurmstepd"))]
        if len(own) < MIN_LINES_OF_A_START:
            continue
        cut = len(part.data) - len(after)
        first = None if part.first is None else part.first + part.data.count(b"\n", 0, cut)
        return replace(log, parts=(Part(after, after.lower(), first), *log.parts[number + 1 :]))
    return log


def _number_of_line_at(fd: int, offset: int, head: bytes) -> int:
    number, at = 1 + head.count(b"\n"), len(head)
    while at < offset and (data := os.pread(fd, min(8 << 20, offset - at), at)):
        number += data.count(b"\n")
        at += len(data)
    return number


def make_log(head: bytes, tail: bytes = b"", tail_first: int | None = None, *, name: str, host: str = "") -> Log:
    """A log of bytes in memory.

    Args:  tail: its end where the middle is left out.   tail_first: number of the tail's first line, if known.   name,
    host: see Log.
    """
    parts = [Part(head, head.lower(), 1)]
    if tail:
        parts.append(Part(tail, tail.lower(), tail_first))
    sample = head[: 64 << 10].decode(errors="replace").splitlines()
    # what srun itself says, and it can say a lot at the end, has no label
    spoken = [text for text in sample if text.strip() and not text.startswith(("srun: ", "slurmstepd"))][:200]
    labelled = sum(_SRUN_LABEL.match(text) is not None for text in spoken)
    return Log(name, host or _host_of(name), tuple(parts), bool(labelled) and 2 * labelled >= len(spoken))


def _host_of(name: str) -> str:
    """The node in the name of a run's own log, attempt-000/logs/NODE.log."""
    path = Path(name)
    return path.stem if path.parent.name == "logs" and path.suffix == ".log" else ""


def _bounds(data: bytes, offset: int) -> tuple[int, int]:
    low = max(0, offset - WINDOW)
    start = max(data.rfind(b"\n", low, offset), data.rfind(b"\r", low, offset)) + 1 or low
    high = min(len(data), offset + WINDOW)
    ends = [at for at in (data.find(b"\n", offset, high), data.find(b"\r", offset, high)) if at >= 0]
    return start, min(ends, default=high)


def _clean(data: bytes, start: int, end: int, *, is_labelled: bool) -> Line:
    text = _CONTROL.sub(" ", _ESCAPES.sub("", data.decode(errors="replace"))).rstrip()
    rank: int | None = None
    if is_labelled and (match := _SRUN_LABEL.match(text)):
        rank, text = int(match[1]), text[match.end() :]
    if match := _LABEL.match(text):
        found = match["torch"] or match["mpi"]
        rank = int(found) if rank is None else rank
        text = text[match.end() :]
    return Line(text, rank, start, end)
