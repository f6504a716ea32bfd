"""Finding and reading the files that become a byte dataset, in an order that does not depend on the file system.

Apart from packing because directories hold surprises (loops of links, pipes, files without permission, a dataset being
written inside its own source): here they are left out and counted, and what is read is bounded.
"""

from __future__ import annotations

import fnmatch
import os
import stat
from collections.abc import Generator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from hpc_train.errors import DataError, from_os_error

__all__ = ["SourceFile", "SourceList", "SourceReader", "list_sources"]

MAX_SKIPPED_SHOWN = 20


@dataclass(frozen=True)
class SourceFile:
    """A regular file that could be opened, with its size [bytes] at that time."""

    path: Path
    size: int


@dataclass
class SourceList:
    """Files in packing order, and what was left out: how many, and the first few with the reason."""

    files: list[SourceFile] = field(default_factory=list)
    num_skipped: int = 0
    skipped: list[str] = field(default_factory=list)

    @property
    def num_bytes(self) -> int:
        """Bytes of all files together."""
        return sum(file.size for file in self.files)

    def skip(self, path: Path, reason: str) -> None:
        """Leave one file or directory out, and remember it."""
        self.num_skipped += 1
        if len(self.skipped) < MAX_SKIPPED_SHOWN:
            self.skipped.append(f"{path}: {reason}")


def list_sources(sources: Sequence[Path], *, globs: Sequence[str] = ("*",), exclude: Path | None = None) -> SourceList:
    """The files of the sources: files as given, directories with all below them, sorted by name at each level.

    Args:  globs: a file below a directory is taken if its name matches one of them; names that begin with a dot are
    left out.   exclude: a directory to stay out of (the output).
    Returns: files with their sizes. Links are followed; loops, broken links, special files and what cannot be read
    are skipped and counted.
    Raises: DataError for a source that is missing or neither file nor directory. Not collective.
    """
    found = SourceList()
    outside = _identity(exclude) if exclude is not None else None
    for source in sources:
        try:
            mode = source.stat().st_mode
        except OSError as error:
            raise DataError(f"source {source}: {error.strerror}; name an existing file or directory") from error
        if stat.S_ISDIR(mode):
            _walk(source, globs, found, ancestors=[], outside=outside)
        elif stat.S_ISREG(mode):
            before = found.num_skipped
            _take(source, found)
            if found.num_skipped > before:
                raise DataError(f"source {found.skipped[-1] if found.skipped else source}")
        else:
            raise DataError(f"source {source}: neither a file nor a directory")
    return found


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _walk(
    directory: Path,
    globs: Sequence[str],
    found: SourceList,
    *,
    ancestors: list[tuple[int, int]],
    outside: tuple[int, int] | None,
) -> None:
    identity = _identity(directory)
    if identity is not None and identity == outside:
        return
    if identity in ancestors or len(ancestors) > 200:
        found.skip(directory, "a link that leads back to a directory above it")
        return
    try:
        with os.scandir(directory) as listing:
            names = sorted(entry.name for entry in listing if not entry.name.startswith("."))
    except OSError as error:
        found.skip(directory, error.strerror or str(error))
        return
    for name in names:
        path = directory / name
        try:
            mode = path.stat().st_mode
        except OSError as error:
            found.skip(path, error.strerror or str(error))
            continue
        if stat.S_ISDIR(mode):
            _walk(path, globs, found, ancestors=[*ancestors, identity or (0, 0)], outside=outside)
        elif any(fnmatch.fnmatchcase(name, pattern) for pattern in globs):
            _take(path, found)


def _take(path: Path, found: SourceList) -> None:
    """Open the file once: what cannot be read must be known before the number of samples is."""
    try:
        # O_NONBLOCK: opening a pipe must not wait for a writer.
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        found.skip(path, error.strerror or str(error))
        return
    try:
        status = os.fstat(fd)
    finally:
        os.close(fd)
    if stat.S_ISREG(status.st_mode):
        found.files.append(SourceFile(path, status.st_size))
    else:
        found.skip(path, "not a regular file")


class SourceReader:
    """The bytes of all files, one after another, nothing between them: what `cat` gives.

    Use as a context manager. Raises: DataError if a file is shorter than it was when it was listed.
    """

    def __init__(self, files: Sequence[SourceFile]) -> None:
        self._pieces = self._open_all(files)
        self._fd = -1
        self._left = 0
        self._path = Path()

    def __enter__(self) -> SourceReader:
        return self

    def __exit__(self, *_: object) -> None:
        self._pieces.close()

    def read_into(self, buffer: memoryview) -> None:
        """Fill the buffer completely.

        Raises: DataError if the files end before; StorageError or another typed error if reading fails.
        """
        done = 0
        while done < len(buffer):
            if self._left == 0 and next(self._pieces, None) is None:
                raise DataError("the sources ended before the counted number of bytes; were they changed meanwhile?")
            try:
                got = os.readv(self._fd, [buffer[done : done + min(self._left, len(buffer) - done)]])
            except OSError as error:
                raise from_os_error(error, f"cannot read source {self._path}") from error
            if got == 0 and self._left:
                raise DataError(f"source {self._path}: became shorter while it was being packed; pack again")
            done += got
            self._left -= got

    def _open_all(self, files: Sequence[SourceFile]) -> Generator[bool, None, None]:
        for file in files:
            if file.size == 0:
                continue
            try:
                self._fd = os.open(file.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
            except OSError as error:
                raise from_os_error(error, f"cannot read source {file.path}") from error
            self._path, self._left = file.path, file.size
            try:
                yield True
            finally:
                os.close(self._fd)
