"""A command on a terminal of a given size, as a person sees it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping
from pathlib import Path

__all__ = ["Terminal"]

PAUSE_S = 0.3
REST_S = 5.0


class Terminal:
    """Starts a command with a terminal as its input and outputs; `text` is all it has written so far."""

    def __init__(
        self, argv: list[str], *, cwd: Path, environ: Mapping[str, str], columns: int = 120, rows: int = 24
    ) -> None:
        self._ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.text = ""
        # setsid: the terminal is the command's own, so that Ctrl-C reaches it and what it has started
        self.process = subprocess.Popen(
            ["setsid", "--ctty", *argv],
            cwd=cwd,
            env={"TERM": "xterm", **environ},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
        )
        os.close(theirs)

    @property
    def plain(self) -> str:
        """The text without what moves the cursor or colours letters."""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.text)

    def wait_for(self, is_there: Callable[[str], object], *, timeout_s: float = 30.0) -> None:
        """Read until the plain text is as wanted."""
        deadline = time.monotonic() + timeout_s
        while not is_there(self.plain):
            assert time.monotonic() < deadline and self._read(0.2), f"not shown: {self.plain[-2000:]}"

    def type(self, text: str) -> None:
        """Keys that a person presses; "\\x03" is Ctrl-C, which reaches every process of the terminal."""
        # No person is as fast: a signal between Python's last look for one and its read() is seen after the next key.
        deadline, before = time.monotonic() + REST_S, ""
        while time.monotonic() < deadline:
            time.sleep(PAUSE_S)
            if (now := self._work()) == before:  # it slept, and has done nothing since
                break
            before = now
        os.write(self._ours, text.encode())

    def end(self, *, timeout_s: float = 30.0) -> int:
        """Read to the end; the exit code."""
        deadline = time.monotonic() + timeout_s
        while self.process.poll() is None:  # closed before, the terminal would hang up on it
            if time.monotonic() > deadline:
                self.process.kill()
                raise AssertionError(f"it does not end: {self.plain[-2000:]}")
            if not self._read(0.2):
                time.sleep(0.02)
        while self._read(0.0) and self._has_more():
            pass
        os.close(self._ours)
        return self.process.returncode

    def _work(self) -> str:
        """The command's state and the time that it has computed."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return " ".join([fields[0], *fields[11:13]]) if fields[0] == "S" else f"busy {time.monotonic()}"

    def _has_more(self) -> bool:
        return bool(select.select([self._ours], [], [], 0.05)[0])

    def _read(self, wait_s: float) -> bool:
        """Take in what is there; False once the command has closed the terminal."""
        ready, _, _ = select.select([self._ours], [], [], wait_s)
        if not ready:
            return True
        try:
            data = os.read(self._ours, 1 << 16)
        except OSError:  # EIO: nobody holds the other side any more
            return False
        self.text += data.decode(errors="replace")
        return bool(data)
