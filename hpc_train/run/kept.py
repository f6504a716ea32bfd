"""Whether the checkpoints that a run has committed are still where they were.

Apart from the checkpoint room, which knows one root and nothing of the run: a root that is empty because its file
system is not mounted, or was purged, looks like that of a run that has not saved yet. Standard library only.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import socket
from collections.abc import Sequence
from pathlib import Path

from hpc_train.run.journal import Event
from hpc_train.run.layout import RunDir

__all__ = ["describe_gone", "describe_lost", "warn_of_loss"]

MAX_LOOKED_AT = 100  # of the newest commits: a program removes its old checkpoints, not the new ones


def describe_gone(run: RunDir, events: Sequence[Event]) -> str:
    """What is gone, where not one of the run's committed checkpoints is there any more; "" where one is, or none was.

    Args:  events: of the journal.
    """
    newest = _newest_first(events)
    if not newest or any(_is_there(run, path) for _, path in newest) or _has_newer(run, *newest[0]):
        return ""
    return f"the checkpoints of this run are gone: {_none_of(run, *newest[0])}"


def describe_lost(run: RunDir, events: Sequence[Event]) -> str:
    """What is gone, where it is not the newest committed checkpoint that is left but an older one; else "".

    A program removes its old ones, and never the newest.
    """
    newest = _newest_first(events)
    left = next((index for index, (_, path) in enumerate(newest) if _is_there(run, path)), 0)
    if not left or _has_newer(run, *newest[0]):
        return ""
    return (
        f"the newest checkpoint is gone: {_none_of(run, *newest[0])}; the newest that is left is of step "
        f"{newest[left][0]}"
    )


def warn_of_loss(run: RunDir, events: Sequence[Event]) -> str:
    """What a person who lets the run go on must know of checkpoints that are gone; "" where the newest is there."""
    if gone := describe_gone(run, events):
        return f"{gone}; without them it begins anew"
    lost = describe_lost(run, events)
    return f"{lost}, from which it goes on" if lost else ""


def _newest_first(events: Sequence[Event]) -> list[tuple[object, str]]:
    """Step and path of the last commits, each place once: a step may have been saved again."""
    commits = (event.fields for event in reversed(events) if event.event == "commit")
    places = ((each.get("step"), each["path"]) for each in commits if isinstance(each.get("path"), str))
    found: dict[str, object] = {}
    for step, path in itertools.islice(places, MAX_LOOKED_AT):
        found.setdefault(path, step)
    return [(step, path) for path, step in found.items()]


def _none_of(run: RunDir, step: object, path: str) -> str:
    # Another host may see what this one does not.
    return f"of step {step} there is no {Path(run.path, path)} on {socket.gethostname()}"


def _has_newer(run: RunDir, step: object, path: str) -> bool:
    """Whether a checkpoint of that kind of name lies there that is newer than the journal's newest.

    Who is ended between the rename that commits, and removes the one before, and the line in the journal leaves that.
    """
    kind = re.compile("[0-9]+".join(map(re.escape, re.split("[0-9]+", Path(path).name))))
    names: list[str] = []
    for place in _places(run, path):
        with contextlib.suppress(OSError):
            names += os.listdir(place.parent)
    numbers = (re.findall("[0-9]{1,18}", name) for name in names if kind.fullmatch(name))
    steps = [int(found[-1]) for found in numbers if found]
    return isinstance(step, int) and max(steps, default=-1) > step


def _is_there(run: RunDir, path: str) -> bool:
    return any(_exists(place) for place in _places(run, path))


def _places(run: RunDir, path: str) -> tuple[Path, Path]:
    """Where a committed checkpoint may lie. The second: a run's directory may have been moved since."""
    return Path(run.path, path), run.checkpoints / Path(path).name


def _exists(place: Path) -> bool:
    try:
        os.lstat(place)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True  # nobody may look, which says nothing
    return True
