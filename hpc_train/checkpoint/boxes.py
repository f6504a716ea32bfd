"""Putting a box's elements into its place in the whole tensor, as plain bytes.

Apart because it is pure arithmetic on strides: no tensor library is needed. Standard library only.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from math import prod

__all__ = ["scatter"]


def scatter(
    part: bytearray,
    target: memoryview,
    *,
    shape: Sequence[int],
    offset: Sequence[int],
    length: Sequence[int],
    itemsize: int,
) -> None:
    """Copy a box (row-major) into a tensor (row-major).

    Args:  part: prod(length) * itemsize bytes.   target: prod(shape) * itemsize bytes.   offset, length: of the box.
    Cost: one copy per contiguous run; the inner dims that the box fills whole are one run with the dim before them.
    """
    inner = len(shape)
    while inner > 0 and length[inner - 1] == shape[inner - 1]:
        inner -= 1
    run_dim = max(inner - 1, 0)  # this dim and all behind it are contiguous within the box's rows
    strides = [prod(shape[dim + 1 :]) * itemsize for dim in range(len(shape))]
    run = prod(length[run_dim:]) * itemsize
    position = 0
    for place in product(*(range(length[dim]) for dim in range(run_dim))):
        start = sum((offset[dim] + place[dim]) * strides[dim] for dim in range(run_dim))
        if shape:
            start += offset[run_dim] * strides[run_dim]
        target[start : start + run] = part[position : position + run]
        position += run
