"""Reading the blob of state that one rank saved for itself.

Apart from loading because a blob is a small file format of its own (see description.Blob), as hostile as any other.
"""

from __future__ import annotations

from typing import Any

from hpc_train.checkpoint import strict_json
from hpc_train.checkpoint.agreement import DamagedCheckpoint
from hpc_train.checkpoint.description import BLOB_FORMAT, BLOB_VERSION
from hpc_train.checkpoint.dtypes import DTYPES
from hpc_train.checkpoint.layout import Spec
from hpc_train.errors import CheckpointError

__all__ = ["BlobTensors", "read_blob"]


class BlobTensors:
    """A parsed blob. `specs`: its tensors by ordinal; `state`: its typed JSON."""

    def __init__(self, data: memoryview, specs: list[Spec], offsets: list[int], state: Any) -> None:
        self._data, self._offsets = data, offsets
        self.specs, self.state = specs, state

    def bytes_of(self, ordinal: int) -> memoryview:
        """The elements of one tensor."""
        start = self._offsets[ordinal]
        return self._data[start : start + self.specs[ordinal].nbytes]


def read_blob(data: bytearray, *, rank: int, world_size: int) -> BlobTensors:
    """Parse and check a blob whose CRCs have been checked.

    Raises: DamagedCheckpoint if it is malformed or of another rank.
    """
    where = f"state of rank {rank}"
    try:
        return _read_blob(data, rank, world_size, where)
    except CheckpointError as error:
        raise DamagedCheckpoint(str(error)) from error


def _read_blob(data: bytearray, rank: int, world_size: int, where: str) -> BlobTensors:
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > len(data) - 8:
        raise CheckpointError(f"{where}: its header is longer than the blob")
    record = strict_json.parse(data[8 : 8 + length], where)
    strict_json.require_format(record, BLOB_FORMAT, BLOB_VERSION, where)
    given = (strict_json.field(record, "rank", int, where), strict_json.field(record, "world_size", int, where))
    if given != (rank, world_size):
        raise CheckpointError(f"{where} of {world_size}: the blob says rank {given[0]} of {given[1]}")
    specs, offsets = [], []
    body = memoryview(data)[8 + length :]
    for item in strict_json.field(record, "tensors", list, where):
        spec, offset = _tensor(item, where)
        if offset + spec.nbytes > len(body):
            raise CheckpointError(f"{where}: tensor {spec.name[:80]!r} reaches beyond the blob")
        specs.append(spec)
        offsets.append(offset)
    return BlobTensors(body, specs, offsets, record.get("state"))


def _tensor(item: Any, where: str) -> tuple[Spec, int]:
    if type(item) is not list or [type(value) for value in item] != [str, str, list, int]:
        raise CheckpointError(f"{where}: malformed tensor record")
    name, dtype, shape, offset = item
    is_good = dtype in DTYPES and len(shape) <= 64 and 0 <= offset <= strict_json.MAX_NUMBER
    if not is_good or any(type(n) is not int or not 0 <= n <= strict_json.MAX_NUMBER for n in shape):
        raise CheckpointError(f"{where}: malformed tensor record {name[:80]!r}")
    return Spec(name, dtype, tuple(shape)), offset
