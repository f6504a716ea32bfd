"""CRC-32 of chunks: the checksum every stored byte of a checkpoint carries.

Apart because writers, readers and `verify` must cut a box into the same chunks. Standard library, with isal where it
is installed: the same values as zlib, several times faster.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

__all__ = ["CHUNK_BYTES", "chunk_spans", "crc32", "num_chunks"]

CHUNK_BYTES = 8 << 20  # small enough to name the damage, large enough that the CRCs of 1 TB take 0.5 MB


@cache
def _fastest() -> Callable[[Any, int], int]:
    # Looked up at the first use: the catalogue, on login nodes, needs no checksum of data.
    try:
        from isal import isal_zlib
    except ImportError:
        return zlib.crc32
    function: Callable[[Any, int], int] = isal_zlib.crc32
    return function


def crc32(data: Any, value: int = 0) -> int:
    """CRC-32 (as zlib's) of bytes-like `data`, going on from `value`."""
    return _fastest()(data, value)


def num_chunks(nbytes: int) -> int:
    """Chunks of an extent of `nbytes`; an empty one has none."""
    return -(-nbytes // CHUNK_BYTES)


def chunk_spans(nbytes: int) -> Iterator[tuple[int, int]]:
    """Half-open byte ranges (start, stop) of the chunks of an extent, in order."""
    for start in range(0, nbytes, CHUNK_BYTES):
        yield start, min(start + CHUNK_BYTES, nbytes)
