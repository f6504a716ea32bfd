"""The supervisor's record: who it is, and what it last said of its job.

Apart from the supervisor because the login side reads it without starting anything. A PID alone is not a name: it is
recycled, so the process's start time goes with it, and only a lock tells that a supervisor lives.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from hpc_train.files import read_json, write_atomic
from hpc_train.run.layout import SubmissionDir
from hpc_train.run.reserve import NO_SPACE

__all__ = ["SupervisorRecord", "hold_lock", "is_locked", "read_record", "write_record"]

RECORD_BYTES = 2047
MAX_REASON = 240  # characters; six bytes each where JSON escapes them

_LOCK_WAIT_S = 2.0  # somebody who asks whether the lock is taken holds it for an instant


@dataclass(frozen=True)
class SupervisorRecord:
    """A supervisor: its process, host, and the state of its job in STATES' words."""

    pid: int
    started: int
    host: str
    state: str
    reason: str = ""


def write_record(submission: SubmissionDir, record: SupervisorRecord) -> None:
    """Replace the record; where the disk is full, write over the old one, whose bytes it has already.

    Raises: OSError.
    """
    path = submission.path / "supervisor.json"
    text = json.dumps({**asdict(record), "reason": record.reason[:MAX_REASON]})
    data = text.encode().ljust(RECORD_BYTES) + b"\n"  # always as long: blanks at the end are JSON too
    try:
        write_atomic(path, data)
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        try:
            os.pwrite(fd, data, 0)
            os.fsync(fd)
        finally:
            os.close(fd)


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
        fd = os.open(submission.path / "supervisor.lock", os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
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
