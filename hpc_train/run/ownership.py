"""Who owns a run: the token that fences off an attempt that should be dead but is not.

Apart because three places need the same rule: the start of an attempt takes the token, the checkpoint's commit re-reads
it, the decision checks it. A node that was cut off goes on computing while the next attempt runs elsewhere; the token
keeps it from committing. Standard library only.
"""

from __future__ import annotations

import os
import secrets
import socket
from dataclasses import dataclass
from typing import Any

from hpc_train.errors import StorageError, Superseded
from hpc_train.files import fsync_dir, read_json, write_json
from hpc_train.run.layout import RunDir

__all__ = ["Ownership", "check_ownership", "read_ownership", "take_ownership"]


@dataclass(frozen=True)
class Ownership:
    """The attempt that may write to the run, and its token."""

    attempt: int
    token: str


def take_ownership(run: RunDir) -> Ownership:
    """Make the next attempt's directory (an atomic mkdir gives its number) and own the run from then on.

    Raises: OSError as the system gives it.
    """
    number = max((attempt.number for attempt in run.attempts()), default=-1) + 1
    while True:
        try:
            os.mkdir(run.attempt(number).path)
            break
        except FileExistsError:
            number += 1
    attempt = run.attempt(number)
    for directory in (attempt.exits, attempt.ready, attempt.finished, attempt.logs):
        directory.mkdir()
    fsync_dir(run.path)
    ownership = Ownership(number, secrets.token_hex(8))
    write_json(run.owner, {"attempt": number, "token": ownership.token, "node": socket.gethostname()})
    return ownership


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
    """Raise Superseded unless `token` is still the owner's."""
    owner = read_ownership(run)
    if owner is None or owner.token != token:
        who = "nobody" if owner is None else f"attempt {owner.attempt}"
        raise Superseded(f"{run.path}: {who} owns this run now; this attempt must not write to it any more")
