"""The index of a user's runs, and how a run is found again: by path, by name, or by job id.

Apart because runs lie wherever their run root was; the index under $XDG_STATE_HOME only helps to find them, losing it
loses nothing. Standard library only.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from hpc_train.errors import SpecError
from hpc_train.files import append_line, read_text
from hpc_train.run.layout import RunDir, find_run_format

__all__ = ["add_to_index", "find_run", "index_path", "open_run", "read_index"]

MAX_INDEX_BYTES = 32 << 20


def index_path(environ: Mapping[str, str]) -> Path | None:
    """$XDG_STATE_HOME/hpc-train/runs.jsonl, else below ~/.local/state; None where neither is an absolute path."""
    base = environ.get("XDG_STATE_HOME", "")
    if not os.path.isabs(base):
        home = environ.get("HOME", "")
        if not os.path.isabs(home):
            return None
        base = os.path.join(home, ".local", "state")
    return Path(base) / "hpc-train" / "runs.jsonl"


def add_to_index(environ: Mapping[str, str], run: RunDir, job_id: str) -> str | None:
    """Note a submission; returns a warning where the index cannot be written (a full or read-only home)."""
    path = index_path(environ)
    if path is None:
        return None
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        append_line(path, json.dumps({"run": run.name, "run_dir": str(run.path), "job_id": job_id}))
    except OSError as error:
        return f"the index of runs {path} cannot be written ({error.strerror}); find this run by its path"
    return None


def read_index(environ: Mapping[str, str]) -> list[tuple[str, Path, str]]:
    """(run name, run directory, job id) of every noted submission, oldest first; damaged lines are passed over."""
    path = index_path(environ)
    entries: list[tuple[str, Path, str]] = []
    if path is None:
        return entries
    try:
        lines = read_text(path, limit=MAX_INDEX_BYTES).splitlines()
    except (OSError, ValueError):
        return entries
    for line in lines:
        try:
            record = json.loads(line)
            entries.append((str(record["run"]), Path(str(record["run_dir"])), str(record["job_id"])))
        except (ValueError, KeyError, TypeError):
            continue
    return entries


def open_run(path: Path) -> RunDir:
    """The run in a directory. Raises: SpecError if it holds none, or one of another format version."""
    reason = find_run_format(path)
    if reason is not None:
        raise SpecError(reason)
    return RunDir(Path(os.path.abspath(path)))


def find_run(reference: str, environ: Mapping[str, str]) -> RunDir:
    """The run that a user means: a directory, a run's name (or its beginning, if only one fits), or a job id.

    Raises: SpecError if nothing or more than one thing fits.
    """
    if not reference:  # every name begins with "": an unset shell variable would mean the only run there is
        raise SpecError("no run given: name its directory, its name, or its job id")
    if os.path.exists(os.path.join(reference, "run.json")):
        return open_run(Path(reference))
    entries = read_index(environ)
    exact = _directories(path for name, path, job_id in entries if reference in (name, job_id))
    found = exact or _directories(path for name, path, _ in entries if name.startswith(reference))
    if len(found) == 1:
        return open_run(found[0])
    if found:
        names = ", ".join(path.name for path in found[:5]) + (", …" if len(found) > 5 else "")
        raise SpecError(f"{reference!r} fits {len(found)} runs ({names}); give more of the name, or the path")
    if os.sep in reference:
        return open_run(Path(reference))
    raise SpecError(
        f"no run {reference!r}: give its directory, its name, or its job id (hpc-train status lists the runs)"
    )


def _directories(paths: Iterable[Path]) -> list[Path]:
    return [path for path in sorted(set(paths)) if os.path.isdir(path)]
