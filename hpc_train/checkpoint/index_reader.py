"""Parsing index.json: every claim is checked before anything is allocated, opened or read by it.

Apart from index.py because checking is the larger half. The work is done on whole columns (map, sorted, slices), so
that a million boxes take about a second in plain Python. Standard library only.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress
from operator import add, gt, mul
from typing import Any

from hpc_train.checkpoint import strict_json
from hpc_train.checkpoint.checksum import CHUNK_BYTES, num_chunks
from hpc_train.checkpoint.columns import decode_column
from hpc_train.checkpoint.dtypes import DTYPES
from hpc_train.checkpoint.index import FORMAT, VERSION, Extent, Index, RankState, chunk_starts, first_positions
from hpc_train.checkpoint.tiling import tiling_problem
from hpc_train.errors import CheckpointError

__all__ = ["parse_index"]

MAX_DIMS = 64
MAX_NAME = 4096
WHERE = "index.json"


def parse_index(data: bytes, file_nbytes: Sequence[int]) -> Index:
    """Read and check an index.

    Args:  file_nbytes: true length of every data file.
    Returns: an index in which every extent lies inside its file and overlaps no other, and every tensor is tiled.
    Raises: CheckpointError naming the first thing that is wrong.
    Cost: about 1 s per million boxes; memory a few times the text.
    """
    record = strict_json.parse(data, WHERE)
    strict_json.require_format(record, FORMAT, VERSION, WHERE)
    if record.get("chunk_bytes") != CHUNK_BYTES:
        raise CheckpointError(f"{WHERE}: chunk_bytes must be {CHUNK_BYTES} in version {VERSION}")
    headers = _parse_headers(strict_json.field(record, "headers", dict, WHERE), file_nbytes)
    names, dtypes, shapes, box_counts = _parse_tensors(strict_json.field(record, "tensors", dict, WHERE))
    columns, first_box, first_dim = _parse_boxes(
        strict_json.field(record, "boxes", dict, WHERE), names, dtypes, shapes, box_counts
    )
    world_size = strict_json.field(record, "world_size", int, WHERE)
    rank_states = _parse_rank_states(strict_json.field(record, "rank_states", dict, WHERE), world_size)
    gaps = _check_extents(columns, rank_states, headers, file_nbytes)
    if "state" not in record:
        raise CheckpointError(f"{WHERE}: field 'state' is missing")
    return Index(
        step=strict_json.field(record, "step", int, WHERE),
        world_size=world_size,
        headers=headers,
        names=names,
        dtypes=dtypes,
        shapes=shapes,
        aliases=_parse_aliases(strict_json.field(record, "aliases", list, WHERE), names),
        rank_states=rank_states,
        state=record["state"],
        gaps=gaps,
        first_box=first_box,
        first_dim=first_dim,
        columns=columns,
    )


def _parse_headers(record: dict[str, Any], file_nbytes: Sequence[int]) -> tuple[tuple[int, int], ...]:
    sizes = strict_json.field(record, "nbytes", list, WHERE)
    crcs = strict_json.field(record, "crc32", list, WHERE)
    is_good = len(sizes) == len(crcs) == len(file_nbytes) and all(type(n) is int for n in [*sizes, *crcs])
    if not is_good or not all(8 <= n <= length for n, length in zip(sizes, file_nbytes, strict=True)):
        raise CheckpointError(f"{WHERE}: headers do not fit the {len(file_nbytes)} data files")
    return tuple(zip(sizes, crcs, strict=True))


def _parse_tensors(record: dict[str, Any]) -> tuple[list[str], list[str], list[tuple[int, ...]], Sequence[int]]:
    names = strict_json.field(record, "name", list, WHERE)
    dtypes = strict_json.field(record, "dtype", list, WHERE)
    shapes = strict_json.field(record, "shape", list, WHERE)
    if not len(names) == len(dtypes) == len(shapes):
        raise CheckpointError(f"{WHERE}: tensors: {len(names)} names, {len(dtypes)} dtypes, {len(shapes)} shapes")
    for name, dtype, shape in zip(names, dtypes, shapes, strict=True):
        if type(name) is not str or not 0 < len(name) <= MAX_NAME:
            raise CheckpointError(f"{WHERE}: a tensor's name is not a text of 1 to {MAX_NAME} characters")
        if type(dtype) is not str or dtype not in DTYPES:
            raise CheckpointError(f"{WHERE}: tensor {name[:80]!r}: unknown dtype {str(dtype)[:40]!r}")
        if type(shape) is not list or len(shape) > MAX_DIMS or any(type(n) is not int or n < 0 for n in shape):
            raise CheckpointError(f"{WHERE}: tensor {name[:80]!r}: malformed shape")
        _num_bytes(shape, DTYPES[dtype].itemsize, name)
    if len(set(names)) != len(names):
        raise CheckpointError(f"{WHERE}: two tensors have the same name")
    counts = decode_column(record.get("num_boxes"), f"{WHERE}: tensors.num_boxes", count=len(names))
    return names, dtypes, [tuple(shape) for shape in shapes], counts


def _num_bytes(shape: Sequence[int], itemsize: int, name: str) -> int:
    """Bytes of a tensor; refuses what no file can hold before the product grows without bound."""
    total = itemsize
    for extent in sorted(shape):  # zeros first: an empty tensor may have a huge other dim
        total *= extent
        if total > strict_json.MAX_NUMBER or extent > strict_json.MAX_NUMBER:
            raise CheckpointError(f"{WHERE}: tensor {name[:80]!r}: shape is larger than any file")
    return total


def _parse_boxes(
    record: dict[str, Any],
    names: list[str],
    dtypes: list[str],
    shapes: list[tuple[int, ...]],
    box_counts: Sequence[int],
) -> tuple[dict[str, Sequence[int]], list[int], list[int]]:
    where = f"{WHERE}: boxes"
    first_box = first_positions(box_counts)
    first_dim = first_positions(map(mul, box_counts, map(len, shapes)))
    num_boxes, num_dims = first_box[-1], first_dim[-1]
    columns: dict[str, Sequence[int]] = {
        "offset": decode_column(record.get("offset"), f"{where}.offset", count=num_dims),
        "length": decode_column(record.get("length"), f"{where}.length", count=num_dims),
        "file": decode_column(record.get("file"), f"{where}.file", count=num_boxes),
        "byte_offset": decode_column(record.get("byte_offset"), f"{where}.byte_offset", count=num_boxes),
    }
    nbytes: list[int] = []
    for ordinal, shape in enumerate(shapes):
        begin, end = first_dim[ordinal], first_dim[ordinal + 1]
        ndim, count = len(shape), box_counts[ordinal]
        starts = [columns["offset"][begin + dim : end : ndim] for dim in range(ndim)]
        sizes = [columns["length"][begin + dim : end : ndim] for dim in range(ndim)]
        itemsize = DTYPES[dtypes[ordinal]].itemsize
        nbytes += _box_bytes(names[ordinal], shape, itemsize, count=count, starts=starts, sizes=sizes)
    first_chunk = chunk_starts(nbytes)
    columns["nbytes"] = nbytes
    columns["first_chunk"] = first_chunk
    columns["crc32"] = decode_column(record.get("crc32"), f"{where}.crc32", count=first_chunk[-1])
    return columns, first_box, first_dim


def _box_bytes(
    name: str,
    shape: tuple[int, ...],
    itemsize: int,
    *,
    count: int,
    starts: Sequence[Sequence[int]],
    sizes: Sequence[Sequence[int]],
) -> list[int]:
    """Bytes of each box of one tensor, after checking that they tile it."""
    if count == 0:
        raise CheckpointError(f"{WHERE}: tensor {name[:80]!r} has no boxes")
    if count == 1 or 0 in shape or not shape:
        is_whole = count == 1 and not any(column[0] for column in starts)
        if not is_whole or tuple(column[0] for column in sizes) != shape:
            raise CheckpointError(f"{WHERE}: tensor {name[:80]!r}: its one box is not the whole tensor")
        return [_num_bytes(shape, itemsize, name)]
    problem = tiling_problem(shape, starts, sizes)
    if problem:
        raise CheckpointError(f"{WHERE}: tensor {name[:80]!r}: {problem}")
    total: list[int] = [itemsize] * count
    for column in sizes:
        total = list(map(mul, total, column))
    return total


def _parse_rank_states(record: dict[str, Any], world_size: int) -> list[RankState]:
    where = f"{WHERE}: rank_states"
    ranks = strict_json.field(record, "rank", list, where)
    if any(type(rank) is not int or not 0 <= rank < world_size for rank in ranks) or len(set(ranks)) != len(ranks):
        raise CheckpointError(f"{where}: ranks must be different numbers below {world_size}")
    files = decode_column(record.get("file"), f"{where}.file", count=len(ranks))
    offsets = decode_column(record.get("byte_offset"), f"{where}.byte_offset", count=len(ranks))
    nbytes = decode_column(record.get("nbytes"), f"{where}.nbytes", count=len(ranks))
    if max(nbytes, default=0) > strict_json.MAX_NUMBER:
        raise CheckpointError(f"{where}: a blob is larger than any file")
    starts = chunk_starts(nbytes)
    crcs = decode_column(record.get("crc32"), f"{where}.crc32", count=starts[-1])
    return [
        RankState(rank, Extent(files[i], offsets[i], nbytes[i], crcs[starts[i] : starts[i] + num_chunks(nbytes[i])]))
        for i, rank in enumerate(ranks)
    ]


def _parse_aliases(items: list[Any], names: list[str]) -> list[tuple[str, int]]:
    known = set(names)
    aliases: list[tuple[str, int]] = []
    for item in items:
        if type(item) is not list or len(item) != 2 or type(item[0]) is not str or type(item[1]) is not int:
            raise CheckpointError(f"{WHERE}: malformed alias")
        if item[0] in known or not item[0] or not 0 <= item[1] < len(names):
            raise CheckpointError(f"{WHERE}: alias {item[0][:80]!r} repeats a name or points to no tensor")
        known.add(item[0])
        aliases.append((item[0], item[1]))
    return aliases


def _check_extents(
    columns: dict[str, Sequence[int]],
    rank_states: list[RankState],
    headers: Sequence[tuple[int, int]],
    file_nbytes: Sequence[int],
) -> list[list[tuple[int, int]]]:
    """Every extent inside its file and behind its header, none overlapping; returns what is left as gaps."""
    files = [*columns["file"], *(blob.extent.file for blob in rank_states)]
    offsets = [*columns["byte_offset"], *(blob.extent.byte_offset for blob in rank_states)]
    nbytes = [*columns["nbytes"], *(blob.extent.nbytes for blob in rank_states)]
    if max(files, default=0) >= len(file_nbytes):
        raise CheckpointError(f"{WHERE}: an extent lies in file {max(files)}, there are {len(file_nbytes)}")
    # All files are laid on one line, one behind the other, so that two sorted columns tell every overlap.
    base = first_positions(file_nbytes)
    ends_in_file = list(map(add, offsets, nbytes))
    if any(map(gt, ends_in_file, map(file_nbytes.__getitem__, files))):
        raise CheckpointError(f"{WHERE}: an extent reaches beyond the end of its file")
    bases = list(map(base.__getitem__, files))
    starts = sorted(compress(map(add, bases, offsets), nbytes))
    ends = sorted(compress(map(add, bases, ends_in_file), nbytes))
    for ordinal, (header_nbytes, _) in enumerate(headers):
        starts.append(base[ordinal])
        ends.append(base[ordinal] + header_nbytes)
    starts.sort()
    ends.sort()
    if any(map(gt, ends, starts[1:])):
        raise CheckpointError(f"{WHERE}: two extents overlap")
    gaps: list[list[tuple[int, int]]] = [[] for _ in file_nbytes]
    follows = [*starts[1:], base[-1]]
    ordinal = 0
    for end, start in compress(zip(ends, follows, strict=True), map(gt, follows, ends)):
        while end >= base[ordinal + 1]:
            ordinal += 1
        # A file begins with its header, so no gap runs over the end of one.
        gaps[ordinal].append((end - base[ordinal], start - base[ordinal]))
    return gaps
