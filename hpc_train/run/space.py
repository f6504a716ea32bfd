"""How much room a run's file systems have, beside what a checkpoint of it takes, in words.

Apart because a full disk is repaired by hand, and whoever does it has to know where and how much. Standard library
only.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from hpc_train.run.journal import Event
from hpc_train.run.layout import RunDir

__all__ = ["describe_space"]


def describe_space(run: RunDir, events: Sequence[Event]) -> list[str]:
    """One line for each file system that the run writes to: its run directory's, and its checkpoints'."""
    commits = [event.fields for event in events if event.event == "commit"]
    size = next((each["bytes"] for each in reversed(commits) if type(each.get("bytes")) is int), None)
    paths = [str(each["path"]) for each in commits[-1:] if isinstance(each.get("path"), str)]
    root = Path(run.path, paths[0]).parent if paths else run.checkpoints
    lines = []
    devices: dict[int, Path] = {}
    for place in (root, run.path):
        try:
            devices.setdefault(os.stat(place).st_dev, place)
        except OSError:
            continue
    for place in devices.values():
        lines.append(f"{place}: {_free(place)}")
    if size is not None:
        lines.append(f"the last checkpoint took {size:,} bytes in {root}; as many must be free, and a tenth more")
    return lines


def _free(place: Path) -> str:
    try:
        space = os.statvfs(place)
    except OSError as error:
        return f"cannot be asked for free space: {error.strerror}"
    inodes = f" and {space.f_favail:,} inodes" if space.f_files else ""
    return f"{space.f_bavail * space.f_frsize:,} bytes{inodes} free; a quota may allow less"
