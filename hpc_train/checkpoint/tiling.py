"""Do boxes tile a tensor exactly: every element in one box, none in two?

Apart because it is pure geometry, and because it must stay quick for a million boxes and bounded for hostile ones.
Standard library only.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from operator import add

__all__ = ["tiling_problem"]

MAX_WORK = 20_000_000  # box visits; grids of any number of axes need about (dims x boxes)

Interval = tuple[int, int]
Box = tuple[Interval, ...]


class _TooIrregular(Exception):
    pass


def tiling_problem(shape: Sequence[int], starts: Sequence[Sequence[int]], sizes: Sequence[Sequence[int]]) -> str | None:
    """What is wrong with the boxes of one tensor that has elements; None if they tile it.

    Args:  shape: (D,), all > 0.   starts, sizes: D columns of N numbers each: first index and length of each box.
    Returns: a short reason. Boxes so irregular that checking needs more than MAX_WORK visits count as wrong.
    Cost: O(D N log N) for a grid.
    """
    varying = []
    for dim, extent in enumerate(shape):
        if min(sizes[dim]) <= 0:
            return f"a box is empty in dim {dim}"
        if max(map(add, starts[dim], sizes[dim])) > extent:
            return f"a box reaches beyond {extent} in dim {dim}"
        if min(sizes[dim]) != extent:
            varying.append(dim)
    if not varying:
        num_boxes = len(sizes[0]) if shape else 1
        return None if num_boxes == 1 else "the whole tensor is there more than once"
    if len(varying) == 1:
        dim = varying[0]
        return None if _is_partition(sorted(zip(starts[dim], sizes[dim], strict=True)), shape[dim]) else _BAD
    columns = [[(a, a + b) for a, b in zip(starts[dim], sizes[dim], strict=True)] for dim in varying]
    try:
        is_tiled = _tiles(list(zip(*columns, strict=True)), [shape[dim] for dim in varying], 0, [MAX_WORK])
    except _TooIrregular:
        return f"the boxes are too irregular to check within {MAX_WORK} visits"
    return None if is_tiled else _BAD


_BAD = "the boxes overlap or leave a gap"


def _is_partition(pairs: list[tuple[int, int]], extent: int) -> bool:
    firsts = [start for start, _ in pairs]
    ends = [start + size for start, size in pairs]
    return firsts[0] == 0 and ends[-1] == extent and firsts[1:] == ends[:-1]


def _tiles(boxes: list[Box], extents: list[int], dim: int, work: list[int]) -> bool:
    if dim == len(extents):
        return len(boxes) == 1
    work[0] -= len(boxes)
    if work[0] < 0:
        raise _TooIrregular
    groups: dict[Interval, list[Box]] = defaultdict(list)
    for box in boxes:
        groups[box[dim]].append(box)
    intervals = sorted(groups)
    if _is_partition([(start, stop - start) for start, stop in intervals], extents[dim]):
        return all(_tiles(group, extents, dim + 1, work) for group in groups.values())
    # Cut points differ between boxes: look at each slab between neighbouring cuts on its own.
    cuts = sorted({edge for interval in intervals for edge in interval})
    if cuts[0] != 0 or cuts[-1] != extents[dim]:
        return False
    for start, stop in pairwise(cuts):
        work[0] -= len(boxes)
        if work[0] < 0:
            raise _TooIrregular
        slab = [box for box in boxes if box[dim][0] <= start and box[dim][1] >= stop]
        if not slab or not _tiles(slab, extents, dim + 1, work):
            return False
    return True
