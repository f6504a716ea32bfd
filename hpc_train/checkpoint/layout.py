"""Where every byte of a checkpoint goes and which rank writes it: pure arithmetic, the same on all ranks.

Apart from writing because all ranks must come to the same plan without talking, and because it is tested without
files. What all ranks hold alike is cut into 8 MiB chunks and dealt out in runs of equal bytes, so that every rank
writes; no two ranks ever write into the same 4 KiB page (NFS clients and parallel file systems lock or cache pages,
open-mpi/ompi#4334). Standard library only.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hpc_train.checkpoint.checksum import chunk_spans
from hpc_train.checkpoint.dtypes import DTYPES

__all__ = ["Layout", "Piece", "Spec", "plan_layout"]

PAGE = 4096
LARGE = 1 << 20  # from here a tensor starts on a page of its own; smaller ones are packed
MAX_FILE_BYTES = 64 << 30
MAX_RANKS_PER_FILE = 64
MAX_TENSORS_PER_FILE = 200_000  # keeps a safetensors header well below its limit of 100 MB


@dataclass(frozen=True)
class Spec:
    """A tensor to store: unique name, key of DTYPES, shape."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Bytes of its elements."""
        total = DTYPES[self.dtype].itemsize
        for extent in self.shape:
            total *= extent
        return total


@dataclass(frozen=True)
class Piece:
    """What one rank writes at one place.

    Attributes:  kind: "tensor", "rank" (a rank's blob), "pad" or "header".   ordinal: of the tensor, the rank, or the
    file.   start: first byte within that item.   byte_offset: in the file.
    """

    rank: int
    kind: str
    ordinal: int
    start: int
    file: int
    byte_offset: int
    nbytes: int


@dataclass(frozen=True)
class Layout:
    """The plan of one save.

    Attributes:  headers: content of the safetensors header of each file.   file_nbytes: final lengths.
    tensors, blobs: (file, byte offset) by tensor ordinal and by rank.   pieces: in the order of (file, byte offset);
    together they cover every byte of every file exactly once.
    """

    headers: tuple[bytes, ...]
    file_nbytes: tuple[int, ...]
    tensors: tuple[tuple[int, int], ...]
    blobs: tuple[tuple[int, int], ...]
    pieces: tuple[Piece, ...]


@dataclass(frozen=True)
class _Item:
    kind: str
    ordinal: int
    nbytes: int
    align: int
    owner: int | None  # None: all ranks hold it


def plan_layout(
    specs: Sequence[Spec], blob_nbytes: Sequence[int], *, world_size: int, num_files: int | None = None
) -> Layout:
    """Plan the files of one checkpoint.

    Args:  specs: what every rank holds alike.   blob_nbytes: bytes of each rank's own blob, empty when there are none.
        num_files: None picks one per 64 ranks, 64 GiB and 200 000 tensors, whichever asks for most.
    Returns: the same layout on every rank for the same arguments. Cost: O(tensors + chunks). Not collective.
    """
    total = sum(spec.nbytes for spec in specs)
    if num_files is None:
        everything = total + sum(blob_nbytes)
        wanted = (-(-world_size // MAX_RANKS_PER_FILE), -(-everything // MAX_FILE_BYTES))
        num_files = max(1, *wanted, -(-len(specs) // MAX_TENSORS_PER_FILE))
    files = _distribute(specs, num_files)
    for rank, nbytes in enumerate(blob_nbytes):
        files[rank * num_files // world_size].append(_Item("rank", rank, nbytes, PAGE, rank))
    headers, lengths, pieces = [], [], []
    before = 0
    for ordinal, items in enumerate(files):
        body, before = _place(ordinal, items, before, max(total, 1), world_size)
        header = _header(body, specs)
        owner = next((piece.rank for piece in body if piece.nbytes), 0)
        pieces += [Piece(owner, "header", ordinal, at, ordinal, at, end - at) for at, end in chunk_spans(len(header))]
        pieces += [replace(piece, byte_offset=piece.byte_offset + len(header)) for piece in body]
        lengths.append(len(header) + sum(piece.nbytes for piece in body))
        headers.append(header)
    first = {(piece.kind, piece.ordinal): (piece.file, piece.byte_offset) for piece in pieces if piece.start == 0}
    return Layout(
        headers=tuple(headers),
        file_nbytes=tuple(lengths),
        tensors=tuple(first["tensor", ordinal] for ordinal in range(len(specs))),
        blobs=tuple(first["rank", rank] for rank in range(len(blob_nbytes))),
        pieces=tuple(piece for piece in pieces if piece.nbytes),
    )


def _distribute(specs: Sequence[Spec], num_files: int) -> list[list[_Item]]:
    """Tensors of each file, in file order: large ones first, then small ones by falling item size (no padding)."""
    items = [
        _Item("tensor", i, spec.nbytes, PAGE if spec.nbytes >= LARGE else DTYPES[spec.dtype].itemsize, None)
        for i, spec in enumerate(specs)
    ]
    items.sort(key=lambda item: (-item.align, item.ordinal))
    files: list[list[_Item]] = [[] for _ in range(num_files)]
    loads = [(0, ordinal) for ordinal in range(num_files)]
    for item in items:
        load, ordinal = loads[0]
        files[ordinal].append(item)
        heapq.heapreplace(loads, (load + item.nbytes, ordinal))
    return files


def _place(file: int, items: Sequence[_Item], before: int, total: int, size: int) -> tuple[list[Piece], int]:
    """Pieces of one file, offsets counted from the end of its header.

    Args:  before: shared bytes dealt out in earlier files.   total: shared bytes of all files.
    Returns: the pieces, and `before` for the next file.
    """
    pieces: list[Piece] = []
    position, previous, num_pads = 0, None, 0
    for item in items:
        spans = list(chunk_spans(item.nbytes)) or [(0, 0)]
        owners = []
        for start, stop in spans:
            if item.owner is None:
                owners.append(min((before + (stop - start) // 2) * size // total, size - 1))
                before += stop - start
            else:
                owners.append(item.owner)
        align = item.align if previous in (None, owners[0]) else PAGE
        padding = -position % align
        if padding:
            pieces.append(Piece(previous or 0, "pad", num_pads, 0, file, position, padding))
            num_pads += 1
            position += padding
        for (start, stop), owner in zip(spans, owners, strict=True):
            pieces.append(Piece(owner, item.kind, item.ordinal, start, file, position, stop - start))
            position += stop - start
        if item.nbytes:
            previous = owners[-1]
    return pieces, before


def _header(pieces: Sequence[Piece], specs: Sequence[Spec]) -> bytes:
    """A safetensors header for one file; spaces at its end make the data start on a page.

    Source: safetensors format, README: 8 bytes little-endian length, JSON, offsets that tile the data without holes.
    """
    record: dict[str, object] = {"__metadata__": {"format": "pt", "written_by": "hpc-train checkpoint, version 1"}}
    ends = {(piece.kind, piece.ordinal): piece.byte_offset + piece.nbytes for piece in pieces}
    for piece in pieces:
        if piece.start:
            continue
        end = ends[piece.kind, piece.ordinal]
        name, dtype, shape = "", "U8", [end - piece.byte_offset]
        if piece.kind == "tensor":
            spec = specs[piece.ordinal]
            stored = DTYPES[spec.dtype]
            name, dtype = spec.name, stored.header
            shape = [*spec.shape, *([stored.header_items] if stored.header_items > 1 else [])]
        else:
            name = f"__{piece.kind}_{piece.ordinal:05d}"
        record[name] = {"dtype": dtype, "shape": shape, "data_offsets": [piece.byte_offset, end]}
    text = json.dumps(record, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % PAGE)
    return len(text).to_bytes(8, "little") + text
