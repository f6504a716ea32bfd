"""Two ways to put bytes into the data files, behind one interface: MPI-IO and POSIX. Same bytes on disk.

Apart from the save protocol because it trusts neither: whatever a writer reports, every chunk is read back. Each rank
writes its own extents independently. The MPI files are opened on MPI.COMM_SELF on purpose: a collective close can
hang on the healthy ranks after one rank's sync failed (Open MPI 5.0.11, OMPIO on a full file system), and collective
writes report success with full counts there.
"""

from __future__ import annotations

import errno
import os
import time
from pathlib import Path
from typing import Any, Protocol

from hpc_train.checkpoint.names import data_name
from hpc_train.errors import StorageError, UsageError, from_os_error
from hpc_train.world import World

__all__ = ["WRITERS", "MpiWriter", "PosixWriter", "Writer", "choose_writer"]

WRITERS = ("auto", "mpiio", "posix")
MAX_CALL_BYTES = 1 << 30  # Linux moves at most 2 147 479 552 bytes in one call; MPI counts are 32 bits wide
VISIBLE_WITHIN_S = 60.0  # NFS clients may see a new file late: attribute caches live for up to 60 s by default


class Writer(Protocol):
    """Writes the extents of one rank into files that exist already. Nothing here is collective."""

    name: str

    def write(self, file: int, byte_offset: int, data: memoryview) -> None:
        """Put `data` at its place; raises NoSpaceError, StorageError, … if not all of it was taken."""

    def sync(self) -> None:
        """Make everything this rank wrote durable."""

    def close(self) -> None:
        """Give the files back; safe after a failure and twice."""


def choose_writer(wanted: str, world: World) -> type[PosixWriter] | type[MpiWriter]:
    """The class for "auto" (MPI-IO where the World has MPI), "mpiio" or "posix".

    Raises: UsageError for another word, or "mpiio" without MPI.
    """
    if wanted not in WRITERS:
        raise UsageError(f"writer = {wanted!r}; allowed: {', '.join(WRITERS)}")
    if wanted == "mpiio" and world.mpi is None:
        raise UsageError('writer = "mpiio", but this World has no MPI; use "auto" or "posix", or start under MPI')
    return PosixWriter if wanted == "posix" or world.mpi is None else MpiWriter


class PosixWriter:
    """pwrite(2) and fsync(2)."""

    name = "posix"

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._fds: dict[int, int] = {}

    def write(self, file: int, byte_offset: int, data: memoryview) -> None:
        """As `Writer.write`."""
        if file not in self._fds:
            self._fds[file] = open_existing(self._directory / data_name(file), os.O_WRONLY)
        pwrite_all(self._fds[file], data, byte_offset, self._directory / data_name(file))

    def sync(self) -> None:
        """As `Writer.sync`."""
        for file, fd in self._fds.items():
            _fsync(fd, self._directory / data_name(file))

    def close(self) -> None:
        """As `Writer.close`."""
        while self._fds:
            os.close(self._fds.popitem()[1])


class MpiWriter:
    """MPI_File_write_at and MPI_File_sync through mpi4py, errors returned, counts checked."""

    name = "mpiio"

    def __init__(self, directory: Path) -> None:
        from mpi4py import MPI

        self._mpi = MPI
        self._directory = directory
        self._files: dict[int, Any] = {}

    def write(self, file: int, byte_offset: int, data: memoryview) -> None:
        """As `Writer.write`."""
        path = self._directory / data_name(file)
        try:
            if file not in self._files:
                self._files[file] = self._open(path)
            for start in range(0, len(data), MAX_CALL_BYTES):
                part = data[start : start + MAX_CALL_BYTES]
                status = self._mpi.Status()
                self._files[file].Write_at(byte_offset + start, [part, self._mpi.BYTE], status)
                count = status.Get_count(self._mpi.BYTE)
                if count != len(part):
                    raise StorageError(f"MPI-IO wrote {count} of {len(part)} bytes to {path} and reported success")
        except self._mpi.Exception as error:
            self._raise_true_cause(path, byte_offset, data)
            raise StorageError(f"MPI-IO cannot write {path}: {error}") from error
        except StorageError:
            self._raise_true_cause(path, byte_offset, data)
            raise

    def _open(self, path: Path) -> Any:
        os.close(open_existing(path, os.O_WRONLY))  # waits for a file that NFS shows late; gives the true errno
        info = self._mpi.Info.Create()
        try:
            # Sieving would read, lock and rewrite neighbours' bytes; our extents are disjoint.
            info.Set("romio_ds_write", "disable")
            file = self._mpi.File.Open(self._mpi.COMM_SELF, os.fspath(path), self._mpi.MODE_WRONLY, info)
        finally:
            info.Free()
        file.Set_errhandler(self._mpi.ERRORS_RETURN)
        return file

    def _raise_true_cause(self, path: Path, byte_offset: int, data: memoryview) -> None:
        """Ask the kernel for the errno that MPI hides, with the same write. Its success repairs nothing."""
        fd = open_existing(path, os.O_WRONLY)
        try:
            pwrite_all(fd, data, byte_offset, path)
        finally:
            os.close(fd)

    def sync(self) -> None:
        """As `Writer.sync`."""
        for file, handle in self._files.items():
            try:
                handle.Sync()
            except self._mpi.Exception as error:
                path = self._directory / data_name(file)
                fd = open_existing(path, os.O_WRONLY)
                try:
                    _fsync(fd, path)  # for the errno that MPI hides; its success repairs nothing
                finally:
                    os.close(fd)
                raise StorageError(f"MPI-IO cannot sync {path}: {error}") from error

    def close(self) -> None:
        """As `Writer.close`."""
        while self._files:
            file, handle = self._files.popitem()
            try:
                handle.Close()
            except self._mpi.Exception as error:
                raise StorageError(f"MPI-IO cannot close {self._directory / data_name(file)}: {error}") from error


def _fsync(fd: int, path: Path) -> None:
    try:
        os.fsync(fd)
    except OSError as error:
        raise from_os_error(error, f"cannot sync {path}") from error


def open_existing(path: Path, flags: int) -> int:
    """Open a file that another rank has created, waiting up to 60 s for it to become visible here.

    Raises: CannotCreateError, PermissionDeniedError, StorageError.
    """
    deadline = time.monotonic() + VISIBLE_WITHIN_S
    while True:
        try:
            return os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ESTALE) or time.monotonic() > deadline:
                raise from_os_error(error, f"cannot open {path}") from error
        time.sleep(0.1)


def pwrite_all(fd: int, data: memoryview, byte_offset: int, path: Path) -> None:
    """Write everything, in calls of at most 1 GiB.

    Raises: NoSpaceError, StorageError, … with the path.
    """
    done = 0
    while done < len(data):
        try:
            count = os.pwrite(fd, data[done : done + MAX_CALL_BYTES], byte_offset + done)
        except OSError as error:
            raise from_os_error(error, f"cannot write {path} at byte {byte_offset + done}") from error
        if count == 0:
            raise StorageError(f"cannot write {path} at byte {byte_offset + done}: the system took no bytes")
        done += count
