"""The index of a checkpoint: which bytes of which data file are which part of which tensor.

Apart from reading and writing because it is pure: records in, JSON out, and back with every claim checked. It is laid
out in columns so that a thousand ranks times a thousand tensors stay below 64 MB and 2 s. Standard library only.
docs/checkpoint.md describes the file for other readers.
"""

from __future__ import annotations

import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from hpc_train.checkpoint import strict_json
from hpc_train.checkpoint.checksum import CHUNK_BYTES, num_chunks
from hpc_train.checkpoint.columns import encode_column

__all__ = ["FORMAT", "MAX_INDEX_BYTES", "VERSION", "Box", "Extent", "Index", "RankState", "Tensor", "encode_index"]

FORMAT = "hpc-train checkpoint index"
VERSION = 1
MAX_INDEX_BYTES = 128 << 20  # twice the index of 1 000 ranks x 1 000 tensors


@dataclass(frozen=True)
class Extent:
    """Bytes in a data file: file ordinal, offset from the start of the file, CRC-32 of every 8 MiB chunk."""

    file: int
    byte_offset: int
    nbytes: int
    crcs: Sequence[int]


@dataclass(frozen=True)
class Box:
    """A part of a tensor: first index and length in each dim; its elements in row-major order fill the extent."""

    offset: tuple[int, ...]
    length: tuple[int, ...]
    extent: Extent


@dataclass(frozen=True)
class Tensor:
    """One stored tensor. `dtype` is a key of DTYPES; the boxes tile `shape` exactly (one box if it has no elements)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    boxes: Sequence[Box]


@dataclass(frozen=True)
class RankState:
    """The blob of state that only one rank of the saving world had."""

    rank: int
    extent: Extent


@dataclass(frozen=True)
class Index:
    """A parsed and checked index. Boxes stay in columns: `boxes(i)` makes the records of one tensor when asked.

    Attributes:  headers: per data file (length of its safetensors header with its 8 length bytes, CRC-32 of it).
    names, dtypes, shapes: by tensor ordinal.   aliases: (other name, ordinal) of tied tensors.   state: typed JSON
    (see values.py), whose tensors are ordinals.   gaps: per file the half-open byte ranges that hold only padding.
    """

    step: int
    world_size: int
    headers: tuple[tuple[int, int], ...]
    names: list[str]
    dtypes: list[str]
    shapes: list[tuple[int, ...]]
    aliases: list[tuple[str, int]]
    rank_states: list[RankState]
    state: Any
    gaps: list[list[tuple[int, int]]]
    first_box: list[int] = field(repr=False)
    first_dim: list[int] = field(repr=False)
    columns: dict[str, Sequence[int]] = field(repr=False)

    def boxes(self, ordinal: int) -> Iterator[Box]:
        """The boxes of one tensor, in stored order."""
        ndim = len(self.shapes[ordinal])
        col = self.columns
        dim = self.first_dim[ordinal]
        for box in range(self.first_box[ordinal], self.first_box[ordinal + 1]):
            first, nbytes = col["first_chunk"][box], col["nbytes"][box]
            crcs = col["crc32"][first : first + num_chunks(nbytes)]
            yield Box(
                tuple(col["offset"][dim : dim + ndim]),
                tuple(col["length"][dim : dim + ndim]),
                Extent(col["file"][box], col["byte_offset"][box], nbytes, crcs),
            )
            dim += ndim


def encode_index(
    *,
    step: int,
    world_size: int,
    headers: Sequence[tuple[int, int]],
    tensors: Sequence[Tensor],
    aliases: Sequence[tuple[str, int]],
    rank_states: Sequence[RankState],
    state: Any,
) -> bytes:
    """The content of index.json. Fields as in `Index`."""
    boxes = [box for tensor in tensors for box in tensor.boxes]
    record = {
        "format": FORMAT,
        "version": VERSION,
        "step": step,
        "world_size": world_size,
        "chunk_bytes": CHUNK_BYTES,
        "headers": {"nbytes": [n for n, _ in headers], "crc32": [crc for _, crc in headers]},
        "tensors": {
            "name": [tensor.name for tensor in tensors],
            "dtype": [tensor.dtype for tensor in tensors],
            "shape": [list(tensor.shape) for tensor in tensors],
            "num_boxes": encode_column([len(tensor.boxes) for tensor in tensors]),
        },
        "boxes": {
            "offset": encode_column([n for box in boxes for n in box.offset]),
            "length": encode_column([n for box in boxes for n in box.length]),
            **_encode_extents([box.extent for box in boxes]),
        },
        "aliases": [list(alias) for alias in aliases],
        "rank_states": {
            "rank": [blob.rank for blob in rank_states],
            "nbytes": encode_column([blob.extent.nbytes for blob in rank_states]),
            **_encode_extents([blob.extent for blob in rank_states]),
        },
        "state": state,
    }
    return strict_json.write(record)


def _encode_extents(extents: Sequence[Extent]) -> dict[str, Any]:
    return {
        "file": encode_column([extent.file for extent in extents]),
        "byte_offset": encode_column([extent.byte_offset for extent in extents]),
        "crc32": encode_column([crc for extent in extents for crc in extent.crcs]),
    }


def first_positions(counts: Iterable[int]) -> list[int]:
    """Where each run of a flattened column begins, and its end: [2, 3] -> [0, 2, 5]."""
    return [0, *accumulate(counts)]


def chunk_starts(nbytes: Iterable[int]) -> array.array[int]:
    """Position of the first CRC of each extent in the flat column, and the end."""
    return array.array("Q", [0, *accumulate(num_chunks(n) for n in nbytes)])
