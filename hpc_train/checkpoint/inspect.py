"""What is in a checkpoint: its tensors, plain values and parts, who saved it and when; no tensor's bytes are read.

Apart from loading because it needs no program to load into, and no torch: it runs on a login node. Standard library
only.
"""

from __future__ import annotations

import base64
import binascii
import os
import shlex
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from hpc_train.checkpoint import values
from hpc_train.checkpoint.blob_reader import read_blob
from hpc_train.checkpoint.catalogue import find_root, list_checkpoints
from hpc_train.checkpoint.commit import Commit
from hpc_train.checkpoint.layout import Spec
from hpc_train.checkpoint.names import COMMIT_NAME, data_name, parse_step
from hpc_train.checkpoint.reader import OpenCheckpoint
from hpc_train.errors import CheckpointError

__all__ = ["Content", "PlainValue", "StoredTensor", "find_checkpoint", "inspect_checkpoint", "name_filter"]

SHOWN_BYTES = 32


@dataclass(frozen=True)
class StoredTensor:
    """One tensor. `file`: of its first box.   `also`: further names of the same memory."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    file: str = ""
    num_boxes: int = 1
    also: tuple[str, ...] = ()


@dataclass(frozen=True)
class PlainValue:
    """A value that is no tensor, as JSON can show it. `kind`: its Python type; a row of plain values is one value."""

    path: str
    kind: str
    value: Any


@dataclass(frozen=True)
class Content:
    """A checkpoint's content. `parts`: name to (tensors, their bytes, plain values).   `ranks`: bytes of each rank's
    own state, by rank.   `rank_tensors`, `rank_values`: of the one rank that was asked for."""

    path: Path
    commit: Commit
    tensors: tuple[StoredTensor, ...]
    plain: tuple[PlainValue, ...]
    parts: dict[str, tuple[int, int, int]]
    ranks: dict[int, int]
    rank_tensors: tuple[StoredTensor, ...] = ()
    rank_values: tuple[PlainValue, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """For `checkpoint inspect --json`."""
        commit = self.commit
        return {
            "path": str(self.path),
            "step": commit.step,
            "created": commit.created,
            "save_id": commit.save_id,
            "run": commit.run,
            "attempt": commit.attempt,
            "world_size": commit.world_size,
            "writer": commit.writer,
            "num_bytes": commit.num_bytes,
            "files": {data_name(number): nbytes for number, nbytes in enumerate(commit.file_nbytes)},
            "parts": {
                name: {"num_tensors": tensors, "num_bytes": nbytes, "num_values": plain}
                for name, (tensors, nbytes, plain) in self.parts.items()
            },
            "rank_states": {str(rank): nbytes for rank, nbytes in self.ranks.items()},
            "tensors": [asdict(tensor) for tensor in self.tensors],
            "values": [asdict(value) for value in self.plain],
            "rank_tensors": [asdict(tensor) for tensor in self.rank_tensors],
            "rank_values": [asdict(value) for value in self.rank_values],
        }


def find_checkpoint(path: str | os.PathLike[str], step: int | None = None) -> Path:
    """The directory of one checkpoint: the path itself, or of a root or run that step, by default the newest.

    Raises: CheckpointError if there is none.
    """
    given = Path(path)
    if (given / COMMIT_NAME).exists() or parse_step(given.name) is not None:
        found = parse_step(given.name)
        if step not in (None, found):
            raise CheckpointError(f"{given}: is one checkpoint, of step {found}; give its root to choose step {step}")
        return given
    root = find_root(given)
    entries = {entry.step: entry for entry in list_checkpoints(root) if entry.status in ("committed", "damaged")}
    committed = [entry.step for entry in entries.values() if entry.status == "committed"]
    chosen = (committed[-1] if committed else None) if step is None else step
    if chosen is None and entries:
        newest = list(entries.values())[-1]
        raise CheckpointError(
            f"{root}: no checkpoint is whole; the newest of {len(entries)}, step {newest.step}, is damaged:"
            f" {newest.problem}; see all damage with: hpc-train checkpoint verify {shlex.quote(str(root))}"
        )
    if chosen is None or chosen not in entries:
        there = ", ".join(map(str, entries)) or "none"
        raise CheckpointError(f"{root}: no checkpoint{'' if step is None else f' of step {step}'}; there are: {there}")
    return entries[chosen].path


def name_filter(patterns: tuple[str, ...]) -> Callable[[str], bool]:
    """Whether a name fits one of the patterns: shell wildcards, or a text that is found anywhere in it; () fits all."""
    wild = [text if any(letter in text for letter in "*?[") else f"*{text}*" for text in patterns]
    return lambda name: not wild or any(fnmatchcase(name, pattern) for pattern in wild)


def inspect_checkpoint(
    path: str | os.PathLike[str], *, patterns: tuple[str, ...] = (), rank: int | None = None
) -> Content:
    """The content of one checkpoint directory.

    Args:  patterns: as `name_filter`, for tensors and values.   rank: whose own state to show too.
    Raises: CheckpointError naming the file if COMMIT or the index is damaged or a data file has another length, or if
    that rank has no state here; PermissionDeniedError. The bytes of tensors are not checked: `verify` does that.
    """
    fits = name_filter(patterns)
    with OpenCheckpoint(Path(path)) as checkpoint:
        index = checkpoint.index
        tensors, plain = _all_tensors(checkpoint), list(_plain_values(index.state))
        rank_tensors, rank_values = _of_rank(checkpoint, rank) if rank is not None else ((), ())
        return Content(
            path=checkpoint.path,
            commit=checkpoint.commit,
            tensors=tuple(tensor for tensor in tensors if any(map(fits, (tensor.name, *tensor.also)))),
            plain=tuple(value for value in plain if fits(value.path)),
            parts=_parts(index.state, tensors, plain),
            ranks={blob.rank: blob.extent.nbytes for blob in index.rank_states},
            rank_tensors=tuple(tensor for tensor in rank_tensors if fits(tensor.name)),
            rank_values=tuple(value for value in rank_values if fits(value.path)),
        )


def _all_tensors(checkpoint: OpenCheckpoint) -> list[StoredTensor]:
    index = checkpoint.index
    also: dict[int, list[str]] = {}
    for name, ordinal in index.aliases:
        also.setdefault(ordinal, []).append(name)
    tensors = []
    for ordinal, name in enumerate(index.names):
        spec = Spec(name, index.dtypes[ordinal], index.shapes[ordinal])
        boxes = list(index.boxes(ordinal))
        others = tuple(also.get(ordinal, ()))
        place = data_name(boxes[0].extent.file)
        tensors.append(StoredTensor(name, spec.dtype, spec.shape, spec.nbytes, place, len(boxes), others))
    return tensors


def _of_rank(checkpoint: OpenCheckpoint, rank: int) -> tuple[list[StoredTensor], list[PlainValue]]:
    blob = next((blob for blob in checkpoint.index.rank_states if blob.rank == rank), None)
    if blob is None:
        ranks = [each.rank for each in checkpoint.index.rank_states]
        there = f"ranks {min(ranks)} to {max(ranks)} have one" if ranks else "no rank has one"
        raise CheckpointError(f"{checkpoint.path}: holds no state of rank {rank}; {there}")
    data = bytearray(blob.extent.nbytes)
    checkpoint.read_extent(blob.extent, memoryview(data), f"state of rank {rank}")
    parsed = read_blob(data, rank=rank, world_size=checkpoint.index.world_size)
    tensors = [StoredTensor(spec.name, spec.dtype, spec.shape, spec.nbytes) for spec in parsed.specs]
    return tensors, list(_plain_values(parsed.state))


def _parts(state: Any, tensors: list[StoredTensor], plain: list[PlainValue]) -> dict[str, tuple[int, int, int]]:
    parts: dict[str, tuple[int, int, int]] = {}
    for name in state if isinstance(state, dict) else ():
        own = [tensor for tensor in tensors if _is_below(tensor.name, name)]
        num_values = sum(_is_below(value.path, name) for value in plain)
        parts[str(name)] = (len(own), sum(tensor.nbytes for tensor in own), num_values)
    return parts


def _is_below(path: str, part: str) -> bool:
    return path == part or path.startswith(f"{part}.")


def _plain_values(node: Any, path: str = "", depth: int = 0) -> Iterator[PlainValue]:
    """All values of a tree of typed JSON (see values.py) that are no tensors."""
    if depth > values.MAX_DEPTH:
        raise CheckpointError(f"saved state {path[:80]!r}: nested too deeply")
    kind, content = _kind_of(node)
    if kind in ("tensor", "array"):
        return
    if isinstance(content, list) and kind in ("list", "tuple"):
        rows = [_kind_of(item) for item in content]
        if all(not isinstance(item, list | dict) and inner not in ("tensor", "array") for inner, item in rows):
            yield PlainValue(path, kind, [item for _, item in rows])
            return
        for number, item in enumerate(content):
            yield from _plain_values(item, values.child(path, number), depth + 1)
    elif isinstance(content, dict):
        for key, item in content.items():
            yield from _plain_values(item, values.child(path, key), depth + 1)
    else:
        yield PlainValue(path, kind, content)


def _kind_of(node: Any) -> tuple[str, Any]:
    """A node's Python type by name, and its content with the tag taken off."""
    if type(node) is not dict or "~" not in node:
        return type(node).__name__, node
    tag, content = str(node.get("~")), node.get("v")
    if tag == "bytes" and isinstance(content, str):
        return tag, _shown_bytes(content)
    if tag in ("dict", "OrderedDict", "Counter") and isinstance(content, list):
        pairs = [pair for pair in content if isinstance(pair, list) and len(pair) == 2]
        return tag, {str(key): item for key, item in pairs}
    return tag, content


def _shown_bytes(text: str) -> str:
    try:
        raw = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        return "(damaged)"
    return f"{len(raw)} bytes: {raw[:SHOWN_BYTES].hex()}{'…' if len(raw) > SHOWN_BYTES else ''}"
