"""Columns of unsigned integers as JSON: little-endian bytes in base64, in the narrowest width that fits.

Apart because this is what keeps the index of a thousand ranks small and quick: a million numbers are one string to
the JSON parser and one copy to `array`, instead of a million Python objects. Standard library only.
"""

from __future__ import annotations

import array
import base64
import binascii
import sys
from collections.abc import Sequence
from typing import Any

from hpc_train.errors import CheckpointError

__all__ = ["decode_column", "encode_column"]

_TYPECODES = {1: "B", 2: "H", 4: "I", 8: "Q"}


def encode_column(values: Sequence[int]) -> dict[str, Any]:
    """{"width": bytes per number, "count": numbers, "data": base64} of integers in 0 … 2^64 - 1."""
    largest = max(values, default=0)
    width = next(width for width in _TYPECODES if largest < 1 << (8 * width))
    column = array.array(_TYPECODES[width], values)
    if sys.byteorder == "big":
        column.byteswap()
    return {"width": width, "count": len(column), "data": base64.b64encode(column.tobytes()).decode()}


def decode_column(value: Any, where: str, *, count: int | None = None) -> array.array[int]:
    """The numbers of a column made by `encode_column`.

    Args:  count: the number the rest of the index asks for; None takes any.
    Raises: CheckpointError naming `where`. Allocates no more than the text it was given.
    """
    if type(value) is not dict or set(value) != {"width", "count", "data"}:
        raise CheckpointError(f"{where}: not a column (width, count, data)")
    width, given, data = value["width"], value["count"], value["data"]
    if type(width) is not int or width not in _TYPECODES or type(given) is not int or type(data) is not str:
        raise CheckpointError(f"{where}: malformed column; width must be 1, 2, 4 or 8")
    try:
        raw = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise CheckpointError(f"{where}: column is not base64") from error
    if len(raw) != given * width or (count is not None and given != count):
        wanted = given if count is None else count
        raise CheckpointError(f"{where}: column holds {len(raw) // width} numbers, {wanted} are needed")
    column: array.array[int] = array.array(_TYPECODES[width])
    column.frombytes(raw)
    if sys.byteorder == "big":
        column.byteswap()
    return column
