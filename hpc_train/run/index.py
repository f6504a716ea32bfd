"""The index of a user's runs, and how a run is found again: by path, by name, or by job id.

Apart because runs lie wherever their run root was; the index under $XDG_STATE_HOME only helps to find them, losing it
loses nothing. Standard library only.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from hpc_train.errors import SpecError
from hpc_train.files import read_lines, readable_lines, slug, write_atomic
from hpc_train.run.jobs import read_jobs
from hpc_train.run.layout import RunDir, find_run_format

__all__ = ["IndexEntry", "add_to_index", "find_run", "index_path", "open_run", "read_index", "tidy_index"]

MAX_INDEX_BYTES = 32 << 20
MAX_ASKED_RUNS = 200  # whose records are read for a job id that the index does not have
LOCK_WAIT_S = 2.0
SHOWN_RUNS = 5
_RUN_NAME = re.compile(r"(.+)-\d{8}-\d{6}-[0-9a-f]{6}")  # a job's name, and when it was first submitted


class IndexEntry(NamedTuple):
    """One noted submission. site: where it went; "" in lines of earlier versions."""

    name: str
    path: Path
    job_id: str
    site: str = ""


def index_path(environ: Mapping[str, str]) -> Path | None:
    """$XDG_STATE_HOME/hpc-train/runs.jsonl, else below ~/.local/state; None where neither is an absolute path."""
    base = environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(base):
        home = environ.get("HOME", "")
        if not os.path.isabs(home):
            return None
        base = os.path.join(home, ".local", "state")
    return Path(base) / "hpc-train" / "runs.jsonl"


def add_to_index(environ: Mapping[str, str], run: RunDir, job_id: str, *, site: str = "") -> str | None:
    """Note a submission; returns a warning where the index cannot be written (a full or read-only home).

    Args:  site: two clusters can give the same job id to two runs.
    """
    path = index_path(environ)
    if path is None:
        return None
    line = json.dumps({"run": run.name, "run_dir": str(run.path), "job_id": job_id, "site": site}).encode() + b"\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _open_locked(path) as (fd, _):
            size = os.fstat(fd).st_size
            if size and os.pread(fd, 1, size - 1) != b"\n":
                line = b"\n" + line  # after half a line of a writer that was killed
            if os.write(fd, line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
            os.fsync(fd)
    except OSError as error:
        return f"the index of runs {path} cannot be written ({error.strerror}); find this run by its path"
    return None


@contextmanager
def _open_locked(path: Path) -> Iterator[tuple[int, bool]]:
    """The index open for appending, and whether it is locked: who tidies it puts another file in its place."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            is_locked = _lock(fd, time.monotonic() + LOCK_WAIT_S)
            if os.path.exists(path) and not os.path.samestat(os.fstat(fd), os.stat(path)):
                continue
            yield fd, is_locked
            return
        finally:
            os.close(fd)


def _lock(fd: int, deadline: float) -> bool:
    while True:
        try:
            fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except OSError as error:
            if error.errno not in (errno.EACCES, errno.EAGAIN) or time.monotonic() >= deadline:
                return False
        time.sleep(0.02)


def read_index(environ: Mapping[str, str]) -> list[IndexEntry]:
    """Every noted submission, oldest first; damaged lines are passed over."""
    path = index_path(environ)
    if path is None:
        return []
    try:
        lines = read_lines(path, limit=MAX_INDEX_BYTES)
    except (OSError, ValueError):
        return []
    return [entry for entry in map(_parse, lines) if entry is not None]


def _parse(line: str) -> IndexEntry | None:
    try:
        record = json.loads(line)
        path = Path(str(record["run_dir"]))
        return IndexEntry(str(record["run"]), path, str(record["job_id"]), str(record.get("site", "")))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def tidy_index(environ: Mapping[str, str]) -> int:
    """Drop the entries of runs that are gone; returns how many.

    An entry stays where the directory that held the run is gone as well: its file system may just not be mounted here.
    """
    path = index_path(environ)
    if path is None or not path.exists():
        return 0
    try:
        with _open_locked(path) as (fd, is_locked):
            if not is_locked or os.fstat(fd).st_size > MAX_INDEX_BYTES:
                return 0
            # by this descriptor: closing another one of the file would give the lock away (fcntl(2))
            data = os.pread(fd, MAX_INDEX_BYTES, 0)
            known = [(line, entry) for line in readable_lines(data) if (entry := _parse(line)) is not None]
            kept = [line for line, entry in known if not _is_gone(entry.path)]
            if len(kept) < len(data.splitlines()):
                write_atomic(path, "".join(f"{line}\n" for line in kept), mode=0o600)
            return len(known) - len(kept)
    except (OSError, ValueError):
        return 0


def _is_gone(path: Path) -> bool:
    return not os.path.lexists(path) and path.parent.is_dir()


def open_run(path: Path) -> RunDir:
    """The run in a directory. Raises: SpecError if it holds none, or one of another format version."""
    reason = find_run_format(path)
    if reason is not None:
        raise SpecError(reason)
    return RunDir(Path(os.path.abspath(path)))


def find_run(reference: str, environ: Mapping[str, str]) -> RunDir:
    """The run that a user means: a directory, a run's name (or its beginning, if only one fits), or a job id.

    The whole name of a job goes before a beginning: `gpt` is not meant to be a run of `gpt-large`.
    A job id can be that of any submission of the run; SITE:JOB tells apart what two clusters numbered alike. A run that
    was moved is found by its path.
    Raises: SpecError if nothing or more than one thing fits.
    """
    if not reference:  # every name begins with "": an unset shell variable would mean the only run there is
        raise SpecError("no run given: name its directory, its name, or its job id")
    if os.path.exists(os.path.join(reference, "run.json")):
        return open_run(Path(reference))
    entries = read_index(environ)
    tests: list[Callable[[IndexEntry], bool]] = [
        lambda entry: reference in (entry.name, entry.job_id, f"{entry.site}:{entry.job_id}"),
        lambda entry: (match := _RUN_NAME.fullmatch(entry.name)) is not None and match[1] == slug(reference),
        lambda entry: entry.name.startswith(reference),
    ]
    for fits in tests:
        found = [entry for entry in entries if fits(entry) and os.path.isdir(entry.path)]
        if paths := list(dict.fromkeys(entry.path for entry in found)):
            if len(paths) == 1:
                return open_run(paths[0])
            raise SpecError(_ambiguous(reference, found))
    if os.sep in reference:
        return open_run(Path(reference))
    known = _ask_runs(reference, entries)
    if known is not None:
        return known
    raise SpecError(
        f"no run {reference!r}: give its directory, its name, or its job id (hpc-train status lists the runs)"
    )


def _ambiguous(reference: str, found: Sequence[IndexEntry]) -> str:
    newest = {entry.path: entry for entry in found}.values()
    if all(entry.job_id == reference for entry in newest) and len({entry.site for entry in newest}) == len(newest):
        names, remedy = [f"{entry.site}:{reference}" for entry in newest], "write one of these"
    elif len({entry.name for entry in newest}) == len(newest):
        names, remedy = sorted(entry.name for entry in newest), "give more of the name, or the path"
    else:
        names, remedy = sorted(str(entry.path) for entry in newest), "give the path"
    listed = ", ".join(names[:SHOWN_RUNS]) + (", …" if len(names) > SHOWN_RUNS else "")
    return f"{reference!r} fits {len(names)} runs ({listed}); {remedy}"


def _ask_runs(job_id: str, entries: Iterable[IndexEntry]) -> RunDir | None:
    """The run whose own records have the job id: a job that a node submitted is in no index."""
    paths = list(dict.fromkeys(entry.path for entry in reversed(list(entries))))[:MAX_ASKED_RUNS]
    for path in paths if job_id.isdecimal() else ():
        run = RunDir(path)
        if find_run_format(path) is None and any(job.job_id == job_id for job in read_jobs(run)):
            return run
    return None
