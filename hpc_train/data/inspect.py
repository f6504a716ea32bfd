"""Looking at a dataset by hand: what its manifest says, and one sample decoded.

Apart from the stream because a login node has neither numpy nor h5py: samples are plain little-endian bytes at known
places, so the standard library can show one.
"""

from __future__ import annotations

import math
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpc_train.data.checksum import file_problem
from hpc_train.data.manifest import Manifest, Shard, manifest_path, read_manifest
from hpc_train.errors import DataError, PermissionDeniedError, UsageError

__all__ = ["Inspection", "Sample", "inspect_dataset", "read_sample"]

_CODE_OF_DTYPE = {
    "bool": "?", "uint8": "B", "int8": "b", "uint16": "H", "int16": "h", "float16": "e", "uint32": "I", "int32": "i",
    "float32": "f", "uint64": "Q", "int64": "q", "float64": "d",
}  # fmt: skip


@dataclass(frozen=True)
class Inspection:
    """A dataset as its manifest describes it. No shard was opened."""

    path: Path
    manifest: Manifest

    def as_json(self) -> dict[str, Any]:
        """For `data inspect --json`."""
        manifest = self.manifest
        return {
            "path": str(self.path),
            "hash": manifest.hash,
            "uuid": manifest.uuid,
            "num_samples": manifest.num_samples,
            "num_blocks": manifest.num_blocks,
            "block_samples": manifest.block_samples,
            "sample_bytes": manifest.sample_bytes,
            "num_bytes": manifest.num_samples * manifest.sample_bytes,
            "fields": {
                name: {"dtype": field.dtype, "shape": list(field.shape), "row_bytes": field.row_bytes}
                for name, field in manifest.fields.items()
            },
            "shards": [
                {"name": each.name, "num_samples": each.num_samples, "size_bytes": each.size_bytes}
                for each in manifest.shards
            ],
            "provenance": dict(manifest.provenance),
            "statistics": dict(manifest.statistics),
        }


@dataclass(frozen=True)
class Sample:
    """One decoded sample.

    Attributes:  shard, block: where it lies.   values: per field nested lists, as its shape says (a number for ()).
    """

    number: int
    shard: str
    block: int
    values: dict[str, Any]

    def as_json(self) -> dict[str, Any]:
        """For `data inspect --sample --json`; numbers that JSON lacks are texts."""
        values = {name: _json_value(value) for name, value in self.values.items()}
        return {"sample": self.number, "shard": self.shard, "block": self.block, "values": values}


def inspect_dataset(path: str | os.PathLike[str]) -> Inspection:
    """What a dataset says of itself. Raises: as `read_manifest`."""
    return Inspection(Path(path), read_manifest(path))


def read_sample(inspection: Inspection, number: int) -> Sample:
    """One sample, after its whole block was compared with its checksum.

    Raises: UsageError if there is no such sample; DataError naming shard, field and block if the block is damaged;
    PermissionDeniedError. Memory: the sample, a few times over.
    """
    manifest = inspection.manifest
    if not 0 <= number < manifest.num_samples:
        raise UsageError(f"--sample {number}: the dataset holds samples 0 to {manifest.num_samples - 1}")
    shard, row = _shard_of(manifest, number)
    path = manifest_path(inspection.path).parent / shard.name
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except PermissionError as error:
        raise PermissionDeniedError(f"cannot read {path} as user {os.getuid()}: {error.strerror}") from error
    except OSError as error:
        raise DataError(f"{path}: {error.strerror}; see: hpc-train data verify {inspection.path}") from error
    try:
        values = {name: _read_row(fd, path, manifest, shard, name=name, row=row) for name in manifest.fields}
    finally:
        os.close(fd)
    return Sample(number, shard.name, number // manifest.block_samples, values)


def _shard_of(manifest: Manifest, number: int) -> tuple[Shard, int]:
    first = 0
    for shard in manifest.shards:
        if number < first + shard.num_samples:
            return shard, number - first
        first += shard.num_samples
    raise DataError(f"sample {number} lies behind the last of {manifest.num_samples}")


def _read_row(fd: int, path: Path, manifest: Manifest, shard: Shard, *, name: str, row: int) -> Any:
    field, extent, size = manifest.fields[name], shard.fields[name], manifest.block_samples
    local = row // size
    first, last = local * size, min((local + 1) * size, shard.num_samples)
    span = (extent.offset + first * field.row_bytes, extent.offset + last * field.row_bytes)
    problem = file_problem(fd, [span], extent.crc32[local])
    if problem:
        raise DataError(
            f"{path}: field {name}, block {local} of this shard: {problem}; see: hpc-train data verify {path.parent}"
        )
    raw = os.pread(fd, field.row_bytes, extent.offset + row * field.row_bytes)
    count = math.prod(field.shape)
    try:
        flat = list(struct.unpack(f"<{count}{_CODE_OF_DTYPE[field.dtype]}", raw))
    except struct.error as error:  # replaced between the two reads
        raise DataError(f"{path}: field {name}: {len(raw)} bytes instead of {field.row_bytes}") from error
    return _nested(flat, field.shape)


def _nested(flat: list[Any], shape: tuple[int, ...]) -> Any:
    if not shape:
        return flat[0]
    if len(shape) == 1:
        return flat
    step = len(flat) // shape[0]
    return [_nested(flat[at : at + step], shape[1:]) for at in range(0, len(flat), step)]


def _json_value(value: Any) -> Any:
    if isinstance(value, list):
        return [_json_value(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
