"""Whether a run's directory is a copy of another run's: its records then name that one's job.

Apart from the index, which knows runs by the names that their users gave them. Standard library only.
"""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path

from hpc_train.files import read_json, read_text
from hpc_train.run.layout import RunDir

__all__ = ["original_of"]

_OF_SCRIPT = re.compile(r"^hpc_train_run=(.*)$", re.MULTILINE)


def original_of(run: RunDir) -> Path | None:
    """The run whose directory this one was copied from, None where it is none, was moved, or has a job of its own."""
    submitted = [each for each in run.submissions() if each.submit.exists()]
    try:
        found = _OF_SCRIPT.search(read_text(submitted[-1].script)) if submitted else None
        (place,) = shlex.split(found[1]) if found else [str(run.path)]
        if os.path.samefile(place, run.path) or read_json(RunDir(Path(place)).record) != read_json(run.record):
            return None
    except (OSError, ValueError):  # nothing is there any more: it was moved
        return None
    return Path(place)
