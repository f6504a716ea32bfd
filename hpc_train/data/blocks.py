"""Reading blocks of samples from shards: whole blocks at byte offsets, checked, tried again, never zeros.

Apart from the stream because it is all the input there is at training time, and it needs no HDF5 library: that one
turns a truncated file into zeros without an error (measured, h5py 3.16), while a plain read comes back short.
"""

from __future__ import annotations

import bisect
import errno
import logging
import os
import random
import socket
import stat
import time
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from hpc_train.data.checksum import crc32
from hpc_train.data.manifest import Manifest, Shard
from hpc_train.errors import DataError, PermissionDeniedError

__all__ = ["BlockReader", "check_shard_files"]

_log = logging.getLogger(__name__)

NUM_TRIES = 3
BACKOFF_S = (0.05, 0.5)  # before the second and the third try; doubled at random, so that ranks do not return at once
MAX_OPEN_SHARDS = 32  # well below the usual limit of 1024 files, and within one of 64


class _Damage(Exception):
    """One failed try at one block; the text says what was wrong."""


class BlockReader:
    """Reads blocks of a dataset into buffers. One thread at a time; keeps at most 32 shards open.

    Args:  check_crc: compare each block with its checksum.
    Attributes:  num_retries: tries beyond the first, over all blocks.   num_opens: shards opened.
    bytes_read: bytes of all successful reads.
    """

    def __init__(self, directory: Path, manifest: Manifest, *, check_crc: bool = True) -> None:
        self._directory = directory
        self._manifest = manifest
        self._check_crc = check_crc
        self._files: OrderedDict[int, int] = OrderedDict()  # shard number -> fd, least recently used first
        self._identities: dict[int, tuple[int, int]] = {}
        self._first_blocks: list[int] = []  # of each shard
        first = 0
        for shard in manifest.shards:
            self._first_blocks.append(first)
            first += -(-shard.num_samples // manifest.block_samples)
        self.num_retries = 0
        self.num_opens = 0
        self.bytes_read = 0

    def read(self, block: int, buffers: Mapping[str, npt.NDArray[np.uint8]]) -> None:
        """Fill the beginning of each field's buffer with a block's rows, as stored (little-endian).

        Args:  block: number within the dataset.   buffers: per field uint8, at least as long as the block.
        Raises: DataError naming shard, block and samples if three tries do not give the right bytes;
        PermissionDeniedError at once.
        """
        number = bisect.bisect_right(self._first_blocks, block) - 1
        local = block - self._first_blocks[number]
        reason = ""
        for attempt in range(NUM_TRIES):
            if attempt:
                self.num_retries += 1
                _log.warning("%s: trying again: %s", self._where(number, block), reason)
                time.sleep(BACKOFF_S[attempt - 1] * (1 + random.random()))
            try:
                self._read_once(number, local, buffers)
                return
            except _Damage as damage:
                reason = str(damage)
            except PermissionError as error:
                raise PermissionDeniedError(
                    f"{self._where(number, block)}: {error.strerror} for user {os.getuid()} on {socket.gethostname()}"
                ) from error
            except OSError as error:
                reason = f"{error.strerror} ({errno.errorcode.get(error.errno or 0, error.errno)})"
            # A stale or cached view must not answer again: the next try opens the path anew.
            self._close_shard(number)
        raise DataError(
            f"{self._where(number, block)}: {reason}, {NUM_TRIES} times on {socket.gethostname()}; "
            f"see all damage with 'hpc-train data verify {self._directory}', then restore or pack it again"
        )

    def close(self) -> None:
        """Close all shards; reading opens them again, with a new check of their identity."""
        while self._files:
            os.close(self._files.popitem()[1])

    def _read_once(self, number: int, local: int, buffers: Mapping[str, npt.NDArray[np.uint8]]) -> None:
        shard = self._manifest.shards[number]
        num_rows = min(self._manifest.block_samples, shard.num_samples - local * self._manifest.block_samples)
        fd = self._open_shard(number)
        for name, extent in shard.fields.items():
            row_bytes = self._manifest.fields[name].row_bytes
            view = buffers[name][: num_rows * row_bytes]
            offset = extent.offset + local * self._manifest.block_samples * row_bytes
            _read_fully(fd, view.data, offset)
            if self._check_crc and crc32(view) != extent.crc32[local]:
                raise _Damage(f"field {name} at byte {offset} does not match its checksum")
            self.bytes_read += len(view)

    def _open_shard(self, number: int) -> int:
        fd = self._files.get(number)
        if fd is not None:
            self._files.move_to_end(number)
            return fd
        while len(self._files) >= MAX_OPEN_SHARDS:
            os.close(self._files.popitem(last=False)[1])
        shard = self._manifest.shards[number]
        fd = self._open_file(self._directory / shard.name)
        try:
            self._check_identity(number, shard, os.fstat(fd))
        except BaseException:
            os.close(fd)
            raise
        self._files[number] = fd
        self.num_opens += 1
        return fd

    def _open_file(self, path: Path) -> int:
        flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK  # a pipe in a shard's place must not hang the rank
        try:
            return os.open(path, flags)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE) or not self._files:
                raise
            _log.warning("too many open files: closing the %d shards held open", len(self._files))
            self.close()
            return os.open(path, flags)

    def _check_identity(self, number: int, shard: Shard, status: os.stat_result) -> None:
        if not stat.S_ISREG(status.st_mode):
            raise _Damage("not a regular file")
        if status.st_size != shard.size_bytes:
            raise _Damage(f"the file has {status.st_size} bytes, the manifest says {shard.size_bytes}")
        identity = (status.st_dev, status.st_ino)
        if self._identities.setdefault(number, identity) != identity:
            raise _Damage("the file was replaced by another one since this run opened it")

    def _close_shard(self, number: int) -> None:
        fd = self._files.pop(number, None)
        if fd is not None:
            os.close(fd)

    def _where(self, number: int, block: int) -> str:
        first = block * self._manifest.block_samples
        last = min(first + self._manifest.block_samples, self._manifest.num_samples) - 1
        return f"{self._directory / self._manifest.shards[number].name}: block {block} (samples {first} to {last})"


def _read_fully(fd: int, view: memoryview, offset: int) -> None:
    done = 0
    while done < len(view):
        got = os.preadv(fd, [view[done:]], offset + done)
        if got == 0:
            raise _Damage(f"the file ends at byte {offset + done}, {len(view) - done} bytes too early")
        done += got


def check_shard_files(directory: Path, manifest: Manifest) -> None:
    """Whether every shard is there with its size: one listing and one stat per shard, for rank 0 to do.

    Raises: DataError naming the first few that are missing or of another size.
    """
    problems: list[str] = []
    for shard in manifest.shards:
        try:
            status = (directory / shard.name).stat()
        except OSError as error:
            problems.append(f"{shard.name}: {error.strerror}")
            continue
        if not stat.S_ISREG(status.st_mode):
            problems.append(f"{shard.name}: not a regular file")
        elif status.st_size != shard.size_bytes:
            problems.append(f"{shard.name}: {status.st_size} bytes, the manifest says {shard.size_bytes}")
    if problems:
        shown = "; ".join(problems[:3]) + (f"; and {len(problems) - 3} more" if len(problems) > 3 else "")
        raise DataError(f"{directory}: damaged: {shown}; restore the shards or pack the dataset again")
