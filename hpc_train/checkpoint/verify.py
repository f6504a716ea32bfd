"""Is a checkpoint what was saved? Every byte is read and compared.

Apart from loading because it goes on after the first damage and names each, and runs on machines without torch.
Standard library only (isal where installed).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from hpc_train.checkpoint.catalogue import find_root, list_checkpoints
from hpc_train.checkpoint.checksum import CHUNK_BYTES, chunk_spans, crc32
from hpc_train.checkpoint.index import Extent
from hpc_train.checkpoint.names import (
    COMMIT_NAME,
    INDEX_NAME,
    LATEST_FORMAT,
    LATEST_NAME,
    OWNER_FORMAT,
    OWNER_NAME,
    data_name,
)
from hpc_train.checkpoint.reader import OpenCheckpoint
from hpc_train.errors import CheckpointError
from hpc_train.files import read_json

__all__ = ["Verdict", "check_root", "verify_checkpoint", "verify_tree"]

MAX_PROBLEMS = 1000  # of one checkpoint; a file of garbage should not fill the screen or the memory


@dataclass(frozen=True)
class Verdict:
    """What `verify_checkpoint` found. `problems` is empty for a good checkpoint; each names file, tensor and chunk.
    `warnings`: what does no harm, such as files that do not belong there."""

    path: Path
    step: int | None
    num_bytes: int
    problems: tuple[str, ...]
    warnings: tuple[str, ...] = ()

    @property
    def is_good(self) -> bool:
        """No problem found."""
        return not self.problems

    def as_json(self) -> dict[str, Any]:
        """For `checkpoint verify --json`."""
        return {**asdict(self), "path": str(self.path), "is_good": self.is_good}


def verify_checkpoint(path: str | os.PathLike[str]) -> Verdict:
    """Read every byte of one checkpoint directory.

    Raises: PermissionDeniedError. Damage of any kind is in the verdict, not raised. Reads with one thread.
    """
    directory = Path(path)
    problems: list[str] = []
    try:
        checkpoint = OpenCheckpoint(directory, problems=problems)
    except CheckpointError as error:
        return Verdict(directory, None, 0, (*problems, str(error)))
    with checkpoint:
        for problem in _problems(checkpoint):
            problems.append(problem)
            if len(problems) == MAX_PROBLEMS:
                problems.append(f"more than {MAX_PROBLEMS} problems: the rest was not read")
                break
        commit, extra = checkpoint.commit, _foreign_files(checkpoint)
        return Verdict(directory, commit.step, commit.num_bytes, tuple(problems), extra)


def _foreign_files(checkpoint: OpenCheckpoint) -> tuple[str, ...]:
    known = {COMMIT_NAME, INDEX_NAME, *map(data_name, range(len(checkpoint.commit.file_nbytes)))}
    extra = sorted(set(os.listdir(checkpoint.path)) - known)
    return tuple(f"{checkpoint.path / name}: is not part of the checkpoint" for name in extra[:MAX_PROBLEMS])


def check_root(path: str | os.PathLike[str]) -> list[str]:
    """Warnings about the records of a root beside its checkpoints: who owns it, and the advice which is the newest.

    Args:  path: a root or run directory; one checkpoint has no such records.
    Returns: nothing for a good root. No checkpoint depends on either record.
    """
    if (Path(path) / COMMIT_NAME).exists() or not Path(path).is_dir():
        return []
    root = find_root(path)
    committed = [entry for entry in list_checkpoints(root) if entry.status == "committed"]
    warnings = []
    for name, kind in ((OWNER_NAME, OWNER_FORMAT), (LATEST_NAME, LATEST_FORMAT)):
        try:
            record = read_json(root / name)
            if not isinstance(record, dict) or record.get("format") != kind:
                raise ValueError(f"not a record of format {kind!r}")
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:
            warnings.append(f"{root / name}: damaged ({error}); no checkpoint depends on it")
            continue
        if name == LATEST_NAME and committed and record.get("step") != committed[-1].step:
            warnings.append(f"{root / name}: says step {record.get('step')}, the newest is {committed[-1].step}")
    return warnings


def verify_tree(path: str | os.PathLike[str]) -> list[Verdict]:
    """Verify one checkpoint, or every committed one of a root or run directory, oldest first.

    Raises: CheckpointError if nothing is there; PermissionDeniedError.
    """
    given = Path(path)
    is_one = (given / COMMIT_NAME).exists()
    root = given if is_one else find_root(given)
    entries = [] if is_one else [e.path for e in list_checkpoints(root) if e.status in ("committed", "damaged")]
    if not is_one and not entries:
        # A directory whose COMMIT is gone must not pass for an empty root.
        if (root / data_name(0)).exists() or root.name.startswith("step-"):
            return [verify_checkpoint(root)]
        raise CheckpointError(f"{root}: holds no checkpoint (step-000000000)")
    return [verify_checkpoint(entry) for entry in ([given] if is_one else entries)]


def _problems(checkpoint: OpenCheckpoint) -> Iterator[str]:
    buffer = memoryview(bytearray(CHUNK_BYTES))
    for file, (nbytes, expected) in enumerate(checkpoint.index.headers):
        if not checkpoint.is_there(file):
            continue  # named already
        value = 0
        for start, stop in chunk_spans(nbytes):
            checkpoint.read_raw(file, start, buffer[: stop - start])
            value = crc32(buffer[: stop - start], value)
        if value != expected:
            yield f"{checkpoint.path / data_name(file)}: its safetensors header is damaged (CRC-32 does not match)"
    for extent, what in _extents(checkpoint):
        if not checkpoint.is_there(extent.file):
            continue
        for number, (start, stop) in enumerate(chunk_spans(extent.nbytes)):
            try:
                checkpoint.read_chunk(extent, number, buffer[: stop - start], what)
            except CheckpointError as error:
                yield str(error)
    for file, gaps in enumerate(checkpoint.index.gaps):
        for first, last in gaps if checkpoint.is_there(file) else ():
            for start, stop in chunk_spans(last - first):
                checkpoint.read_raw(file, first + start, buffer[: stop - start])
                if buffer[: stop - start].tobytes().strip(b"\0"):
                    yield f"{checkpoint.path / data_name(file)}: padding at byte {first + start} is not zero"
                    break


def _extents(checkpoint: OpenCheckpoint) -> Iterator[tuple[Extent, str]]:
    index = checkpoint.index
    for ordinal, name in enumerate(index.names):
        for number, box in enumerate(index.boxes(ordinal)):
            yield box.extent, f"tensor {name!r}, box {number}"
    for blob in index.rank_states:
        yield blob.extent, f"state of rank {blob.rank}"
