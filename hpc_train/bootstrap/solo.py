"""A World of one rank that belongs to a run.

Apart from `SoloWorld` in the base, which knows no run, journal or watchdog.
"""

from __future__ import annotations

import socket

from hpc_train.bootstrap.attached import AttachedWorld
from hpc_train.bootstrap.attachment import Attachment
from hpc_train.world import SoloCollectives

__all__ = ["AttachedSoloWorld"]


class AttachedSoloWorld(SoloCollectives, AttachedWorld):
    """Rank 0 of 1; its collectives return at once."""

    def __init__(self, attachment: Attachment) -> None:
        super().__init__(attachment, rank=0, size=1, local=(0, 1), node=socket.gethostname())
