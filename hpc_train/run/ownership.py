"""Who owns a run: the token that fences off an attempt that should be dead but is not.

Apart because several places need the same rule: the start of an attempt takes the token, the checkpoint's commit
re-reads it, the monitors look at it, and a cancel takes it away. A node that was cut off goes on computing while the
next attempt runs elsewhere; the token keeps it from committing. Standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import shutil
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from hpc_train.errors import StorageError, Superseded
from hpc_train.files import fsync_dir, read_json, write_json
from hpc_train.run.layout import RunDir

__all__ = [
    "Ownership",
    "check_ownership",
    "check_submission",
    "read_ownership",
    "revoke_ownership",
    "take_ownership",
]

LOCK_WAIT_S = 10.0


@dataclass(frozen=True)
class Ownership:
    """The attempt that may write to the run, and its token.

    Attributes:  is_cancelled: the run was cancelled, and nobody may write to it.
    """

    attempt: int
    token: str
    is_cancelled: bool = False


def take_ownership(run: RunDir, submission: int | None = None) -> Ownership:
    """Make the next attempt's directory (an atomic mkdir gives its number) and own the run from then on.

    Of several that race, each gets a number of its own, and the highest number owns the run.

    Args:  submission: the one whose job asks; it must be the newest still.
    Raises: Superseded if a newer submission or a cancel has come in between; OSError as the system gives it.
    """
    with _one_at_a_time(run):
        if submission is not None:
            check_submission(run, submission)  # again, where no other can come in between
            if run.cancelled.exists():  # before `revoke_ownership`, or that comes after this and takes it away again
                raise Superseded(f"{run.path}: the run was cancelled")
        number = max((attempt.number for attempt in run.attempts()), default=-1) + 1
        while True:
            try:
                os.mkdir(run.attempt(number).path)
                break
            except FileExistsError:
                number += 1
        attempt = run.attempt(number)
        ownership = Ownership(number, secrets.token_hex(8))
        try:
            for directory in (attempt.exits, attempt.ready, attempt.finished, attempt.waiting, attempt.logs):
                directory.mkdir()
            fsync_dir(run.path)
            if run.attempts()[-1].number == number:  # else a later attempt has come already, and owns the run
                write_json(run.owner, {"attempt": number, "token": ownership.token, "node": socket.gethostname()})
        except OSError:  # a full disk: an attempt that never was must not count as one that failed
            shutil.rmtree(attempt.path, ignore_errors=True)
            raise
    return ownership


def revoke_ownership(run: RunDir) -> None:
    """Take a cancelled run, which bears its mark already, away from its attempt; without effect before the first.

    A host that the scheduler does not reach goes on computing after a cancel: it commits nothing more, and its monitors
    end it. The next attempt owns the run as ever. Raises: OSError; then the attempt may still own the run.
    """
    with _one_at_a_time(run):
        attempts = run.attempts()
        if not attempts:
            return
        record = {"attempt": attempts[-1].number, "token": secrets.token_hex(8), "cancelled": True}
        try:
            write_json(run.owner, {**record, "node": socket.gethostname()})
        except OSError:
            run.owner.unlink(missing_ok=True)  # for that a full disk has room, and nobody may commit then either
            fsync_dir(run.path)


def check_submission(run: RunDir, submission: int) -> None:
    """Raise Superseded if the run has a newer whole submission: the jobs of older ones must start nothing any more."""
    newest = run.newest_submission()
    if newest is not None and newest.number > submission:
        raise Superseded(
            f"{run.path}: this job is of submission {submission}, and submission {newest.number} goes on with the run"
        )


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
        return Ownership(int(record["attempt"]), str(record["token"]), record.get("cancelled") is True)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise StorageError(f"{run.owner}: the owner record cannot be read ({error}); no attempt may commit") from error


def check_ownership(run: RunDir, token: str) -> None:
    """Raise Superseded unless `token` is still the owner's. Raises: StorageError as `read_ownership`."""
    owner = read_ownership(run)
    if owner is not None and owner.is_cancelled:
        raise Superseded(f"{run.path}: the run was cancelled; this attempt must not write to it any more")
    if owner is None or owner.token != token:
        who = "nobody" if owner is None else f"attempt {owner.attempt}"
        raise Superseded(f"{run.path}: {who} owns this run now; this attempt must not write to it any more")
