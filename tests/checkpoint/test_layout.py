"""The plan of a save: every byte planned once, for one rank, in a valid safetensors file."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpc_train.checkpoint.dtypes import DTYPES
from hpc_train.checkpoint.layout import PAGE, Layout, Spec, plan_layout

SHAPES = st.lists(st.integers(0, 300), max_size=3).map(tuple)
SPECS = st.lists(st.tuples(st.sampled_from(sorted(DTYPES)), SHAPES), max_size=25).map(
    lambda items: [Spec(f"t{i}", dtype, shape) for i, (dtype, shape) in enumerate(items)]
)
LARGE = st.lists(st.integers(1, 40 << 20), max_size=3).map(
    lambda sizes: [Spec(f"large{i}", "U8", (n,)) for i, n in enumerate(sizes)]
)


@settings(max_examples=80, deadline=None)
@given(SPECS, LARGE, st.integers(1, 9), st.booleans(), st.integers(1, 4))
def test_pieces_cover_every_byte_once_and_no_two_ranks_share_a_page(
    specs: list[Spec], large: list[Spec], size: int, has_blobs: bool, files: int
) -> None:
    blobs = [11 * rank + 1 for rank in range(size)] if has_blobs else []
    layout = plan_layout(specs + large, blobs, world_size=size, num_files=files)
    for file, length in enumerate(layout.file_nbytes):
        pieces = [piece for piece in layout.pieces if piece.file == file]
        edges = [(piece.byte_offset, piece.byte_offset + piece.nbytes) for piece in pieces]
        assert edges[0][0] == 0
        assert edges[-1][1] == length
        assert all(one[1] == other[0] for one, other in pairwise(edges))
        for one, other in pairwise(pieces):
            assert one.rank == other.rank or other.byte_offset % PAGE == 0
    assert all(piece.rank == piece.ordinal for piece in layout.pieces if piece.kind == "rank")
    _check_headers(layout, specs + large)


def _check_headers(layout: Layout, specs: list[Spec]) -> None:
    seen: dict[str, dict[str, Any]] = {}
    for header, length in zip(layout.headers, layout.file_nbytes, strict=True):
        size = int.from_bytes(header[:8], "little")
        assert len(header) == size + 8
        record = json.loads(header[8:])
        del record["__metadata__"]
        spans = sorted(item["data_offsets"] for item in record.values())
        assert all(one[1] == other[0] for one, other in pairwise(spans))
        assert not spans or (spans[0][0], spans[-1][1]) == (0, length - len(header))
        seen |= record
    for spec in specs:
        first, last = seen[spec.name]["data_offsets"]
        assert last - first == spec.nbytes


@pytest.mark.parametrize("size", [2, 4, 64])
def test_one_large_tensor_is_written_by_all_ranks(size: int) -> None:
    layout = plan_layout([Spec("w", "F32", (64 << 20,))], [], world_size=size)
    shares = {piece.rank: 0 for piece in layout.pieces}
    for piece in layout.pieces:
        shares[piece.rank] += piece.nbytes
    assert len(shares) == min(size, 32)  # 256 MiB are 32 chunks
    assert max(shares.values()) - min(shares.values()) <= 8 << 20
