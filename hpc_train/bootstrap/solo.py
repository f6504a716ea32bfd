"""A World of one rank that belongs to a run.

Apart from `SoloWorld` in the base, which knows no run, journal or watchdog.
"""

from __future__ import annotations

import socket
from typing import TypeVar

from hpc_train.bootstrap.attached import AttachedWorld
from hpc_train.bootstrap.attachment import Attachment

__all__ = ["AttachedSoloWorld"]

T = TypeVar("T")


class AttachedSoloWorld(AttachedWorld):
    """Rank 0 of 1; its collectives return at once."""

    def __init__(self, attachment: Attachment) -> None:
        super().__init__(attachment, rank=0, size=1, local=(0, 1), node=socket.gethostname())

    def barrier(self) -> None:
        """Nothing to wait for."""

    def broadcast(self, value: T, root: int = 0) -> T:
        """The value itself."""
        return value

    def allgather(self, value: T) -> list[T]:
        """A list of the one value."""
        return [value]

    def allreduce(self, value: int | float, op: str = "sum") -> int | float:
        """The value itself."""
        return value
