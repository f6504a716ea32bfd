"""Which checkpoints of a framework are complete: each gets a mark once every rank has written its part.

Apart because frameworks write file after file under the final name, and every rank its own: a directory that is there
may hold half a checkpoint. The mark lists the files and their sizes, so that one which lost files to a retention that
was cut short does not count either. Standard library only.
"""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

from hpc_train.errors import UsageError
from hpc_train.files import read_json, write_json

__all__ = [
    "complete_checkpoints",
    "mark_complete",
    "newest_checkpoint",
    "refuse_of_another_run",
    "unmark",
]

FORMAT, VERSION = "hpc-train-complete", 1
MARK = "hpc-train-complete.json"  # in a checkpoint that is a directory
SUFFIX = ".complete.json"  # beside one that is a file

_log = logging.getLogger(__name__)


def newest_checkpoint(directory: str | os.PathLike[str]) -> str | None:
    """Path of the newest complete checkpoint of a framework; None where there is none, as at the first start.

    Give it to `Trainer.train(resume_from_checkpoint=…)` or `Trainer.fit(ckpt_path=…)`. Only checkpoints that a
    StopCallback of this package saw complete count. Not collective; the callback compares what the ranks took.

    Args:  directory: the trainer's `output_dir`, or the Lightning callback's directory. It need not exist yet.
    Raises: OSError if the directory is there but cannot be read; UsageError if the newest one is another run's: a
    training that finds itself finished by somebody else ends as if all were well.
    """
    found = complete_checkpoints(Path(directory))
    if not found:
        return None
    newest = found[-1][1]
    refuse_of_another_run(newest)
    return str(newest)


def refuse_of_another_run(checkpoint: Path) -> None:
    """Refuse a complete checkpoint whose mark names another run than this one; outside of runs none is refused.

    What lies in this run's own directory is its own, also where that was renamed since.
    Raises: UsageError, with both runs and the ways out.
    """
    directory, theirs = os.environ.get("HPC_TRAIN_RUN_DIR", ""), _read_run(checkpoint)
    if not directory or not theirs or theirs == _this_run():
        return
    if not checkpoint.resolve().is_relative_to(Path(directory).resolve()):
        raise UsageError(
            f"{checkpoint} is of run {theirs}, and this is run {_this_run()}: save into a directory of this run's own, "
            f"below $HPC_TRAIN_RUN_DIR, or go on with that run: hpc-train resume {theirs}; to start from its weights "
            "on purpose, save elsewhere and give that path yourself"
        )


def complete_checkpoints(directory: Path) -> list[tuple[int, Path]]:
    """Step and path of every complete checkpoint in a directory, oldest step first."""
    try:
        entries = sorted(directory.iterdir())
    except FileNotFoundError:
        return []
    found = []
    for path in entries:
        if path.name.startswith(".") or path.name.endswith(SUFFIX):
            continue
        step = _complete_step(path)
        if step is not None:
            found.append((step, path))
    return sorted(found, key=lambda pair: pair[0])


def mark_complete(checkpoint: Path, step: int) -> int:
    """Mark a checkpoint that all ranks have written and flushed; returns its size [bytes]. On rank 0 only.

    Raises: OSError as the system gives it.
    """
    files = {str(path.relative_to(checkpoint.parent)): path.stat().st_size for path in _files(checkpoint)}
    record = {"format": FORMAT, "version": VERSION, "step": step, "run": _this_run(), "files": files}
    write_json(_mark_of(checkpoint), record)
    return sum(files.values())


def unmark(checkpoint: Path) -> None:
    """Take the mark away: before the checkpoint is written again or removed."""
    for mark in (checkpoint / MARK, checkpoint.with_name(checkpoint.name + SUFFIX)):
        try:
            mark.unlink()
        except (FileNotFoundError, NotADirectoryError):
            continue


def _this_run() -> str:
    """Name of the run that this process belongs to; "" outside one."""
    return os.path.basename(os.environ.get("HPC_TRAIN_RUN_DIR", "").rstrip("/"))


def _read_run(checkpoint: Path) -> str:
    """The run that a complete checkpoint's mark names; "" where it names none."""
    record: Any = read_json(_mark_of(checkpoint), limit=64 << 20)
    return str(record.get("run", ""))


def _mark_of(checkpoint: Path) -> Path:
    return checkpoint / MARK if checkpoint.is_dir() else checkpoint.with_name(checkpoint.name + SUFFIX)


def _files(checkpoint: Path) -> list[Path]:
    if not checkpoint.is_dir():
        return [checkpoint]
    return [path for path in sorted(checkpoint.rglob("*")) if path.is_file() and path.name != MARK]


def _complete_step(checkpoint: Path) -> int | None:
    try:
        record: Any = read_json(_mark_of(checkpoint), limit=64 << 20)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError) as error:
        _log.warning("%s is passed over: its mark cannot be read (%s)", checkpoint, error)
        return None
    try:
        if (record["format"], record["version"]) != (FORMAT, VERSION):
            raise ValueError("not a mark of this version")
        sizes = {str(name): int(size) for name, size in record["files"].items()}
        step = int(record["step"])
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        _log.warning("%s is passed over: its mark is damaged (%s)", checkpoint, error)
        return None
    for name, size in sizes.items():
        try:
            actual = (checkpoint.parent / name).stat().st_size
        except OSError:
            actual = -1
        if actual != size:
            _log.warning("%s is passed over: %s has not the %d bytes that were saved", checkpoint, name, size)
            return None
    return step
