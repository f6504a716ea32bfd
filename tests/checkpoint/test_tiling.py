"""Boxes that tile a tensor pass, whatever the grid; anything else does not. And they scatter to the right bytes."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpc_train.checkpoint.boxes import scatter
from hpc_train.checkpoint.tiling import tiling_problem

Boxes = list[tuple[tuple[int, ...], tuple[int, ...]]]


def problem(shape: tuple[int, ...], boxes: Boxes) -> str | None:
    starts = [[offset[dim] for offset, _ in boxes] for dim in range(len(shape))]
    sizes = [[length[dim] for _, length in boxes] for dim in range(len(shape))]
    return tiling_problem(shape, starts, sizes)


@st.composite
def tilings(draw: st.DrawFn) -> tuple[tuple[int, ...], Boxes]:
    """A tensor cut again and again at random places, in any order: grids and nested cuts alike."""
    shape = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=3)))
    boxes: Boxes = [((0,) * len(shape), shape)]
    for _ in range(draw(st.integers(0, 6))):
        offset, length = boxes.pop(draw(st.integers(0, len(boxes) - 1)))
        dim = draw(st.integers(0, len(shape) - 1))
        cut = draw(st.integers(0, length[dim]))
        parts = [(offset[dim], cut), (offset[dim] + cut, length[dim] - cut)]
        for start, size in parts:
            if size:
                boxes.append(((*offset[:dim], start, *offset[dim + 1 :]), (*length[:dim], size, *length[dim + 1 :])))
    return shape, draw(st.permutations(boxes))


@settings(max_examples=200, deadline=None)
@given(tilings(), st.data())
def test_tilings_pass_and_a_box_lost_moved_or_doubled_does_not(
    tiling: tuple[tuple[int, ...], Boxes], data: st.DataObject
) -> None:
    shape, boxes = tiling
    assert problem(shape, boxes) is None
    victim = data.draw(st.integers(0, len(boxes) - 1))
    if len(boxes) > 1:
        assert problem(shape, boxes[:victim] + boxes[victim + 1 :]) is not None
    assert problem(shape, [*boxes, boxes[victim]]) is not None
    offset, length = boxes[victim]
    moved = (tuple(n + 1 for n in offset), length)
    assert problem(shape, [*boxes[:victim], moved, *boxes[victim + 1 :]]) is not None


def test_a_whole_slab_without_boxes_is_a_gap() -> None:
    boxes: Boxes = [((0, 1), (1, 1)), ((2, 0), (1, 2)), ((0, 0), (1, 1))]
    assert problem((3, 2), boxes) == "the boxes overlap or leave a gap"


@settings(max_examples=100, deadline=None)
@given(tilings())
def test_boxes_scatter_to_their_place(tiling: tuple[tuple[int, ...], Boxes]) -> None:
    shape, boxes = tiling
    whole = np.arange(np.prod(shape), dtype=np.int32).reshape(shape)
    target = bytearray(whole.nbytes)
    for offset, length in boxes:
        part = whole[tuple(slice(o, o + n) for o, n in zip(offset, length, strict=True))]
        scatter(bytearray(part.tobytes()), memoryview(target), shape=shape, offset=offset, length=length, itemsize=4)
    assert bytes(target) == whole.tobytes()


@pytest.mark.timeout(60)
def test_a_large_grid_is_checked_quickly() -> None:
    boxes: Boxes = [((i * 2, j * 3), (2, 3)) for i, j in product(range(200), range(200))]
    assert problem((400, 600), boxes) is None


@pytest.mark.timeout(60)
def test_hostile_irregular_boxes_end_in_bounded_time() -> None:
    boxes: Boxes = [((i, i), (1000, 1)) for i in range(20_000)]
    assert problem((21_000, 20_000), boxes) is not None
