"""Whether the checkpoints that a run has committed are still where they were.

Apart from the checkpoint room, which knows one root and nothing of the run: a root that is empty because its file
system is not mounted, or was purged, looks like that of a run that has not saved yet. Standard library only.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path

from hpc_train.run.journal import Event
from hpc_train.run.layout import RunDir

__all__ = ["describe_gone"]

MAX_LOOKED_AT = 100  # of the newest commits: a program removes its old checkpoints, not the new ones


def describe_gone(run: RunDir, events: Sequence[Event]) -> str:
    """What is gone, where not one of the run's committed checkpoints is there any more; "" where one is, or none was.

    Args:  events: of the journal.
    """
    commits = [event.fields for event in events if event.event == "commit"]
    newest = [(each.get("step"), each["path"]) for each in reversed(commits) if isinstance(each.get("path"), str)]
    if not newest or any(_is_there(run, path) for _, path in newest[:MAX_LOOKED_AT]):
        return ""
    step, path = newest[0]
    place = f"{Path(run.path, path)} on {socket.gethostname()}"  # another host may see what this one does not
    return f"the checkpoints of this run are gone: of step {step} there is no {place}"


def _is_there(run: RunDir, path: str) -> bool:
    # The second: a run's directory may have been moved since.
    return any(_exists(place) for place in (Path(run.path, path), run.checkpoints / Path(path).name))


def _exists(place: Path) -> bool:
    try:
        os.lstat(place)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True  # nobody may look, which says nothing
    return True
