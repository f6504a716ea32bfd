"""Writing one shard: an HDF5 file whose fields lie in one piece each, so that a reader needs no HDF5 library.

Apart from packing because it alone knows the layout of the file. The HDF5 library creates the file and its datasets;
the samples then go to their places with plain writes, and are read back and checked before the file gets its name.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
import numpy as np
import numpy.typing as npt

from hpc_train.data.checksum import crc32
from hpc_train.data.manifest import Extent, Field, Shard
from hpc_train.errors import DataError
from hpc_train.files import fsync_dir

__all__ = ["Rows", "write_shard"]

Rows = dict[str, npt.NDArray[np.generic]]
"""Some consecutive samples: per field an array (num_rows, *shape)."""

# Data of one piece start on a MiB, a multiple of the usual stripe of Lustre and block of GPFS. Never combine
# alignment with checksummed chunks: 4 more bytes per chunk then double the file (measured, HDF5 2.0).
ALIGNMENT_THRESHOLD_BYTES = 64 << 10
ALIGNMENT_INTERVAL_BYTES = 1 << 20
PIECE_BYTES = 4 << 20


def write_shard(
    directory: Path, name: str, *, fields: dict[str, Field], num_samples: int, blocks: Iterable[Rows]
) -> Shard:
    """Write a shard so that its name appears only when all of it is on storage and reads back as written.

    Args:  num_samples: rows of the shard.   blocks: its samples, block by block; only the last may be short.
    Returns: the shard's entry for the manifest.
    Raises: OSError (no space, quota, ...) as the system gives it; DataError if it reads back differently.
    The temporary file is removed on any failure.
    """
    temporary = directory / f".{name}.{secrets.token_hex(4)}.tmp"
    try:
        with _os_errors(temporary):
            offsets = _create(temporary, fields, num_samples)
        checksums = _fill(temporary, offsets, fields, num_samples=num_samples, blocks=blocks)
        extents = {field: Extent(offset=offsets[field], crc32=checksums[field]) for field in fields}
        shard = Shard(name=name, num_samples=num_samples, size_bytes=temporary.stat().st_size, fields=extents)
        shard = msgspec.structs.replace(shard, other_crc32=_crc_of_gaps(temporary, shard, fields))
        temporary.rename(directory / name)
        fsync_dir(directory)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return shard


def _crc_of_gaps(path: Path, shard: Shard, fields: dict[str, Field]) -> int:
    """Of what the HDF5 library wrote around the samples: the earliest file format has no checksums of its own."""
    found = 0
    with open(path, "rb") as file:
        for first, last in shard.gaps({name: field.row_bytes for name, field in fields.items()}):
            file.seek(first)
            while first < last and (data := file.read(min(last - first, PIECE_BYTES))):
                found = crc32(data, found)
                first += len(data)
    return found


@contextlib.contextmanager
def _os_errors(path: Path) -> Iterator[None]:
    """The HDF5 library reports a full disk on close as a RuntimeError, with the errno in its text only."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        number = re.search(r"errno = (\d+)", str(error))
        if number is None or (isinstance(error, OSError) and error.errno):
            raise
        code = int(number.group(1))
        raise OSError(code, os.strerror(code), str(path)) from error


def _create(path: Path, fields: dict[str, Field], num_samples: int) -> dict[str, int]:
    """Make the HDF5 file with every field's place reserved. Returns byte offsets."""
    import h5py

    layout = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    layout.set_layout(h5py.h5d.CONTIGUOUS)
    layout.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    layout.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    offsets: dict[str, int] = {}
    # 'earliest': a file of a writer that was killed stays readable ('latest' leaves it marked as open for writing).
    with h5py.File(
        path,
        "x",
        libver=("earliest", "v110"),
        locking=False,
        alignment_threshold=ALIGNMENT_THRESHOLD_BYTES,
        alignment_interval=ALIGNMENT_INTERVAL_BYTES,
    ) as file:
        for name, field in fields.items():
            space = h5py.h5s.create_simple((num_samples, *field.shape))
            dtype = np.dtype(field.dtype).newbyteorder("<")
            dataset = h5py.h5d.create(
                file.id, name.encode(), h5py.h5t.py_create(dtype, logical=True), space, dcpl=layout
            )
            offset = dataset.get_offset()
            if offset is None:
                raise DataError(f"{path}: this HDF5 library reserved no space for field {name}")
            offsets[name] = int(offset)
    return offsets


def _fill(
    path: Path, offsets: dict[str, int], fields: dict[str, Field], *, num_samples: int, blocks: Iterable[Rows]
) -> dict[str, list[int]]:
    """Write the blocks to their places, fsync, read back. Returns the CRC-32 of each block."""
    checksums: dict[str, list[int]] = {name: [] for name in fields}
    extents: list[tuple[int, int, int, str]] = []  # offset, length, crc, field
    fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        row = 0
        for block in blocks:
            num_rows = -1
            for name, field in fields.items():
                data = np.ascontiguousarray(block[name], dtype=np.dtype(field.dtype).newbyteorder("<"))
                num_rows = len(data)
                if data.shape != (num_rows, *field.shape) or row + num_rows > num_samples:
                    raise DataError(f"{path}: field {name}: rows of shape {data.shape[1:]}, want {field.shape}")
                raw = data.reshape(-1).view(np.uint8).data
                offset = offsets[name] + row * field.row_bytes
                _write_all(fd, raw, offset)
                checksums[name].append(crc32(raw))
                extents.append((offset, len(raw), checksums[name][-1], name))
            row += num_rows
        if row != num_samples:
            raise DataError(f"{path}: {row} samples came for a shard of {num_samples}")
        os.fsync(fd)
        _read_back(fd, path, extents)
    finally:
        os.close(fd)
    return checksums


def _write_all(fd: int, data: memoryview, offset: int) -> None:
    done = 0
    while done < len(data):
        done += os.pwrite(fd, data[done:], offset + done)


def _read_back(fd: int, path: Path, extents: list[tuple[int, int, int, str]]) -> None:
    """Compare what the file system returns with what was sent. Dropping the cache first makes it ask the storage."""
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
    for offset, length, checksum, name in extents:
        data = os.pread(fd, length, offset)
        while len(data) < length and (more := os.pread(fd, length - len(data), offset + len(data))):
            data += more
        if crc32(data) != checksum:
            raise DataError(f"{path}: field {name} at byte {offset} reads back differently; the storage is at fault")
