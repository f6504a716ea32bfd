"""Who owns a run: the token that fences off an attempt that should be dead but is not.

Apart because three places need the same rule: the start of an attempt takes the token, the checkpoint's commit re-reads
it, the decision checks it. A node that was cut off goes on computing while the next attempt runs elsewhere; the token
keeps it from committing. Standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hpc_train.errors import StorageError, Superseded
from hpc_train.files import fsync_dir, read_json, write_json
from hpc_train.run.layout import RunDir

__all__ = ["Ownership", "check_ownership", "read_ownership", "take_ownership"]

LOCK_WAIT_S = 10.0


@dataclass(frozen=True)
class Ownership:
    """The attempt that may write to the run, and its token."""

    attempt: int
    token: str


def take_ownership(run: RunDir) -> Ownership:
    """Make the next attempt's directory (an atomic mkdir gives its number) and own the run from then on.

    Of several that race, each gets a number of its own, and the highest number owns the run.
    Raises: OSError as the system gives it.
    """
    with _one_at_a_time(run):
        number = max((attempt.number for attempt in run.attempts()), default=-1) + 1
        while True:
            try:
                os.mkdir(run.attempt(number).path)
                break
            except FileExistsError:
                number += 1
        attempt = run.attempt(number)
        for directory in (attempt.exits, attempt.ready, attempt.finished, attempt.waiting, attempt.logs):
            directory.mkdir()
        fsync_dir(run.path)
        ownership = Ownership(number, secrets.token_hex(8))
        if run.attempts()[-1].number == number:  # else a later attempt has come already, and owns the run
            write_json(run.owner, {"attempt": number, "token": ownership.token, "node": socket.gethostname()})
    return ownership


@contextlib.contextmanager
def _one_at_a_time(run: RunDir) -> Iterator[None]:
    """Keep the order of the owner records that of the numbers; where the file system has no locks, go on without.

    The numbers are safe either way. Without the lock two attempts that start within the same milliseconds could leave
    the older one as owner.
    """
    fd = os.open(run.path / ".owner.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        deadline = time.monotonic() + LOCK_WAIT_S
        while time.monotonic() < deadline:
            try:
                fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except OSError as error:
                if error.errno not in (errno.EACCES, errno.EAGAIN):
                    break  # Lustre without -o flock, some NFS: ENOSYS, ENOLCK, …
            time.sleep(0.02)
        yield
    finally:
        os.close(fd)


def read_ownership(run: RunDir) -> Ownership | None:
    """The present owner, None before the first attempt.

    Raises: StorageError if the record is there but cannot be read: then nobody may commit.
    """
    try:
        record: Any = read_json(run.owner, limit=4096)
        return Ownership(int(record["attempt"]), str(record["token"]))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StorageError(f"{run.owner}: the owner record cannot be read ({error}); no attempt may commit") from error


def check_ownership(run: RunDir, token: str) -> None:
    """Raise Superseded unless `token` is still the owner's. Raises: StorageError as `read_ownership`."""
    owner = read_ownership(run)
    if owner is None or owner.token != token:
        who = "nobody" if owner is None else f"attempt {owner.attempt}"
        raise Superseded(f"{run.path}: {who} owns this run now; this attempt must not write to it any more")
