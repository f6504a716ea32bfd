"""Who saves into a root just now: a lock for programs outside any run, which have no owner token.

Apart because runs need none of it: there the token tells attempts apart, also across machines. Two programs by hand
that save into one directory would take turns in replacing each other's checkpoints. The lock is the kernel's (flock)
and goes with its process, however that ends. Where the file system has no locks (some NFS and Lustre mounts), the
record tells of a process that still lives on this machine; of one on another machine nobody knows, and a warning says
so. Standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import json
import logging
import os
import socket
from pathlib import Path
from typing import Any

from hpc_train.errors import CheckpointError
from hpc_train.files import process_start, read_json

__all__ = ["LOCK_NAME", "occupy"]

LOCK_NAME = ".owner.lock"

log = logging.getLogger(__name__)

# (device, inode) of a lock file -> its descriptor, open as long as the process; -1 where a parent has it
_held: dict[tuple[int, int], int] = {}


def occupy(root: Path) -> None:
    """Take a root for this process, for as long as it lives; nothing if it has it already.

    Raises: CheckpointError naming the process that saves there; OSError.
    """
    _close_in_children()
    with contextlib.suppress(FileNotFoundError):
        # Not by opening it: over NFS, closing any descriptor of a file gives the process's lock on it away.
        status = os.stat(root / LOCK_NAME, follow_symlinks=False)
        if (status.st_dev, status.st_ino) in _held:
            return
    fd = _open(root / LOCK_NAME)
    try:
        has_locks = _lock(fd, root)
        if not has_locks:
            _check_record(root)
        record = {"host": socket.gethostname(), "pid": os.getpid(), "started": process_start(os.getpid())}
        _write(fd, json.dumps(record).encode())
    except BaseException:
        os.close(fd)
        raise
    status = os.fstat(fd)
    _held[status.st_dev, status.st_ino] = fd


def _open(path: Path) -> int:
    flags = os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        return os.open(path, os.O_RDWR | flags, 0o666)  # NFS wants a file that is open for writing
    except PermissionError:  # a colleague's, in a project's root
        return os.open(path, os.O_RDONLY | flags, 0o666)


def _write(fd: int, data: bytes) -> None:
    """Into the file itself: a new one in its place would not be the one that is locked."""
    try:
        os.ftruncate(fd, 0)
        os.pwrite(fd, data, 0)
    except OSError as error:
        if error.errno not in (errno.EBADF, errno.EINVAL):  # a colleague's, open for reading only
            raise


def _lock(fd: int, root: Path) -> bool:
    """True once locked; False where the file system has no locks."""
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            raise CheckpointError(_refusal(root, _record(root))) from error
        return False  # ENOLCK, ENOSYS, EOPNOTSUPP, …
    return True


def _check_record(root: Path) -> None:
    record = _record(root)
    host, pid = record.get("host"), record.get("pid")
    if not record or (host, pid) == (socket.gethostname(), os.getpid()):
        return
    if host != socket.gethostname():
        log.warning("%s: this file system has no locks; make sure that process %s on %s has ended", root, pid, host)
    elif type(pid) is int and process_start(pid) is not None and process_start(pid) == record.get("started"):
        raise CheckpointError(_refusal(root, record))


def _record(root: Path) -> dict[str, Any]:
    try:
        record: Any = read_json(root / LOCK_NAME, limit=4096)
    except (OSError, ValueError):
        return {}
    return record if isinstance(record, dict) else {}


def _refusal(root: Path, record: dict[str, Any]) -> str:
    pid, host = record.get("pid"), record.get("host")
    who = f"process {pid} on {host!r}" if type(pid) is int and isinstance(host, str) else "another process"
    return f"{root}: {who} saves here just now; wait until it has ended, or give this one another root"


@functools.cache
def _close_in_children() -> None:
    """See that a forked child does not hold the lock: it must not stay taken when only the child lives on.

    The child may save there all the same, as a part of its parent's program.
    """

    def let_go() -> None:
        for key, fd in _held.items():
            if fd >= 0:
                os.close(fd)
            _held[key] = -1

    os.register_at_fork(after_in_child=let_go)
