"""Names inside a checkpoint root, recognised exactly.

Apart because discovery, retention and reaping must agree on what is ours: a name that only resembles one of these
(`step-100.backup`, `step-1e3`) is never loaded, and never deleted. Standard library only.
"""

from __future__ import annotations

import re
import secrets

__all__ = [
    "COMMIT_NAME",
    "INDEX_NAME",
    "LATEST_FORMAT",
    "LATEST_NAME",
    "MAX_STEP",
    "OWNER_FORMAT",
    "OWNER_NAME",
    "aside_name",
    "data_name",
    "in_progress_name",
    "parse_aside",
    "parse_in_progress",
    "parse_step",
    "step_name",
]

COMMIT_NAME = "COMMIT"
INDEX_NAME = "index.json"
LATEST_NAME = "LATEST"
LATEST_FORMAT = "hpc-train latest checkpoint"
OWNER_NAME = "owner.json"
OWNER_FORMAT = "hpc-train checkpoint root"
MAX_STEP = 10**15

_STEP = re.compile(r"step-([0-9]{9,16})")
_IN_PROGRESS = re.compile(r"\.(step-[0-9]{9,16})\.inprogress-[0-9a-f]{8}")
_ASIDE = re.compile(r"\.(deleting|replaced|abandoned)-(step-[0-9]{9,16}|dead)-[0-9a-f]{8}")


def step_name(step: int) -> str:
    """Directory of a committed step: `step-000001200`."""
    return f"step-{step:09d}"


def parse_step(name: str) -> int | None:
    """Step of an exact committed name; None for anything else, also for the same number written otherwise."""
    match = _STEP.fullmatch(name)
    if match is None:
        return None
    step = int(match[1])
    return step if step_name(step) == name and step <= MAX_STEP else None


def in_progress_name(step: int) -> str:
    """A fresh name for a save that is not committed yet."""
    return f".{step_name(step)}.inprogress-{secrets.token_hex(4)}"


def parse_in_progress(name: str) -> int | None:
    """Step of an exact in-progress name, else None."""
    match = _IN_PROGRESS.fullmatch(name)
    return parse_step(match[1]) if match else None


def aside_name(why: str, step: int | None) -> str:
    """A fresh name for a directory taken out of sight. `why`: "deleting", "replaced" or "abandoned"."""
    return f".{why}-{'dead' if step is None else step_name(step)}-{secrets.token_hex(4)}"


def parse_aside(name: str) -> tuple[str, int | None] | None:
    """(why, step) of an exact name made by `aside_name`, else None."""
    match = _ASIDE.fullmatch(name)
    if match is None:
        return None
    return (match[1], None) if match[2] == "dead" else (match[1], parse_step(match[2]))


def data_name(ordinal: int) -> str:
    """File name of a data file; the index and COMMIT know files by this ordinal only."""
    return f"data-{ordinal:05d}.safetensors"
