"""The manifest of a dataset: which shards there are, where their samples lie, and the checksum of every block.

Apart from reading and packing because it is the contract between them and the only file that every rank needs.
It may come from anywhere, so it is read with bounds: size, types, names, ranges and overlaps are all checked
before a byte of a shard is touched. docs/data.md describes the format for other readers.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
import os
import zlib
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from hpc_train.errors import DataError, PermissionDeniedError
from hpc_train.files import read_text

__all__ = [
    "DTYPE_BYTES",
    "FILE_NAME",
    "Extent",
    "Field",
    "Manifest",
    "Shard",
    "check_fields",
    "decode_manifest",
    "encode_manifest",
    "manifest_path",
    "read_manifest",
    "read_manifest_text",
]

FORMAT = "hpc-train-dataset"
VERSION = 1
FILE_NAME = "manifest.json"
MAX_MANIFEST_BYTES = 64 << 20  # about 6 million blocks
MAX_BLOCK_BYTES = 1 << 30  # a reader holds several blocks per lane
DTYPE_BYTES = {
    "bool": 1,
    "uint8": 1,
    "int8": 1,
    "uint16": 2,
    "int16": 2,
    "float16": 2,
    "uint32": 4,
    "int32": 4,
    "float32": 4,
    "uint64": 8,
    "int64": 8,
    "float64": 8,
}

_Count = Annotated[int, Meta(ge=0, le=1 << 53)]  # 2^53: exact in every JSON reader
_Crc = Annotated[int, Meta(ge=0, le=0xFFFFFFFF)]
_Dim = Annotated[int, Meta(ge=1, le=1 << 31)]
_FieldName = Annotated[str, Meta(pattern=r"^[A-Za-z_][A-Za-z0-9_]{0,63}\Z")]
_ShardName = Annotated[str, Meta(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,199}\.h5\Z")]
_Note = Annotated[str, Meta(max_length=4096)]

_SELF_CRC = '"self_crc32":"'


class Field(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One array of each sample.

    Attributes:  dtype: a numpy name, stored little-endian.   shape: dims of one sample, without the sample axis.
    """

    dtype: str
    shape: Annotated[tuple[_Dim, ...], Meta(max_length=8)] = ()

    @property
    def row_bytes(self) -> int:
        """Bytes of this field in one sample."""
        return DTYPE_BYTES[self.dtype] * math.prod(self.shape)


class Extent(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where one field lies in one shard: rows without gaps from `offset` [bytes], `crc32` of each block in order."""

    offset: _Count
    crc32: list[_Crc]


class Shard(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One HDF5 file of `size_bytes`; `num_samples` is a multiple of the block except in the last shard.

    Attributes:  other_crc32: of all bytes that belong to no field, in the file's order; None where nobody noted it.
    """

    name: _ShardName
    num_samples: _Count
    size_bytes: _Count
    fields: dict[str, Extent]
    other_crc32: _Crc | None = None

    def gaps(self, row_bytes: dict[str, int]) -> list[tuple[int, int]]:
        """The half-open byte ranges of the file that belong to no field: HDF5's own structures and padding.

        Args:  row_bytes: of each field.
        """
        ends = sorted((part.offset, part.offset + self.num_samples * row_bytes[n]) for n, part in self.fields.items())
        edges = [0, *(edge for extent in ends for edge in extent), self.size_bytes]
        pairs = zip(edges[::2], edges[1::2], strict=True)
        return [(first, last) for first, last in pairs if first < last]


class Manifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True):
    """A dataset. Samples are numbered from 0 in the order of the shards; block b holds samples [b*B, (b+1)*B).

    Attributes:  block_samples: B, samples per block.   provenance: where the data came from.
    statistics: numbers about the data, such as byte_entropy_nats.   self_crc32: only in the file; see encode_manifest.
    """

    format: str
    version: int
    uuid: Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z")]
    block_samples: Annotated[int, Meta(ge=1, le=1 << 40)]
    fields: Annotated[dict[_FieldName, Field], Meta(min_length=1, max_length=256)]
    shards: Annotated[list[Shard], Meta(min_length=1)]
    provenance: Annotated[dict[_Note, _Note | int | float], Meta(max_length=64)] = {}
    statistics: Annotated[dict[_Note, int | float], Meta(max_length=64)] = {}
    self_crc32: Annotated[str, Meta(pattern=r"^([0-9a-f]{8})?\Z")] = ""

    @functools.cached_property
    def num_samples(self) -> int:
        """Samples in the dataset."""
        return sum(shard.num_samples for shard in self.shards)

    @property
    def num_blocks(self) -> int:
        """Blocks in the dataset, a short last one included."""
        return -(-self.num_samples // self.block_samples)

    @property
    def row_bytes(self) -> dict[str, int]:
        """Bytes of each field in one sample."""
        return {name: field.row_bytes for name, field in self.fields.items()}

    @property
    def sample_bytes(self) -> int:
        """Bytes of one sample over all fields."""
        return sum(self.row_bytes.values())

    @functools.cached_property
    def hash(self) -> str:
        """Names the content: equal for datasets with equal samples in equal places, wherever and whenever packed.

        sha256 (hex) of compact JSON with sorted keys of: format, version, block_samples, fields and, per shard,
        num_samples and the crc32 lists. Names, offsets, sizes, uuid and provenance do not change samples.
        """
        content = {
            "format": self.format,
            "version": self.version,
            "block_samples": self.block_samples,
            "fields": {name: {"dtype": field.dtype, "shape": field.shape} for name, field in self.fields.items()},
            "shards": [
                {
                    "num_samples": shard.num_samples,
                    "crc32": {name: extent.crc32 for name, extent in shard.fields.items()},
                }
                for shard in self.shards
            ],
        }
        return hashlib.sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def manifest_path(directory: str | os.PathLike[str]) -> Path:
    """The manifest's place in a dataset directory."""
    return Path(directory) / FILE_NAME


def read_manifest(directory: str | os.PathLike[str]) -> Manifest:
    """The checked manifest of a dataset directory.

    Raises: DataError if the dataset or its manifest is missing, damaged or of an unknown version;
    PermissionDeniedError. Time and memory are bounded by the file's size, at most 64 MiB. Not collective.
    """
    return decode_manifest(read_manifest_text(directory), str(manifest_path(directory)))


def read_manifest_text(directory: str | os.PathLike[str]) -> str:
    """The text of a dataset's manifest, unchecked.

    Raises: as `read_manifest` for a file that cannot be read.
    """
    path = manifest_path(directory)
    try:
        return read_text(path, limit=MAX_MANIFEST_BYTES)
    except FileNotFoundError as error:
        if path.parent.is_dir():
            hint = f"no {FILE_NAME} in it, so it is not a dataset (an interrupted pack leaves none); pack it again"
        else:
            hint = "no such directory; make a dataset with 'hpc-train data pack'"
        raise DataError(f"{path.parent}: {hint}") from error
    except PermissionError as error:
        raise PermissionDeniedError(f"cannot read {path} as user {os.getuid()}: {error.strerror}") from error
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror or error}") from error
    except ValueError as error:
        raise DataError(f"{path}: {error}; the manifest is damaged") from error


def decode_manifest(text: str, where: str) -> Manifest:
    """The manifest in a text, with every promise of the format checked.

    Args:  where: named in errors.
    Raises: DataError naming what is wrong.
    """
    _check_version(text, where)
    try:
        # First by type, in bounded memory; only then the pass that sees keys given twice, which msgspec lets through.
        manifest = msgspec.json.decode(text, type=Manifest)
        json.loads(text, object_pairs_hook=_refuse_duplicates)
    except (ValueError, RecursionError) as error:  # msgspec.ValidationError is a ValueError
        raise DataError(f"{where}: {error}; the manifest is damaged") from error
    try:
        _check(manifest)
    except ValueError as error:
        raise DataError(f"{where}: {error}; the manifest is damaged") from error
    # Last, so that what is wrong with a manifest made by hand is said in plain words first.
    if manifest.self_crc32 and manifest.self_crc32 != _crc_of_text(text):
        raise DataError(f"{where}: its own CRC-32 does not match; the manifest is damaged or was edited")
    return msgspec.structs.replace(manifest, self_crc32="")


def encode_manifest(manifest: Manifest) -> str:
    """The text of a manifest: JSON with sorted keys, one line. `decode_manifest` of it gives an equal manifest.

    The text carries the CRC-32 of itself, taken with the eight digits of `self_crc32` as zeros.
    Raises: ValueError where the manifest breaks a promise of the format.
    """
    _check(manifest)
    blank = msgspec.structs.replace(manifest, self_crc32="0" * 8)
    text = msgspec.json.encode(blank, order="sorted").decode() + "\n"
    place = text.rindex(_SELF_CRC) + len(_SELF_CRC)
    return text[:place] + _crc_of_text(text) + text[place + 8 :]


def _crc_of_text(text: str) -> str:
    # The last one: a note in the provenance, which comes before it, may bear the same name.
    place = text.rfind(_SELF_CRC) + len(_SELF_CRC)
    return f"{zlib.crc32((text[:place] + '0' * 8 + text[place + 8 :]).encode()):08x}"


class _Head(msgspec.Struct):
    format: str
    version: int


def _check_version(text: str, where: str) -> None:
    """The version first: a newer manifest may have any other fields."""
    try:
        head = msgspec.json.decode(text, type=_Head)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: {error}; not the manifest of a dataset, or damaged") from error
    if head.format != FORMAT:
        raise DataError(f"{where}: format = {head.format[:80]!r}, not {FORMAT!r}; this is not a dataset's manifest")
    if head.version != VERSION:
        raise DataError(
            f"{where}: version = {head.version}, but this hpc-train reads version {VERSION}; "
            f"use the hpc-train that packed it, or pack the data again"
        )


def _refuse_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) != len(pairs):
        raise ValueError("a key appears twice in one object")
    return record


def check_fields(fields: dict[str, Field], block_samples: int) -> None:
    """Whether samples of these fields can be stored in such blocks.

    Raises: ValueError for a name or dtype that the format does not have, samples without bytes, or a block larger than
    1 GiB.
    """
    for name, field in fields.items():
        if "/" in name or "\0" in name or name in ("", "."):
            raise ValueError(f"field {name[:40]!r}: not a name of HDF5; leave '/', NUL and '.' alone out of it")
        if field.dtype not in DTYPE_BYTES:
            raise ValueError(f"field {name}: dtype = {field.dtype[:40]!r}; allowed: {', '.join(DTYPE_BYTES)}")
        if not field.row_bytes:
            raise ValueError(f"field {name}: shape = {list(field.shape)}: a sample of it has no bytes")
    sample_bytes = sum(field.row_bytes for field in fields.values())
    if sample_bytes * block_samples > MAX_BLOCK_BYTES:
        raise ValueError(
            f"a block of {block_samples} samples of {sample_bytes} bytes is larger than {MAX_BLOCK_BYTES} bytes"
        )


def _check(manifest: Manifest) -> None:
    """Everything that types cannot say. Raises ValueError."""
    check_fields(manifest.fields, manifest.block_samples)
    if any(isinstance(number, float) and not math.isfinite(number) for number in manifest.statistics.values()):
        raise ValueError("statistics hold a number that is not finite")
    names: set[str] = set()
    for index, shard in enumerate(manifest.shards):
        if shard.name in names:
            raise ValueError(f"shard {shard.name} is listed twice")
        names.add(shard.name)
        if index < len(manifest.shards) - 1 and shard.num_samples % manifest.block_samples:
            raise ValueError(f"shard {shard.name}: num_samples = {shard.num_samples} is not whole blocks")
        _check_shard(manifest, shard)
    if manifest.num_samples < 1:
        raise ValueError("the dataset holds no samples")


def _check_shard(manifest: Manifest, shard: Shard) -> None:
    if shard.fields.keys() != manifest.fields.keys():
        raise ValueError(f"shard {shard.name}: fields are {sorted(shard.fields)}, not {sorted(manifest.fields)}")
    num_blocks = -(-shard.num_samples // manifest.block_samples)
    end_of_last = 0
    for offset, name in sorted((extent.offset, name) for name, extent in shard.fields.items()):
        length = shard.num_samples * manifest.fields[name].row_bytes
        if len(shard.fields[name].crc32) != num_blocks:
            raise ValueError(
                f"shard {shard.name}, field {name}: {len(shard.fields[name].crc32)} checksums for {num_blocks} blocks"
            )
        if offset + length > shard.size_bytes:
            raise ValueError(
                f"shard {shard.name}, field {name}: bytes {offset} to {offset + length} of a file of {shard.size_bytes}"
            )
        if length and offset < end_of_last:
            raise ValueError(f"shard {shard.name}, field {name}: overlaps another field at byte {offset}")
        end_of_last = max(end_of_last, offset + length)
