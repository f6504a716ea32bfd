"""One training by a framework, as the run sees it: what all ranks agree on before, between and after its saves.

Apart because it is the same for every framework: their callbacks only translate hooks into these calls. Every method
is collective unless it says otherwise.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import hpc_train
from hpc_train.bootstrap.attachment import find_attachment
from hpc_train.bootstrap.solo import AttachedSoloWorld
from hpc_train.errors import CheckpointError, UsageError, from_os_error
from hpc_train.files import flush_file_system
from hpc_train.integrations.completion import (
    complete_checkpoints,
    mark_complete,
    refuse_of_another_run,
    unmark,
)
from hpc_train.launch.page import attached_page
from hpc_train.world import World, on_nodes, on_root

__all__ = ["Session", "find_world"]


def find_world(num_ranks: int, remedy: str) -> World:
    """The World of a framework's ranks: its own process group; without one this process alone.

    Not `hpc_train.init()`, which would start MPI where the site declares it: a framework's program needs none.

    Args:  num_ranks: that the framework trains on together.   remedy: its settings to look at if those are too few.
    Raises: UsageError if another number of ranks was started: each would train alone, over the others' files.
    """
    dist: Any = sys.modules.get("torch.distributed")
    has_group = dist is not None and dist.is_available() and dist.is_initialized()
    size = dist.get_world_size() if has_group else int(os.environ.get("WORLD_SIZE", "1"))
    if size != num_ranks:
        raise UsageError(f"{size} ranks were started, but the framework trains on {num_ranks} together: {remedy}")
    if size > 1 and has_group:
        from hpc_train.bootstrap.torch_world import TorchWorld

        return TorchWorld()
    return AttachedSoloWorld(find_attachment(0))


class Session:
    """Stop requests, progress and commits of one training.

    Args:  world: of all ranks.   directory: where the framework's checkpoints lie.   step: what it resumed from, 0 for
    a fresh start.   total_steps: where it ends, if known.
    Raises: UsageError for a fresh start beside complete checkpoints, or beside another run's; CheckpointError if ranks
    resumed from different ones.
    """

    def __init__(self, world: World, directory: Path, *, step: int, total_steps: int | None) -> None:
        self.world = world
        self._page = attached_page()
        self._stop = hpc_train.StopRequest(self.world)
        steps = self.world.allgather(step)
        if len(set(steps)) > 1:
            raise CheckpointError(f"ranks resumed from different checkpoints: steps {sorted(set(steps))}; start again")
        on_root(self.world, lambda: _begin_from(directory, step))
        if step:
            self.world.record("resumed", step=step)
        self._progress = hpc_train.Progress(self.world, total_steps=total_steps)

    def tell(self, step: int, loss: float | None = None) -> None:
        """Optimizer step `step` is done. Not collective."""
        self._progress.step(step, loss=loss)

    def alive(self) -> None:
        """Something other than a step is getting on, an evaluation say: the watchdog need not worry. Not collective."""
        if self._page is not None:
            self._page.beat()

    def must_stop(self) -> bool:
        """Whether a stop was requested; the same answer on all ranks."""
        return self._stop.agreed()

    def begin_save(self, checkpoint: Path) -> None:
        """Before the framework writes: this attempt still owns the run, and what it may write over is not complete."""

        def prepare() -> None:
            self.world.fence()
            unmark(checkpoint)

        on_root(self.world, prepare)

    def commit(self, checkpoint: Path, step: int) -> None:
        """After the framework has written on all ranks: flush, mark, and tell the journal.

        Raises: OSError, or our error for one, on all ranks alike; Superseded if another attempt owns the run.
        """
        began = time.monotonic()
        with self.world.phase("commit of a checkpoint"):

            def flush() -> None:
                try:
                    flush_file_system(checkpoint)
                except OSError as problem:
                    raise from_os_error(problem, f"cannot flush {checkpoint} on {self.world.node}") from problem

            on_nodes(self.world, flush)

            def finish() -> None:
                self.world.fence()
                size = mark_complete(checkpoint, step)
                seconds = round(time.monotonic() - began, 3)
                self.world.record("commit", step=step, path=str(checkpoint), bytes=size, seconds=seconds)

            on_root(self.world, finish)

    def leave(self, step: int) -> hpc_train.Stopped:
        """What to raise after the commit that a stop asked for. Not collective."""
        return hpc_train.Stopped(f"{self._stop.reason}, saved at step {step}")


def _begin_from(directory: Path, step: int) -> None:
    """Refuse to lose progress by oversight; take the marks of what lies after the step that was chosen."""
    complete = complete_checkpoints(directory)
    for _, path in complete:  # else their marks would be taken away below
        refuse_of_another_run(path)
    later = [(known, path) for known, path in complete if known > step]
    if later and not step:
        known, path = later[-1]
        raise UsageError(
            f"{path} is complete at step {known}, but this training starts from nothing: resume with "
            f"hpc_train.integrations.newest_checkpoint({str(directory)!r}), or use another directory"
        )
    for _, path in later:  # of a past that this training does not continue
        unmark(path)
