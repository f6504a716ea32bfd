"""What a program left in files before it ended: that it stopped on request, or what torch's `@record` wrote.

Apart because the files are the program's: they may be missing, torn, or anything else. They are the only words that a
Python program behind a shell script or torchrun leaves; one that runs in the shim's process tells more through the
page. Standard library only.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from hpc_train.files import read_json
from hpc_train.launch.ending import Ending
from hpc_train.launch.failure import one_line
from hpc_train.run.marks import CODE_OF_CLASS

__all__ = ["with_recorded_error", "with_recorded_stop"]

MAX_BYTES = 1 << 20  # a long traceback


def with_recorded_stop(ending: Ending, path: Path) -> Ending:
    """Stopped, where a process below the program ended by Stopped and what started it (torchrun) calls that a failure.

    Args:  path: what `StopRequest` wrote in that process.
    """
    text = _read(path) if ending.failure == "program" else ""
    return Ending("stopped", text, CODE_OF_CLASS["stopped"]) if text else ending


def with_recorded_error(ending: Ending, path: Path) -> Ending:
    """The ending with the recorded error in its cause, where the program failed by itself and wrote one."""
    text = _read(path) if ending.failure == "program" else ""
    return dataclasses.replace(ending, cause=f"{ending.cause}: {text}") if text else ending


def _read(path: Path) -> str:
    try:
        message: Any = read_json(path, limit=MAX_BYTES)["message"]
        # A text alone is what torch's own C++ side writes.
        return one_line(message if isinstance(message, str) else message["message"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""  # it adds to what is known; the code stands without it
