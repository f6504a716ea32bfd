"""The supervisor's record: who it is, and what it last said of its job.

Apart from the supervisor because the login side reads it without starting anything. A PID alone is not a name: it is
recycled, so the process's start time goes with it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hpc_train.files import read_json, write_json
from hpc_train.run.layout import SubmissionDir

__all__ = ["SupervisorRecord", "hold_lock", "is_locked", "process_start", "read_record", "write_record"]


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
        return SupervisorRecord(**raw)
    except (OSError, ValueError, TypeError):
        return None


@contextmanager
def hold_lock(submission: SubmissionDir) -> Iterator[bool]:
    """Hold the supervisor's lock while the body runs; yields False if another supervisor holds it."""
    fd = os.open(submission.path / "supervisor.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield True
    finally:
        os.close(fd)


def is_locked(submission: SubmissionDir) -> bool:
    """Whether a supervisor is alive on this submission."""
    if not (submission.path / "supervisor.lock").exists():
        return False
    with hold_lock(submission) as mine:
        return not mine
