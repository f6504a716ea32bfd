"""Element types a checkpoint can hold, their sizes, and how a safetensors header names them.

Apart because the login side needs sizes without torch or numpy. Where safetensors has no such type (or its torch
binding refuses it), the header declares the same bytes as a type it has, with one more dim where an element is
several of those; the index keeps the true type.
Source: safetensors 0.8 (its `Dtype` enumeration). Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DTYPES", "Dtype", "numpy_dtypes", "torch_dtypes"]


@dataclass(frozen=True)
class Dtype:
    """One element type.

    Attributes:  itemsize [bytes].   header: name in the safetensors header.   header_items: `header` elements in one
    element of this type (2 for the complex types that safetensors lacks).   torch, numpy: attribute names there.
    """

    name: str
    itemsize: int
    torch: str
    numpy: str | None
    header: str
    header_items: int = 1


_TABLE = (
    Dtype("BOOL", 1, "bool", "bool", "BOOL"),
    Dtype("U8", 1, "uint8", "uint8", "U8"),
    Dtype("I8", 1, "int8", "int8", "I8"),
    Dtype("U16", 2, "uint16", "uint16", "U16"),
    Dtype("I16", 2, "int16", "int16", "I16"),
    Dtype("U32", 4, "uint32", "uint32", "U32"),
    Dtype("I32", 4, "int32", "int32", "I32"),
    Dtype("U64", 8, "uint64", "uint64", "U64"),
    Dtype("I64", 8, "int64", "int64", "I64"),
    Dtype("F16", 2, "float16", "float16", "F16"),
    Dtype("BF16", 2, "bfloat16", None, "BF16"),
    Dtype("F32", 4, "float32", "float32", "F32"),
    Dtype("F64", 8, "float64", "float64", "F64"),
    Dtype("C32", 4, "complex32", None, "F16", 2),
    Dtype("C64", 8, "complex64", "complex64", "C64"),
    Dtype("C128", 16, "complex128", "complex128", "F64", 2),
    Dtype("F8_E4M3", 1, "float8_e4m3fn", None, "F8_E4M3"),
    Dtype("F8_E5M2", 1, "float8_e5m2", None, "F8_E5M2"),
    Dtype("F8_E8M0", 1, "float8_e8m0fnu", None, "U8"),
    Dtype("F8_E4M3FNUZ", 1, "float8_e4m3fnuz", None, "F8_E4M3FNUZ"),
    Dtype("F8_E5M2FNUZ", 1, "float8_e5m2fnuz", None, "F8_E5M2FNUZ"),
    Dtype("F4_E2M1_X2", 1, "float4_e2m1fn_x2", None, "U8"),
)

DTYPES: dict[str, Dtype] = {dtype.name: dtype for dtype in _TABLE}


def torch_dtypes() -> dict[str, str]:
    """Our name for each torch attribute name: {"bfloat16": "BF16", …}."""
    return {dtype.torch: dtype.name for dtype in _TABLE}


def numpy_dtypes() -> dict[str, str]:
    """Our name for each numpy dtype name: {"float32": "F32", …}."""
    return {dtype.numpy: dtype.name for dtype in _TABLE if dtype.numpy is not None}
