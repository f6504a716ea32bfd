"""What a run takes on disk, and how it is removed so that an interrupted removal can be finished.

Apart from the command because this is where a mistake costs a person's work: a run's directory is first renamed, which
no job survives unnoticed, and nothing is ever followed through a link. Standard library only.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hpc_train.files import fsync_dir
from hpc_train.run.layout import RunDir

__all__ = ["DiskUse", "find_half_removed", "measure_disk", "remove_run", "remove_traces", "remove_tree"]

_HALF_REMOVED = re.compile(r"\.deleting-.+\.hpc-train")


@dataclass(frozen=True)
class DiskUse:
    """Bytes that a run takes, by what they are for, and the number of its files and directories."""

    checkpoints: int = 0
    logs: int = 0
    journal: int = 0
    other: int = 0
    num_files: int = 0

    @property
    def total(self) -> int:
        """All bytes."""
        return self.checkpoints + self.logs + self.journal + self.other


def measure_disk(run: RunDir) -> DiskUse:
    """Walk the run without following links; a file with several names counts once. Raises: OSError."""
    sizes = {"checkpoints": 0, "logs": 0, "journal": 0, "other": 0}
    seen: set[tuple[int, int]] = set()
    num_files = 0
    for path, status in _walk(run.path):
        num_files += 1
        if (status.st_dev, status.st_ino) not in seen:
            seen.add((status.st_dev, status.st_ino))
            sizes[_purpose(path.relative_to(run.path))] += status.st_blocks * 512
    return DiskUse(**sizes, num_files=num_files)


def _walk(top: Path) -> Iterator[tuple[Path, os.stat_result]]:
    waiting = [top]
    while waiting:
        try:
            entries = list(os.scandir(waiting.pop()))
        except FileNotFoundError:  # a live run removes old checkpoints
            continue
        for entry in entries:
            try:
                yield Path(entry.path), entry.stat(follow_symlinks=False)
            except FileNotFoundError:
                continue
            if entry.is_dir(follow_symlinks=False):
                waiting.append(Path(entry.path))


def _purpose(path: Path) -> str:
    if path.parts[0] in ("checkpoints", "journal"):
        return path.parts[0]
    return "logs" if path.suffix == ".log" else "other"


def remove_run(run: RunDir) -> None:
    """Remove a run's directory. It is renamed first: from then on it is no run, and the rest can be done later.

    Raises: OSError; NotADirectoryError for a link, which is left alone with what it points to.
    """
    _refuse_link(run.path)
    doomed = run.path.with_name(f".deleting-{run.name}.hpc-train")
    if os.path.lexists(doomed):
        remove_tree(doomed)  # of an earlier run of that name
    os.rename(run.path, doomed)
    fsync_dir(run.path.parent)
    remove_tree(doomed)


def remove_traces(run: RunDir) -> None:
    """Remove logs, marks and journal of a run; its checkpoints, its records and its decisions stay.

    Doing it again after an interruption finishes it. Raises: OSError.
    """
    _refuse_link(run.path)
    for attempt in run.attempts():
        _refuse_link(attempt.path)
        kept = (attempt.decision.name, attempt.started.name, attempt.done.name)
        _remove_all(Path(entry.path) for entry in os.scandir(attempt.path) if entry.name not in kept)
    for submission in run.submissions():
        _refuse_link(submission.path)
        submission.batch_log.unlink(missing_ok=True)
    if run.journal.is_dir() and not run.journal.is_symlink():
        _remove_all(Path(entry.path) for entry in os.scandir(run.journal))


def _remove_all(paths: Iterable[Path]) -> None:
    for path in list(paths):
        if path.is_dir() and not path.is_symlink():
            remove_tree(path)
        else:
            path.unlink(missing_ok=True)


def remove_tree(path: Path) -> None:
    """Remove a directory and all below it; links in it go, what they point to stays. Raises: OSError."""
    _refuse_link(path)
    shutil.rmtree(path)  # with descriptors: a directory that becomes a link meanwhile is not followed


def _refuse_link(path: Path) -> None:
    if not stat.S_ISDIR(os.lstat(path).st_mode):
        raise NotADirectoryError(20, "it is a link, not the directory itself", str(path))


def find_half_removed(roots: Iterable[Path]) -> list[Path]:
    """Directories in these run roots whose removal was interrupted: ours by their names and their owner."""
    found = []
    for root in roots:
        try:
            entries = list(os.scandir(root))
        except OSError:  # not mounted here, or gone
            continue
        for entry in entries:
            is_ours = _HALF_REMOVED.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)
            if is_ours and entry.stat(follow_symlinks=False).st_uid == os.geteuid():
                found.append(Path(entry.path))
    return sorted(found)
