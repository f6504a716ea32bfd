"""One command at a time acts on a run: cancel, requeue and clean take turns.

Apart because each of them reads what there is, decides, and then acts: a requeue between a cancel's look and its
scancel would start what the person has just ended. Standard library only.
"""

from __future__ import annotations

import errno
import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager

from hpc_train.run.layout import RunDir

__all__ = ["hold_turn"]

TURN_WAIT_S = 120.0  # longer than the longest sbatch and its look-up


@contextmanager
def hold_turn(run: RunDir, *, wait_s: float = TURN_WAIT_S) -> Iterator[bool]:
    """Hold the run's turn while the body runs, after waiting for the command that has it.

    Yields: whether the turn is held; False where the file system has no locks, the run takes no file (a full disk), or
    the other command did not end in time. A command that dies gives its turn back.
    """
    fd = -1
    try:
        try:
            fd = os.open(run.claim, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            is_held = _lock(fd, time.monotonic() + wait_s)
        except OSError:
            is_held = False
        yield is_held
    finally:
        if fd >= 0:
            os.close(fd)


def _lock(fd: int, deadline: float) -> bool:
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EAGAIN) or time.monotonic() >= deadline:
                return False
        time.sleep(0.05)
