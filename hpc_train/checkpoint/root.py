"""What rank 0 does to a checkpoint root: prepare a save, commit it, clean up.

Apart from moving bytes because the order of the system calls here is the promise: everything is durable before the
one rename that makes a checkpoint exist. Nothing here is collective. Standard library only.
"""

from __future__ import annotations

import ctypes
import errno
import json
import logging
import os
import shutil
from pathlib import Path
from typing import Any

from hpc_train.checkpoint.catalogue import list_checkpoints
from hpc_train.checkpoint.commit import Commit
from hpc_train.checkpoint.names import (
    COMMIT_NAME,
    INDEX_NAME,
    LATEST_FORMAT,
    LATEST_NAME,
    OWNER_FORMAT,
    OWNER_NAME,
    aside_name,
    data_name,
    in_progress_name,
    parse_aside,
    parse_in_progress,
    step_name,
)
from hpc_train.checkpoint.occupancy import occupy
from hpc_train.checkpoint.retention import to_delete
from hpc_train.errors import CannotCreateError, CheckpointError, NoSpaceError, StorageError, from_os_error
from hpc_train.files import fsync_dir, read_json, write_json

__all__ = ["STANDALONE", "Root"]

log = logging.getLogger(__name__)

SPACE_FACTOR = 1.1  # metadata of the file system, and other writers of the same project
SPARE_INODES = 8
STANDALONE = "standalone"


class Root:
    """A directory of checkpoints, as the one process that may change it sees it (rank 0).

    Args:  run: who saves here, a text: the run's directory, or "standalone" outside a run.   within: a directory that
    must be there already: a run's, which must not come back as a shell of itself after it was removed.
    """

    def __init__(self, path: Path, run: str, within: Path | None = None) -> None:
        self.path = path
        self._run = run
        self._within = within

    def prepare(self, step: int, num_files: int, num_bytes: int) -> str:
        """Check the ground and create the directory and files of a save.

        Returns: the name of the in-progress directory, whose files exist, empty.
        Raises: NoSpaceError with the missing bytes, CannotCreateError, PermissionDeniedError, CheckpointError
        (the root belongs to another run). Nothing is left behind then.
        """
        try:
            if self._within is not None and not self._within.is_dir():
                raise CannotCreateError(f"{self._within} is gone: was the run's directory moved or removed under it?")
            self.path.mkdir(parents=True, exist_ok=True)
            self._take_ownership()
            self.heal()
            self._reap()
            self._preflight(num_files, num_bytes)
            return self._create(step, num_files)
        except OSError as error:
            raise from_os_error(error, f"cannot prepare a checkpoint in {self.path}") from error

    def _take_ownership(self) -> None:
        if self._run == STANDALONE:
            occupy(self.path)
        record_path = self.path / OWNER_NAME
        wanted = {"format": OWNER_FORMAT, "version": 1, "run": self._run}
        try:
            fd = os.open(record_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        except FileExistsError:
            self._check_owner(record_path)
            return
        with os.fdopen(fd, "w") as file:
            file.write(json.dumps(wanted) + "\n")
            file.flush()
            os.fsync(fd)

    def _check_owner(self, record_path: Path) -> None:
        try:
            record = read_json(record_path)
            owner = record["run"]
        except (ValueError, KeyError, TypeError) as error:
            if self.committed_steps():
                raise CheckpointError(
                    f"{record_path}: damaged, so that nobody knows which run these checkpoints belong to; remove it if"
                    " they are this run's"
                ) from error
            # Cut short by a crash right after it was created: no save can have followed.
            write_json(record_path, {"format": OWNER_FORMAT, "version": 1, "run": self._run})
            return
        if owner != self._run:
            raise CheckpointError(
                f"{self.path} belongs to the run {owner!r}, this is {self._run!r}; give this run another root, or"
                f" remove {OWNER_NAME} there if the other one has ended (loading from it is allowed without)"
            )

    def other_owner(self) -> str:
        """Which other run these checkpoints belong to; "" where they are this one's, nobody knows, or this is none."""
        if self._run == STANDALONE:
            return ""
        try:
            owner = read_json(self.path / OWNER_NAME)["run"]
        except (OSError, ValueError, KeyError, TypeError):
            return ""
        return owner if isinstance(owner, str) and owner not in (self._run, STANDALONE) else ""

    def heal(self) -> None:
        """Put back what a kill caught between the two renames of a replacement.

        Raises: OSError as the system gives it.
        """
        if not self.path.is_dir():
            return
        for name in os.listdir(self.path):
            aside = parse_aside(name)
            if aside is None or aside[0] != "replaced" or aside[1] is None:
                continue
            target = self.path / step_name(aside[1])
            if not os.path.lexists(target):
                os.rename(self.path / name, target)
                fsync_dir(self.path)

    def _reap(self) -> None:
        """Remove what dead attempts left, by exact name."""
        for name in os.listdir(self.path):
            aside = parse_aside(name)
            if parse_in_progress(name) is not None or (aside is not None and aside[0] != "abandoned"):
                self._remove(name)

    def _remove(self, name: str) -> None:
        """Delete a directory of ours; a failure leaves garbage that the next save reaps, no more."""
        try:
            shutil.rmtree(self.path / name)  # does not follow symbolic links, nor start at one
        except OSError as error:
            log.warning("cannot remove %s: %s", self.path / name, error)

    def _preflight(self, num_files: int, num_bytes: int) -> None:
        space = os.statvfs(self.path)
        free = space.f_bavail * space.f_frsize
        needed = int(num_bytes * SPACE_FACTOR) + (num_files + SPARE_INODES) * space.f_frsize
        if free < needed:
            raise NoSpaceError(
                f"{self.path}: a checkpoint of {num_bytes} bytes needs {needed} free, there are {free}: {needed - free}"
                " bytes are missing; free space, keep fewer checkpoints or use another root"
            )
        # Some file systems (btrfs) have no fixed number of inodes and report none.
        if space.f_files and space.f_favail < num_files + SPARE_INODES:
            raise NoSpaceError(
                f"{self.path}: a checkpoint needs {num_files + SPARE_INODES} inodes, {space.f_favail} are free; remove"
                " files or use another root"
            )

    def _create(self, step: int, num_files: int) -> str:
        name = in_progress_name(step)
        directory = self.path / name
        directory.mkdir()
        try:
            for ordinal in range(num_files):
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                os.close(os.open(directory / data_name(ordinal), flags, 0o666))
            fsync_dir(directory)
        except OSError:
            self._remove(name)
            raise
        return name

    def discard(self, name: str) -> None:
        """Remove the in-progress directory of a save that failed."""
        self._remove(name)

    def seal(self, name: str, commit: Commit, index: bytes) -> None:
        """Write index and COMMIT into the in-progress directory and make all names in it durable.

        Raises: NoSpaceError, StorageError, …
        """
        directory = self.path / name
        try:
            for ordinal, nbytes in enumerate(commit.file_nbytes):
                actual = os.stat(directory / data_name(ordinal), follow_symlinks=False).st_size
                if actual != nbytes:
                    raise StorageError(f"{directory / data_name(ordinal)}: {actual} bytes, {nbytes} were written")
            _write_new(directory / INDEX_NAME, index)
            _write_new(directory / COMMIT_NAME, commit.encode())
            fsync_dir(directory)
        except OSError as error:
            raise from_os_error(error, f"cannot commit {directory}") from error

    def publish(self, name: str, step: int) -> Path:
        """The commit: rename the sealed directory to its final name, then make the name durable.

        Returns: the final path. An older checkpoint of the same step is exchanged with it in the same instant.
        Raises: StorageError, …; nothing has changed then.
        """
        source, target = self.path / name, self.path / step_name(step)
        replaced: str | None = None
        try:
            try:
                os.rename(source, target)
            except OSError as error:
                if error.errno not in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR):
                    raise
                replaced = self._replace(name, target, step)
            fsync_dir(self.path)
        except OSError as error:
            raise from_os_error(error, f"cannot commit {target}") from error
        if replaced is not None:
            self._delete(replaced, step)
        return target

    def _replace(self, name: str, target: Path, step: int) -> str:
        """Put the new directory in place of an old one; returns the name the old one has then."""
        if _exchange(self.path / name, target):
            return name
        # Without RENAME_EXCHANGE (NFS, Lustre) two renames are needed; `heal` mends a kill between them.
        old = aside_name("replaced", step)
        os.rename(target, self.path / old)
        try:
            os.rename(self.path / name, target)
        except OSError:
            os.rename(self.path / old, target)
            raise
        return old

    def _delete(self, name: str, step: int | None) -> None:
        """Take a directory out of sight first, so that a cut-off deletion never looks like a checkpoint."""
        doomed = aside_name("deleting", step)
        try:
            os.rename(self.path / name, self.path / doomed)
        except OSError as error:
            log.warning("cannot delete %s: %s", self.path / name, error)
            return
        self._remove(doomed)

    def set_aside(self, steps: list[int]) -> None:
        """Hide checkpoints of a course that was left by loading an earlier step; nothing is deleted."""
        for step in steps:
            name = aside_name("abandoned", step)
            try:
                os.rename(self.path / step_name(step), self.path / name)
            except OSError as error:
                raise from_os_error(error, f"cannot set aside {self.path / step_name(step)}") from error
            log.warning("checkpoint step %d is from an abandoned course: kept as %s", step, self.path / name)
        if steps:
            fsync_dir(self.path)

    def committed_steps(self) -> list[int]:
        """Steps with a readable COMMIT, rising."""
        return [e.step for e in list_checkpoints(self.path) if e.num_bytes is not None and e.step is not None]

    def after_commit(self, commit: Commit, *, keep: int | None, damaged: set[int]) -> None:
        """LATEST and retention. The checkpoint exists already, so failures here are only logged."""
        advice: dict[str, Any] = {"format": LATEST_FORMAT, "version": 1}
        advice |= {"step": commit.step, "directory": step_name(commit.step), "save_id": commit.save_id}
        try:
            write_json(self.path / LATEST_NAME, advice)
            for step in to_delete(self.committed_steps(), keep=keep, newest=commit.step, damaged=damaged):
                self._delete(step_name(step), step)
        except (OSError, StorageError, CheckpointError) as error:
            log.warning("checkpoint step %d is saved, but cleaning up after it failed: %s", commit.step, error)


def _write_new(path: Path, data: bytes) -> None:
    """Create, write, fsync and read back one small file."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
    with os.fdopen(fd, "w+b") as file:
        file.write(data)
        file.flush()
        os.fsync(fd)
        file.seek(0)
        if file.read() != data:
            raise StorageError(f"{path}: reads back differently from what was written")


def _exchange(one: Path, other: Path) -> bool:
    """Swap two names atomically with renameat2(2); False where kernel, C library or file system cannot."""
    at_fdcwd, rename_exchange = -100, 2
    try:
        call = ctypes.CDLL(None, use_errno=True).renameat2
    except (OSError, AttributeError):
        return False
    if call(at_fdcwd, os.fsencode(one), at_fdcwd, os.fsencode(other), rename_exchange) == 0:
        return True
    code = ctypes.get_errno()
    if code in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        return False
    raise OSError(code, os.strerror(code), str(other))
