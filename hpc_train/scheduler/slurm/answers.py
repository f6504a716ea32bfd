"""What Slurm last answered, shared by all commands of a user on one login node.

Apart because a controller serves thousands: fifty `status` at once must be one squeue. The file only saves questions:
one that is damaged, foreign or cannot be written means that Slurm is asked, and a job that the shared answer does not
list is asked for anew, so that an old answer never makes a young job "unknown".
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import shutil
import socket
import stat
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import astuple, dataclass, field
from pathlib import Path
from typing import Any

from hpc_train.errors import SchedulerError
from hpc_train.files import write_json
from hpc_train.scheduler.backend import STATES, JobState

__all__ = ["SharedAnswers", "answers_path"]

LOCK_WAIT_S = 35.0  # longer than a query may take: who waits gets its answer
FORGET_WAIT_S = 2.0
ACCOUNT_AGE_S = 60.0  # a job that squeue no longer lists has ended: its record hardly changes
MAX_FILE_BYTES = 32 << 20
_FORMAT, _VERSION = "hpc-train-queue", 1

Ask = Callable[[], Mapping[str, JobState]]
AskAccounts = Callable[[Sequence[str]], Mapping[str, JobState]]


def answers_path(environ: Mapping[str, str]) -> Path | None:
    """The file below $XDG_CACHE_HOME, else ~/.cache; None where neither is an absolute path.

    A name of its own for each host and configuration: login nodes of two clusters may share a home, and job ids.
    """
    base = environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):
        home = environ.get("HOME", "")
        if not os.path.isabs(home):
            return None
        base = os.path.join(home, ".cache")
    told = (socket.gethostname(), environ.get("SLURM_CONF", ""), shutil.which("squeue", path=environ.get("PATH")) or "")
    key = hashlib.sha256("\0".join(told).encode(errors="surrogateescape")).hexdigest()[:12]
    return Path(base) / "hpc-train" / f"slurm-{key}.json"


@dataclass(frozen=True)
class _Answers:
    """Queue: the user's jobs that squeue listed at `asked`. error: its words where it did not answer. accounts: what
    sacct said of jobs that squeue did not list, each with its time."""

    asked: float = 0.0
    queue: Mapping[str, JobState] = field(default_factory=dict)
    error: str = ""
    accounts: Mapping[str, tuple[float, JobState]] = field(default_factory=dict)

    def find(self, job_id: str, max_age_s: float) -> JobState | None:
        if _is_young(self.asked, max_age_s) and job_id in self.queue:
            return self.queue[job_id]
        asked, state = self.accounts.get(job_id, (0.0, None))
        # Only beside a young listing: a job that ended can have been requeued since.
        return state if _is_young(self.asked, max_age_s) and _is_young(asked, ACCOUNT_AGE_S) else None


class SharedAnswers:
    """The answers in one file. Any number of processes may use it at once.

    Args:  path: None for a user who has no place for it: then each question is asked.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def states(
        self, job_ids: Sequence[str], max_age_s: float, ask: Ask, ask_accounts: AskAccounts
    ) -> dict[str, JobState]:
        """States of the jobs, from answers no older than `max_age_s` if there are any, else from Slurm.

        Args:  ask: gives all jobs of the user in the queue.   ask_accounts: gives those that have left it.
        Raises: SchedulerError as `ask` does, and again while that error is young: a dead controller is asked once.
        """
        found = _pick(self._read(), job_ids, max_age_s)
        if found is not None:
            return found
        with self._lock(LOCK_WAIT_S):
            known = self._read()  # somebody may have asked while we waited
            found = _pick(known, job_ids, max_age_s)
            if found is not None:
                return found
            asked = time.time()  # before the question: what happens meanwhile may be missing in the answer
            try:
                queue = dict(ask())
            except SchedulerError as error:
                if error.transient:
                    self._write(_Answers(asked, {}, str(error), known.accounts))
                raise
            missing = [job_id for job_id in job_ids if job_id not in queue]
            accounts = {key: value for key, value in known.accounts.items() if _is_young(value[0], ACCOUNT_AGE_S)}
            unknown = [job_id for job_id in missing if job_id not in accounts]
            if unknown:
                told = ask_accounts(unknown)
                accounts |= {job_id: (asked, told.get(job_id, JobState("unknown"))) for job_id in unknown}
            self._write(_Answers(asked, queue, "", accounts))
            return {job_id: queue[job_id] if job_id in queue else accounts[job_id][1] for job_id in job_ids}

    def note(self, asked: float, queue: Mapping[str, JobState]) -> None:
        """Keep what was asked for by who needed an answer of now: whoever looks next sees nothing older.

        Args:  asked: when, before the question.
        """
        known = self._read()
        if asked > known.asked:
            self._write(_Answers(asked, queue, "", known.accounts))

    def forget(self) -> None:
        """Drop what is known, after something that changed it; a question under way is waited for."""
        if self._path is not None and self._path.exists():
            with self._lock(FORGET_WAIT_S), suppress(OSError):
                self._path.unlink()

    def _read(self) -> _Answers:
        if self._path is None:
            return _Answers()
        try:
            return _parse(_read_own(self._path))
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return _Answers()

    def _write(self, answers: _Answers) -> None:
        record = {
            "format": _FORMAT,
            "version": _VERSION,
            "asked": answers.asked,
            "error": answers.error,
            "queue": {key: astuple(state)[:4] for key, state in answers.queue.items()},
            "accounts": {key: [asked, *astuple(state)[:4]] for key, (asked, state) in answers.accounts.items()},
        }
        if self._path is not None:
            with suppress(OSError, ValueError):
                self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                if _is_own_directory(self._path.parent):
                    write_json(self._path, record, mode=0o600, durable=False)

    @contextmanager
    def _lock(self, wait_s: float) -> Iterator[None]:
        """One question at a time; without a lock where there can be none, or where its holder does not end."""
        fd = -1
        try:
            if self._path is not None:
                with suppress(OSError):
                    self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
                    fd = os.open(self._path.with_suffix(".lock"), flags, 0o600)
                    _wait_for_lock(fd, time.monotonic() + wait_s)
            yield
        finally:
            if fd >= 0:
                os.close(fd)


def _pick(answers: _Answers, job_ids: Sequence[str], max_age_s: float) -> dict[str, JobState] | None:
    """The states, if the answers have them all. Raises: SchedulerError where the last question failed a moment ago."""
    if answers.error and _is_young(answers.asked, max_age_s):
        raise SchedulerError(answers.error, transient=True)
    found = {job_id: state for job_id in job_ids if (state := answers.find(job_id, max_age_s)) is not None}
    return found if len(found) == len(set(job_ids)) else None


def _is_young(moment: float, max_age_s: float) -> bool:
    return -1.0 <= time.time() - moment <= max_age_s  # a moment in the future is a clock that was set back


def _wait_for_lock(fd: int, deadline: float) -> None:
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EAGAIN) or time.monotonic() >= deadline:
                return
        time.sleep(0.05)


def _is_own_directory(path: Path) -> bool:
    status = os.stat(path)
    return status.st_uid == os.geteuid() and not status.st_mode & 0o022


def _read_own(path: Path) -> Any:
    """JSON of a plain file of this user that nobody else can write. Raises: OSError, ValueError."""
    with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        status = os.fstat(file.fileno())
        is_own = stat.S_ISREG(status.st_mode) and status.st_uid == os.geteuid() and not status.st_mode & 0o022
        if not is_own or status.st_size > MAX_FILE_BYTES:
            raise ValueError(f"{path}: not a file of ours")
        return json.loads(file.read(MAX_FILE_BYTES))


def _parse(record: Any) -> _Answers:
    """Raises: ValueError, KeyError, TypeError for anything that is not such a record."""
    if record["format"] != _FORMAT or record["version"] != _VERSION:
        raise ValueError("another format")
    queue = {str(key): _state(value) for key, value in record["queue"].items()}
    accounts = {str(key): (float(value[0]), _state(value[1:])) for key, value in record["accounts"].items()}
    return _Answers(float(record["asked"]), queue, str(record["error"]), accounts)


def _state(value: Sequence[Any]) -> JobState:
    state, raw, reason, nodes = value
    if state not in STATES or not all(isinstance(text, str) for text in value):
        raise ValueError("not the state of a job")
    return JobState(state, raw, reason, nodes)
