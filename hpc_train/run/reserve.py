"""A little of a run's disk kept back, so that a full disk can still be told of.

Apart because whoever has to write the last word of a run (a monitor, the decision) comes when nothing is left:
without the mark and the decision the run would be lost without a word, instead of held. Two parts, so that the ranks
cannot use up the decision's. Standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from hpc_train.run.layout import RunDir

__all__ = ["DECISION", "MARKS", "NO_SPACE", "keep_reserve", "with_reserve"]

T = TypeVar("T")

MARKS, DECISION = ".reserve-marks", ".reserve-decision"
NO_SPACE = (errno.ENOSPC, errno.EDQUOT)

DECISION_BYTES = 64 << 10
BYTES_PER_RANK = 12 << 10  # a mark is written twice beside the old one: three pages
MIN_BYTES, MAX_BYTES = 64 << 10, 16 << 20


def keep_reserve(run: RunDir, num_ranks: int) -> None:
    """Make what is missing of the reserve: a few dozen KiB, more for many ranks.

    Raises: OSError as the system gives it: where there is no room for it, there is none for the run either.
    """
    wanted = min(max(num_ranks * BYTES_PER_RANK, MIN_BYTES), MAX_BYTES)
    for name, nbytes in ((MARKS, wanted), (DECISION, DECISION_BYTES)):
        path = run.path / name
        if not path.exists() or path.stat().st_size != nbytes:
            _fill(path, nbytes)


def _fill(path: Path, nbytes: int) -> None:
    try:
        # O_NONBLOCK: a FIFO in its place is an error, not a wait.
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
        fd = os.open(path, flags, 0o600)
        try:
            # Random, not zeros: some file systems store zeros in no space at all. fsync: others count it only then.
            left = memoryview(os.urandom(nbytes))
            while left:
                left = left[os.write(fd, left) :]
            os.fsync(fd)
        finally:
            os.close(fd)
    except OSError:
        with contextlib.suppress(OSError):
            path.unlink()  # half of it would hold back space and be no help
        raise


def with_reserve(run: RunDir, name: str, act: Callable[[], T]) -> T:
    """Do something that must be written down: if the disk is full, once more with the reserve given free.

    Args:  name: MARKS or DECISION.   act: may be done twice.
    Raises: what `act` raises.
    """
    try:
        return act()
    except OSError as error:
        if error.errno not in NO_SPACE:
            raise
        with contextlib.suppress(OSError):  # another rank may have given it free just now
            (run.path / name).unlink()
        return act()
