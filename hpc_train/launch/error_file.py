"""What a program under torch's `@record` wrote before it failed.

Apart because the file is the program's: it may be missing, torn, or anything else. It is the only word that a Python
program behind a shell script leaves; one that runs in the shim's process tells more through the page. Standard library
only.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from hpc_train.files import read_json
from hpc_train.launch.ending import Ending
from hpc_train.launch.failure import one_line

__all__ = ["with_recorded_error"]

MAX_BYTES = 1 << 20  # a long traceback


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
