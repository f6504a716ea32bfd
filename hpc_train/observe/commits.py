"""commit: tells the run of a checkpoint that the program wrote by its own means.

Apart from the checkpoint room, which writes its own format: here nothing is known of the files but where they lie.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import SupportsIndex

from hpc_train.errors import UsageError, from_os_error
from hpc_train.files import flush_file_system
from hpc_train.observe.progress import whole_number
from hpc_train.world import World, on_nodes, on_root

__all__ = ["commit"]


def commit(world: World, step: SupportsIndex, path: str | Path) -> None:
    """A checkpoint of `step` lies at `path`, written by the program itself. Collective; blocks until all have come.

    Call it on all ranks after each has closed its files. What they wrote is flushed on every node, then the journal
    gets the commit: `status` and `why` show it, and a run whose commits move on is not held for its failures. Outside
    a run the arguments are checked, and nothing is written.

    Args:  step: done so far, counted over all attempts: one that counts from 0 again makes no progress.   path: rank
    0's counts: a file or a directory, in place under its final name.
    Raises: the same error on all ranks: UsageError if the steps differ or `path` does not exist on rank 0's node; a
    NoSpaceError or StorageError if a node cannot flush it; Superseded if another attempt owns the run.
    """
    steps = world.allgather(_number_or_text(step))
    number = steps[0]
    if not isinstance(number, int) or any(each != number for each in steps):
        given = " and ".join(sorted(set(map(str, steps))))
        raise UsageError(f"commit: step = {given[:200]}; allowed: an int of 0 or more, the same on all ranks")
    place = on_root(world, lambda: _place_of(world, number, path))
    if world.run_dir is None:
        return
    with world.phase("commit of a checkpoint"):
        on_nodes(world, lambda: _flush(place, world.node))
        on_root(world, lambda: _tell(world, number, place))


def _number_or_text(step: object) -> int | str:
    """The step; what was given where it is none, so that all ranks hear of it."""
    try:
        return whole_number(step, "step")
    except UsageError:
        return " ".join(repr(step).split())[:100]


def _place_of(world: World, step: int, path: str | Path) -> Path:
    place = Path(path).absolute()
    if not place.exists():
        raise UsageError(
            f"commit(step={step}): {place} does not exist on {world.node}: write the checkpoint under its final name, "
            "then call commit, with its path on rank 0"
        )
    return place


def _flush(place: Path, node: str) -> None:
    try:
        try:
            flush_file_system(place)
        except FileNotFoundError:  # not every node has to see it at once: NFS remembers for a while what was not there
            flush_file_system(place.parent)
    except OSError as error:
        raise from_os_error(error, f"cannot flush {place} on {node}") from error


def _tell(world: World, step: int, place: Path) -> None:
    """Rank 0 only. Relative where the run's directory holds it: that can be moved."""
    world.fence()
    with contextlib.suppress(ValueError):
        assert world.run_dir is not None
        place = place.resolve().relative_to(world.run_dir.resolve())
    world.record("commit", step=step, path=str(place))
