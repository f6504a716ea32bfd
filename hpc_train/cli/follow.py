"""Follows log files as they grow: of many nodes and of one attempt after another, until the run has ended.

Apart from `logs`, which copies what is there. A file is open only while it is read, so that a thousand nodes need one
descriptor; opening it is also what makes a network file system tell its present size.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

__all__ = ["Follower", "start_of_tail"]

PART_BYTES = 1 << 20  # of one file at a time, so that no node keeps the others waiting
MAX_LINE_BYTES = 64 << 10  # a longer line is shown in parts
PATIENCE_S = 2.0  # an unfinished line, as of a progress bar, is shown after so long

Files = Callable[[], Sequence[tuple[str, Path]]]


@dataclass
class _File:
    """How much of a file has been shown. rest: an unfinished line, since `since`."""

    inode: int = -1
    offset: int = 0
    rest: bytes = b""
    since: float = 0.0


class Follower:
    """Shows what is added to a changing set of files, with a heading wherever the file changes.

    Args:  files: gives the files there are now, each with its heading.   out: takes the bytes as they are.
    tail: so many last lines of a file that is there at the start; None for all of it.   say: tells of a file that
    shrank.
    """

    def __init__(self, files: Files, out: BinaryIO, *, tail: int | None, say: Callable[[str], None]) -> None:
        self._files, self._out, self._say = files, out, say
        self._tail = tail
        self._known: dict[Path, _File] = {}
        self._shown: Path | None = None
        self._is_line_open = False

    def pump(self, *, is_last: bool = False) -> bool:
        """Show what has come since the last call; whether there was anything.

        Args:  is_last: unfinished lines too.
        """
        has_news = False
        for heading, path in self._files():
            has_news |= self._pump_file(heading, path, is_last)
        self._tail = None  # files that come later are new: they are shown from their beginning
        if has_news:
            self._out.flush()
        return has_news

    def _pump_file(self, heading: str, path: Path, is_last: bool) -> bool:
        has_news = False
        while part := self._read(heading, path):
            self._take(heading, path, self._known[path], part)
            has_news = True
            if not is_last:
                break
        known = self._known.get(path)
        if known is None:  # not there yet
            return False
        is_late = known.rest and time.monotonic() - known.since > PATIENCE_S
        if known.rest and (is_last or is_late):
            self._show(heading, path, known.rest)
            known.rest = b""
            return True
        return has_news

    def _read(self, heading: str, path: Path) -> bytes:
        """The next part of a file, empty where there is none, or no file (any more).

        Apart from showing it: an output that nobody takes (`| head`, a full disk) is an error, and this is none.
        """
        try:
            with open(path, "rb", buffering=0) as source:
                self._open(heading, path, source)
                return source.read(PART_BYTES) or b""
        except OSError:
            return b""

    def _open(self, heading: str, path: Path, source: BinaryIO) -> None:
        status = os.fstat(source.fileno())
        known = self._known.get(path)
        if known is None:
            known = self._known[path] = _File(status.st_ino)
            if self._tail is not None:
                known.offset = start_of_tail(source, self._tail)
        elif known.inode != status.st_ino or status.st_size < known.offset:
            self._say(f"{heading} was {'replaced' if known.inode != status.st_ino else 'truncated'}; from its start")
            known.inode, known.offset, known.rest = status.st_ino, 0, b""
        source.seek(known.offset)

    def _take(self, heading: str, path: Path, known: _File, part: bytes) -> None:
        known.offset += len(part)
        whole = known.rest + part
        cut = whole.rfind(b"\n") + 1
        if len(whole) - cut > MAX_LINE_BYTES:
            cut = len(whole)
        known.rest = whole[cut:]
        known.since = time.monotonic()
        if cut:
            self._show(heading, path, whole[:cut])

    def _show(self, heading: str, path: Path, data: bytes) -> None:
        if self._shown != path:
            self._out.write((b"\n" if self._is_line_open else b"") + f"==> {heading} <==\n".encode(errors="replace"))
            self._shown = path
        self._out.write(data)
        self._is_line_open = not data.endswith(b"\n")


def start_of_tail(source: BinaryIO, num_lines: int) -> int:
    """Where the last lines of a file begin; an unfinished last line counts as one."""
    end = position = source.seek(0, os.SEEK_END)
    missing = num_lines
    while position > 0:
        begin = max(0, position - PART_BYTES)
        source.seek(begin)
        block = source.read(position - begin)
        at = len(block)
        if position == end and block.endswith(b"\n"):
            at -= 1
        while missing > 0 and (at := block.rfind(b"\n", 0, at)) >= 0:
            missing -= 1
        if missing == 0:
            return min(begin + at + 1, end) if num_lines else end
        position = begin
    return 0
