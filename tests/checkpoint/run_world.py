"""A World of one rank that believes to be in a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hpc_train.errors import Superseded
from hpc_train.world import SoloWorld


class RunWorld(SoloWorld):
    """One rank inside a run: remembers its records, and may have lost the run."""

    def __init__(self, run_dir: Path) -> None:
        super().__init__()
        self.run_dir = run_dir
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.is_superseded = False
        self.fences_left: int | None = None  # so many looks still find this attempt the owner

    def record(self, event: str, **fields: Any) -> None:
        self.events.append((event, fields))

    def fence(self) -> None:
        if self.fences_left is not None:
            self.fences_left -= 1
        if self.is_superseded or (self.fences_left or 0) < 0:
            raise Superseded("another attempt owns the run")
