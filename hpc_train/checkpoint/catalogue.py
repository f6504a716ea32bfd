"""The checkpoints of a root: which are committed, which are not, which is the newest.

Apart from loading because login nodes ask it, without torch or numpy. It trusts directory names by exact pattern and
COMMIT, nothing else: no time stamps (clocks differ), and LATEST is only advice. Standard library only.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from hpc_train.checkpoint.names import parse_aside, parse_in_progress, parse_step
from hpc_train.checkpoint.reader import check_index_file, read_commit
from hpc_train.errors import CheckpointError, HpcTrainError, from_os_error

__all__ = ["Entry", "find_root", "list_checkpoints", "newest"]


@dataclass(frozen=True)
class Entry:
    """One directory of a root.

    Attributes:  status: "committed"; "damaged" (a committed name whose COMMIT is missing or bad, or whose index is
    missing, unreadable or of another length: `problem` says how);
    "uncommitted" (a save under way, or cut off), "replaced", "abandoned" or "deleting" (put aside).
    num_bytes, world_size, created (seconds since 1970): from COMMIT, None without one.
    """

    step: int | None
    status: str
    path: Path
    num_bytes: int | None = None
    world_size: int | None = None
    created: int | None = None
    problem: str | None = None

    def as_json(self) -> dict[str, Any]:
        """For `checkpoint list --json`."""
        return {**asdict(self), "path": str(self.path)}


def find_root(path: str | os.PathLike[str]) -> Path:
    """The checkpoint root meant by a path: of a run directory its `checkpoints`, else the path itself.

    Raises: CheckpointError if it is no directory.
    """
    given = Path(path)
    root = given / "checkpoints" if (given / "run.json").exists() else given
    if not root.is_dir():
        raise CheckpointError(f"{given}: not a directory; give a checkpoint root or a run directory")
    return root


def list_checkpoints(root: str | os.PathLike[str]) -> list[Entry]:
    """Everything of ours in a root, oldest step first, what is put aside last. A missing root has none.

    Names that only resemble ours are left out. Reads COMMIT files only and looks whether the index is there, so
    "committed" says nothing of the data: `verify` does.
    Raises: PermissionDeniedError, StorageError if the root cannot be read.
    """
    folder = Path(root)
    try:
        names = sorted(os.listdir(folder))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise from_os_error(error, f"cannot list {folder}") from error
    entries = [entry for name in names if (entry := _entry(folder, name)) is not None]
    return sorted(entries, key=lambda entry: (entry.path.name.startswith("."), entry.step or 0))


def newest(root: str | os.PathLike[str]) -> Entry | None:
    """The committed checkpoint with the highest step; None if there is none."""
    committed = [entry for entry in list_checkpoints(root) if entry.status == "committed"]
    return committed[-1] if committed else None


def _entry(folder: Path, name: str) -> Entry | None:
    path = folder / name
    step = parse_step(name)
    if step is not None:
        try:
            commit = read_commit(path)
        except HpcTrainError as error:
            return Entry(step, "damaged", path, problem=str(error))
        entry = Entry(step, "committed", path, commit.num_bytes, commit.world_size, commit.created)
        try:
            check_index_file(path, commit)
        except HpcTrainError as error:
            return replace(entry, status="damaged", problem=str(error))
        return entry
    step = parse_in_progress(name)
    if step is not None:
        return Entry(step, "uncommitted", path)
    aside = parse_aside(name)
    return None if aside is None else Entry(aside[1], aside[0], path)
