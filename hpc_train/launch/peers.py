"""What a rank's monitor learns of the other ranks, from the attempt's directory.

Apart from the monitor because this is the only traffic between monitors: files with a rank's number as their name.
A file system that does not answer for a moment is no failure of the program. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
from dataclasses import replace
from pathlib import Path

from hpc_train.files import read_json
from hpc_train.launch.identity import Identity
from hpc_train.launch.page import FINISHED, Snapshot
from hpc_train.launch.verdict import Company, roll_call_s, waits_in_vain
from hpc_train.run.layout import AttemptDir

__all__ = ["Peers"]

_ORDERLY = ("stopped", "terminated")  # ends that ranks are told to make, each in its time
_SORTED = 64  # so many early leavers are put in the order in which they left


class Peers:
    """The other ranks of an attempt, looked at every `poll_s` seconds."""

    def __init__(self, attempt: AttemptDir, identity: Identity, *, poll_s: float) -> None:
        self.company = Company()
        self._attempt = attempt
        self._identity = identity
        self._poll_s = poll_s
        self._next = 0.0
        self._is_waiting = False
        self._harmless: set[str] = set()  # marks that were read and tell of no failure
        self._looks_all_waited = 0
        self._all_ended_since: float | None = None

    def woke_up(self, now: float) -> None:
        """This node was suspended until now: no clock that ran meanwhile counts."""
        self.company = replace(self.company, awake_since=now)

    def look(self, now: float, page: Snapshot) -> None:
        """Look at the directory if it is time, and say there whether this rank waits in vain."""
        if now < self._next:
            return
        self._next = now + self._poll_s
        finished = _ranks(self._attempt.finished)
        self._look_for_failure(now)
        if page.state == FINISHED:
            if self._all_ended_since is None and len(finished) >= self._identity.size:
                self._all_ended_since = now
            return
        if finished and self.company.left_since is None:
            self.company = replace(self.company, left_since=now)
        if len(finished) > len(self.company.left_early):
            self.company = replace(self.company, left_early=self._in_order(finished))
        self._tell_waiting(waits_in_vain(page, now, self.company))
        waiting = _ranks(self._attempt.waiting) if self._is_waiting else set()
        # Twice in a row: a rank that has just gone on may not have taken its word back yet.
        self._looks_all_waited = self._looks_all_waited + 1 if len(finished | waiting) >= self._identity.size else 0
        self.company = replace(self.company, all_wait=self._looks_all_waited >= 2)

    def _look_for_failure(self, now: float) -> None:
        if self.company.failed is not None:
            if self.company.has_hung and not self.company.all_spoke:
                self.company = replace(self.company, all_spoke=self.all_have_ended())
            return
        for name in sorted(set(_marks(self._attempt.exits)) - self._harmless):
            with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
                mark = read_json(self._attempt.exits / name, limit=65536)
                if mark["failure"] not in _ORDERLY:
                    self._note_failure(int(mark["rank"]), now, has_hung=mark["failure"] == "hang")
                    return
                self._harmless.add(name)

    def _note_failure(self, rank: int, now: float, *, has_hung: bool) -> None:
        since = now + (roll_call_s(self._poll_s) if has_hung else 0.0)
        self.company = replace(self.company, failed=rank, failed_since=since, has_hung=has_hung)

    def _tell_waiting(self, is_waiting: bool) -> None:
        if is_waiting == self._is_waiting:
            return
        path = self._attempt.waiting / str(self._identity.rank)
        with contextlib.suppress(OSError):
            if is_waiting:
                path.parent.mkdir(exist_ok=True)
                path.touch()
            else:
                path.unlink(missing_ok=True)
            self._is_waiting = is_waiting

    def _in_order(self, finished: set[int]) -> tuple[int, ...]:
        def left_at(rank: int) -> float:
            with contextlib.suppress(OSError):
                return os.stat(self._attempt.finished / str(rank)).st_mtime
            return 0.0

        return tuple(sorted(sorted(finished)[:_SORTED], key=left_at))

    def ended_for_s(self, now: float) -> float:
        """How long ago this rank, having finished, saw that all the others had too [s]; 0 before."""
        return 0.0 if self._all_ended_since is None else now - self._all_ended_since

    def all_have_finished(self) -> bool:
        """Whether every rank has ended cleanly."""
        return len(_ranks(self._attempt.finished)) >= self._identity.size

    def all_have_ended(self) -> bool:
        """Whether every rank has ended, in whatever way, as far as ranks can tell themselves."""
        return len(_ranks(self._attempt.finished)) + len(_marks(self._attempt.exits)) >= self._identity.size

    def need_no_store(self) -> bool:
        """Whether no rank can still use the store that rank 0 hosts: all have ended, or one has failed."""
        return self.somebody_failed() or self.all_have_finished()

    def somebody_failed(self) -> bool:
        """Whether a rank has left an exit mark."""
        return bool(_marks(self._attempt.exits))


def _names(directory: Path) -> list[str]:
    with contextlib.suppress(OSError):
        return os.listdir(directory)
    return []


def _ranks(directory: Path) -> set[int]:
    return {int(name) for name in _names(directory) if name.isdecimal()}


def _marks(directory: Path) -> list[str]:
    return [name for name in _names(directory) if name.startswith("rank-")]
