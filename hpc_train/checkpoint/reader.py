"""Opening a committed checkpoint and reading its bytes, every one of them checked.

Apart from loading because `verify` and the catalogue need it without torch or numpy. A checkpoint is treated as
hostile: files are opened relative to the directory's descriptor, never through a symbolic link, their sizes come from
fstat, and nothing is allocated by a number that was not compared with those. Standard library only.
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType

from hpc_train.checkpoint.agreement import DamagedCheckpoint
from hpc_train.checkpoint.checksum import CHUNK_BYTES, chunk_spans, crc32
from hpc_train.checkpoint.commit import MAX_COMMIT_BYTES, Commit
from hpc_train.checkpoint.index import MAX_INDEX_BYTES, Extent, Index
from hpc_train.checkpoint.index_reader import parse_index
from hpc_train.checkpoint.names import COMMIT_NAME, INDEX_NAME, data_name, parse_step
from hpc_train.errors import CheckpointError, from_os_error

__all__ = ["OpenCheckpoint", "check_index_file", "open_directory", "read_commit"]


@contextmanager
def open_directory(path: Path) -> Iterator[int]:
    """Descriptor of a checkpoint directory.

    Raises: DamagedCheckpoint if it is missing, a symbolic link or no directory; PermissionDeniedError.
    """
    try:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise _as_damage(error, f"{path}") from error
    try:
        yield fd
    finally:
        os.close(fd)


def read_commit(path: Path) -> Commit:
    """COMMIT of a checkpoint directory.

    Raises: DamagedCheckpoint naming the file if it is missing, damaged or of another step than the directory's name.
    """
    with open_directory(path) as directory:
        return _read_commit(directory, path)


def check_index_file(path: Path, commit: Commit) -> None:
    """Whether a committed checkpoint's index is there, may be read and has its length; its content is not looked at.

    Raises: DamagedCheckpoint naming the file; PermissionDeniedError.
    """
    where = f"{path / INDEX_NAME}"
    with open_directory(path) as directory:
        fd = _open_regular(directory, INDEX_NAME, where)
        try:
            _check_index_length(os.fstat(fd).st_size, commit, where)
        finally:
            os.close(fd)


def _check_index_length(actual: int, commit: Commit, where: str) -> None:
    if actual != commit.index_nbytes:
        raise DamagedCheckpoint(
            f"{where}: {actual} bytes long, {commit.index_nbytes} were committed: cut short or changed"
        )


def _read_commit(directory: int, path: Path) -> Commit:
    where = f"{path / COMMIT_NAME}"
    data = _read_small(directory, COMMIT_NAME, MAX_COMMIT_BYTES, where)
    try:
        commit = Commit.parse(data, where)
    except CheckpointError as error:
        raise DamagedCheckpoint(str(error)) from error
    expected = parse_step(path.name)
    if expected is not None and commit.step != expected:
        raise DamagedCheckpoint(f"{where}: is of step {commit.step}, the directory says {expected}")
    return commit


def _open_regular(directory: int, name: str, where: str) -> int:
    """A regular file inside the directory; O_NONBLOCK so that a FIFO put there cannot hang us."""
    try:
        fd = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=directory)
    except OSError as error:
        raise _as_damage(error, where) from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise DamagedCheckpoint(f"{where}: not a regular file")
    return fd


def _as_damage(error: OSError, where: str) -> CheckpointError:
    if isinstance(error, PermissionError):
        raise from_os_error(error, f"cannot read {where}") from error
    is_gone = isinstance(error, FileNotFoundError | NotADirectoryError)
    return DamagedCheckpoint(f"{where}: {error.strerror or error}{'; the checkpoint is damaged' if is_gone else ''}")


def _read_small(directory: int, name: str, limit: int, where: str) -> bytes:
    fd = _open_regular(directory, name, where)
    try:
        nbytes = os.fstat(fd).st_size
        if nbytes > limit:
            raise DamagedCheckpoint(f"{where}: {nbytes} bytes; at most {limit}")
        data = bytearray(nbytes)
        count = _pread(fd, memoryview(data), 0, where)
    finally:
        os.close(fd)
    return bytes(data[:count])


def _pread(fd: int, target: memoryview, offset: int, where: str) -> int:
    """Fill `target` as far as the file goes; returns the bytes read."""
    done = 0
    while done < len(target):
        try:
            count = os.preadv(fd, [target[done : done + (1 << 30)]], offset + done)
        except OSError as error:
            raise DamagedCheckpoint(f"{where}: cannot be read at byte {offset + done}: {error.strerror}") from error
        if count == 0:
            break
        done += count
    return done


class OpenCheckpoint:
    """A checkpoint whose COMMIT and index have been read and checked, with its data files open. A context manager.

    Args:  problems: takes what is wrong with data files, instead of an error at the first one (for `verify`, which goes
    on); what lies in them reads as damaged then.
    Attributes:  path; commit; index.   Not collective: each rank opens its own.
    Raises on construction: DamagedCheckpoint naming the file; PermissionDeniedError.
    """

    def __init__(self, path: Path, *, problems: list[str] | None = None) -> None:
        self.path = path
        self._fds: list[int] = []
        self._problems = problems
        try:
            with open_directory(path) as directory:
                self.commit = _read_commit(directory, path)
                self._open_data(directory)
                self.index = self._read_index(directory)
        except BaseException:
            self.close()
            raise

    def _open_data(self, directory: int) -> None:
        for ordinal, expected in enumerate(self.commit.file_nbytes):
            self._fds.append(-1)
            try:
                self._open_file(directory, ordinal, expected)
            except DamagedCheckpoint as error:
                if self._problems is None:
                    raise
                self._problems.append(str(error))

    def _open_file(self, directory: int, ordinal: int, expected: int) -> None:
        where = f"{self.path / data_name(ordinal)}"
        self._fds[ordinal] = fd = _open_regular(directory, data_name(ordinal), where)
        actual = os.fstat(fd).st_size
        if actual != expected:
            how = "cut short" if actual < expected else "longer than it was"
            raise DamagedCheckpoint(f"{where}: {actual} bytes long, {expected} were committed; it is {how}")

    def is_there(self, file: int) -> bool:
        """Whether a data file could be opened; False only where `problems` were taken."""
        return self._fds[file] >= 0

    def _read_index(self, directory: int) -> Index:
        where = f"{self.path / INDEX_NAME}"
        data = _read_small(directory, INDEX_NAME, MAX_INDEX_BYTES, where)
        _check_index_length(len(data), self.commit, where)
        if hashlib.sha256(data).hexdigest() != self.commit.index_sha256:
            raise DamagedCheckpoint(f"{where}: its sha256 is not the one in COMMIT: the file is damaged")
        try:
            index = parse_index(data, self.commit.file_nbytes)
        except CheckpointError as error:
            raise DamagedCheckpoint(f"{self.path}: {error}") from error
        if (index.step, index.world_size) != (self.commit.step, self.commit.world_size):
            raise DamagedCheckpoint(f"{where}: step or world size is not the one in COMMIT")
        return index

    def read_extent(self, extent: Extent, target: memoryview, what: str) -> None:
        """Fill `target` (extent.nbytes long) and check every chunk.

        Raises: DamagedCheckpoint naming file, `what` and chunk.
        """
        for number, (start, stop) in enumerate(chunk_spans(extent.nbytes)):
            self.read_chunk(extent, number, target[start:stop], what)

    def read_chunk(self, extent: Extent, number: int, target: memoryview, what: str) -> None:
        """One 8 MiB chunk of an extent. Raises as `read_extent`."""
        where = f"{self.path / data_name(extent.file)}: {what}, chunk {number} of {len(extent.crcs)}"
        start = extent.byte_offset + number * CHUNK_BYTES
        if self.read_raw(extent.file, start, target) != len(target):
            raise DamagedCheckpoint(f"{where}: cut short")
        if crc32(target) != extent.crcs[number]:
            raise DamagedCheckpoint(f"{where}: CRC-32 does not match: the bytes are not what was saved")

    def read_raw(self, file: int, byte_offset: int, target: memoryview) -> int:
        """Unchecked bytes of a data file; returns how many there were."""
        return _pread(self._fds[file], target, byte_offset, f"{self.path / data_name(file)}")

    def close(self) -> None:
        """Close the data files."""
        while self._fds:
            fd = self._fds.pop()
            if fd >= 0:
                os.close(fd)

    def __enter__(self) -> OpenCheckpoint:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.close()
