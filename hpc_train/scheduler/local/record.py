"""The supervisor's record: who it is, and what it last said of its job.

Apart from the supervisor because the login side reads it without starting anything. A PID alone is not a name: it is
recycled, so the process's start time goes with it, and only a lock tells that a supervisor lives.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hpc_train.files import read_json, write_json
from hpc_train.run.layout import SubmissionDir

__all__ = ["SupervisorRecord", "hold_lock", "is_locked", "process_start", "read_record", "write_record"]

_LOCK_WAIT_S = 2.0  # somebody who asks whether the lock is taken holds it for an instant


@dataclass(frozen=True)
class SupervisorRecord:
    """A supervisor: its process, host, and the state of its job in STATES' words."""

    pid: int
    started: int
    host: str
    state: str
    reason: str = ""


def process_start(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot (/proc/PID/stat, field 22); None if there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    return int(stat.rpartition(")")[2].split()[19])  # the name before ')' may hold blanks and parentheses


def write_record(submission: SubmissionDir, record: SupervisorRecord) -> None:
    """Replace the record. Raises: OSError."""
    write_json(submission.path / "supervisor.json", asdict(record))


def read_record(submission: SubmissionDir) -> SupervisorRecord | None:
    """The record, None where there is none or it is damaged."""
    try:
        raw: Any = read_json(submission.path / "supervisor.json", limit=64 << 10)
        record = SupervisorRecord(**raw)
    except (OSError, ValueError, TypeError):
        return None
    numbers, texts = (record.pid, record.started), (record.host, record.state, record.reason)
    is_sound = all(type(number) is int for number in numbers) and all(isinstance(text, str) for text in texts)
    return record if is_sound else None


@contextmanager
def hold_lock(submission: SubmissionDir) -> Iterator[bool]:
    """Hold the supervisor's lock while the body runs; yields False if another supervisor holds it."""
    fd = os.open(submission.path / "supervisor.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        yield _lock(fd, fcntl.LOCK_EX, time.monotonic() + _LOCK_WAIT_S)
    finally:
        os.close(fd)


def is_locked(submission: SubmissionDir) -> bool:
    """Whether a supervisor is alive on this submission. Askers share the lock: they do not take each other for one."""
    try:
        fd = os.open(submission.path / "supervisor.lock", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    except FileNotFoundError:
        return False
    try:
        return not _lock(fd, fcntl.LOCK_SH, 0)
    finally:
        os.close(fd)


def _lock(fd: int, kind: int, deadline: float) -> bool:
    while True:
        try:
            fcntl.flock(fd, kind | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.05)
