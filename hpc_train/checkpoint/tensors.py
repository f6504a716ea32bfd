"""Torch tensors and numpy arrays as plain bytes in host memory, both ways.

Apart because it alone knows torch and numpy, and imports neither before a caller has: a program that saves only numpy
arrays never pays for torch. CUDA tensors go through a copy in host memory (*untested*: no GPU in our tests).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from hpc_train.checkpoint.dtypes import DTYPES, numpy_dtypes, torch_dtypes
from hpc_train.checkpoint.layout import Spec
from hpc_train.errors import CheckpointError

__all__ = ["Destination", "describe_tensor", "destination", "host_bytes", "identity", "new_tensor"]

_TORCH_NAMES = torch_dtypes()
_NUMPY_NAMES = numpy_dtypes()


def _torch() -> Any:
    return sys.modules.get("torch")


def _numpy() -> Any:
    return sys.modules.get("numpy")


def _is_torch(value: Any) -> bool:
    torch = _torch()
    return torch is not None and isinstance(value, torch.Tensor)


def describe_tensor(value: Any, path: str) -> tuple[str, Spec] | None:
    """("tensor" | "array", spec named `path`) of what can be stored; None for what is no tensor at all.

    Raises: CheckpointError for a tensor whose bytes cannot be stored as they are (sharded, sparse, quantized, meta, …).
    """
    if _is_torch(value):
        torch = _torch()
        plain = (torch.Tensor, torch.nn.Parameter)
        dtype = _TORCH_NAMES.get(str(value.dtype).removeprefix("torch."))
        if type(value) not in plain or value.layout != torch.strided or value.device.type not in ("cpu", "cuda"):
            raise CheckpointError(
                f"state {path!r}: {type(value).__name__} ({value.layout}, device {value.device}) cannot be saved; only"
                " plain dense tensors on cpu or cuda: save its local or full tensor instead"
            )
        if any(stride == 0 and dim > 1 for stride, dim in zip(value.stride(), value.shape, strict=True)):
            # Told at the first save, not at the resume, which could not copy into it.
            raise CheckpointError(f"state {path!r}: its elements share memory (expand); use its .clone() instead")
        if dtype is None:
            raise CheckpointError(f"state {path!r}: dtype {value.dtype} cannot be saved; allowed: {', '.join(DTYPES)}")
        return "tensor", Spec(path, dtype, tuple(value.shape))
    numpy = _numpy()
    if numpy is not None and type(value) is numpy.ndarray:
        dtype = _NUMPY_NAMES.get(value.dtype.name)
        if dtype is None or not value.dtype.isnative:
            raise CheckpointError(f"state {path!r}: numpy dtype {value.dtype!r} cannot be saved; use a native type")
        return "array", Spec(path, dtype, tuple(value.shape))
    return None


def identity(value: Any) -> tuple[Any, ...] | None:
    """Equal for two names of the same memory seen the same way (tied weights); None for a tensor without elements."""
    if _is_torch(value):
        if value.numel() == 0:
            return None
        place = (str(value.device), value.data_ptr(), str(value.dtype), tuple(value.shape), tuple(value.stride()))
        return (*place, value.is_conj(), value.is_neg())
    if value.size == 0:
        return None
    return ("numpy", value.__array_interface__["data"][0], str(value.dtype), value.shape, value.strides)


def host_bytes(value: Any) -> memoryview:
    """The elements in row-major order: the tensor's own memory where it is contiguous in host memory, else a copy."""
    if _is_torch(value):
        plain = value.detach().cpu().resolve_conj().resolve_neg().contiguous()
        return _torch_bytes(plain)
    numpy = _numpy()
    if value.size == 0:
        return memoryview(b"")
    return memoryview(numpy.ascontiguousarray(value).reshape(-1).view(numpy.uint8)).cast("B")


def _torch_bytes(plain: Any) -> memoryview:
    if plain.numel() == 0:
        return memoryview(b"")
    return memoryview(plain.reshape(-1).view(_torch().uint8).numpy())


def new_tensor(kind: str, spec: Spec) -> Any:
    """An uninitialised tensor ("tensor") or array ("array") in host memory.

    Raises: CheckpointError if torch or numpy is not installed, or memory is short.
    """
    stored = DTYPES[spec.dtype]
    try:
        if kind == "array" and stored.numpy is not None:
            import numpy

            return numpy.empty(spec.shape, getattr(numpy, stored.numpy))
        import torch

        return torch.empty(spec.shape, dtype=getattr(torch, stored.torch))
    except ImportError as error:
        raise CheckpointError(f"tensor {spec.name!r} needs {error.name}: python -m pip install {error.name}") from error
    except (MemoryError, RuntimeError, ValueError) as error:
        raise CheckpointError(f"tensor {spec.name!r}: no memory for {spec.nbytes} bytes") from error


class Destination:
    """Host memory to read a tensor into.

    Attributes:  memory: writable bytes of the right length.   finish: to be called once they are read and checked;
    moves them to where the tensor lives, if that is not this memory already.
    """

    def __init__(self, memory: memoryview, finish: Callable[[], object] | None = None) -> None:
        self.memory = memory
        self._finish = finish

    def finish(self) -> None:
        """Hand the bytes over to the live tensor."""
        if self._finish is not None:
            self._finish()


def destination(value: Any, spec: Spec) -> Destination:
    """Where to read for a live tensor of the same spec (its own memory if it is contiguous there).

    Raises: CheckpointError if the array is read-only.
    """
    if _is_torch(value):
        live = value.detach()
        if live.device.type == "cpu" and live.is_contiguous() and not live.is_conj() and not live.is_neg():
            return Destination(_torch_bytes(live))
        staged = new_tensor("tensor", spec)
        return Destination(_torch_bytes(staged), lambda: live.copy_(staged))
    if not value.flags.writeable:
        raise CheckpointError(f"state {spec.name!r}: the numpy array is read-only; give a writable one")
    numpy = _numpy()
    if value.flags.c_contiguous:
        return Destination(memoryview(value.reshape(-1).view(numpy.uint8)) if value.size else memoryview(b""))
    buffer = numpy.empty(spec.shape, value.dtype)
    return Destination(
        memoryview(buffer.reshape(-1).view(numpy.uint8)) if buffer.size else memoryview(b""),
        lambda: numpy.copyto(value, buffer),
    )
