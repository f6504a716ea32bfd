"""The part of a World that is the same whatever carries its collectives.

Apart so that the MPI and torch Worlds hold only what differs.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from hpc_train.bootstrap.attachment import Attachment
from hpc_train.world import ShownWorld

__all__ = ["AttachedWorld"]


class AttachedWorld(ShownWorld):
    """Identity, run and watchdog of a rank; the subclasses add the collectives."""

    def __init__(self, attachment: Attachment, *, rank: int, size: int, local: tuple[int, int], node: str) -> None:
        self._attachment = attachment
        self.rank = rank
        self.size = size
        self.local_rank, self.local_size = local
        self.node = node
        self.device = "cpu"
        self.mpi: Any = None

    @property
    def attempt(self) -> int:
        """Number of the attempt, 0 outside a run."""
        return self._attachment.attempt

    @property
    def run_dir(self) -> Path | None:
        """The run's directory, None outside a run."""
        return self._attachment.run_dir

    def fence(self) -> None:
        """Raise Superseded if another attempt owns the run now. Not collective."""
        self._attachment.fence()

    def record(self, event: str, **fields: Any) -> None:
        """Append to the run's journal on rank 0; elsewhere nothing."""
        self._attachment.record(event, **fields)

    def phase(self, name: str, limit_s: float | None = None) -> AbstractContextManager[None]:
        """Tell the watchdog what this rank does now."""
        return self._attachment.phase(name, limit_s)
