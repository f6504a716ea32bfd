"""Whether a later attempt owns the run by now, or nobody as it was cancelled: as a monitor sees it.

Apart because it is the only look beyond the own attempt's directory. A node that was cut off goes on computing while
its job runs again elsewhere; the commit's fence stops what saves, and this watch what does not. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import random
import time

from hpc_train.errors import StorageError
from hpc_train.launch.processes import find_ranks
from hpc_train.run.layout import AttemptDir, RunDir
from hpc_train.run.ownership import Ownership, read_ownership

__all__ = ["PERIOD_S", "OwnerWatch", "monitors_beside"]

PERIOD_S = 4.0  # one stat(2) a node so often: 1000 nodes make 250 a second


class OwnerWatch:
    """Looks at the run's owner record from time to time; reads it only when it has changed.

    Args:  is_leader: whether this monitor looks by itself: one a node is enough.   period_s: between two looks, a
    quarter more or less, so that the nodes of a job do not all ask in the same instant.
    """

    def __init__(self, attempt: AttemptDir, *, is_leader: bool, period_s: float = PERIOD_S) -> None:
        self.found = ""
        self._run = RunDir(attempt.path.parent)
        self._attempt = attempt.number
        self._is_leader = is_leader
        self._period_s = period_s
        self._next = time.monotonic() + period_s * random.random()
        self._seen: tuple[int, int] | None = None

    def look(self, now: float) -> str:
        """Why this attempt does not own the run any more, in words; "" while it does. Looks only if it is time."""
        if self._is_leader and now >= self._next:
            self._next = now + self._period_s * random.uniform(0.75, 1.25)
            self.look_at_once()
        return self.found

    def look_at_once(self) -> str:
        """The same, for a rank that is about to end or has been told to: it may be because of that.

        A record that is missing or cannot be read says nothing: that the file system fails is no reason to end.
        """
        with contextlib.suppress(OSError, StorageError):
            status = os.stat(self._run.owner)
            seen = (status.st_ino, status.st_mtime_ns)  # each record is a new file
            if not self.found and seen != self._seen:
                owner = read_ownership(self._run)
                if owner is not None:
                    self.found = self._given_up(owner)
                self._seen = seen
        return self.found

    def _given_up(self, owner: Ownership) -> str:
        if owner.attempt > self._attempt:
            return f"attempt {owner.attempt} owns the run now: this one was given up, its node cut off"
        if owner.is_cancelled and owner.attempt == self._attempt:
            return "the run was cancelled, and the scheduler did not reach this node"
        return ""


def monitors_beside(attempt: AttemptDir) -> list[int]:
    """PIDs of the other monitors of an attempt on this node."""
    ranks = find_ranks(attempt.path.parent, attempt=attempt.number)
    return [found.monitor for found in ranks if found.monitor != os.getpid()]
