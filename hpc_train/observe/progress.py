"""Progress: one call a step that feeds the watchdog and the journal.

Apart because the proof that a resumed run saw the right samples must come from what was read, not from what was
planned: each rank hands in the digest of its part, and their sum over the ranks is journalled.
"""

from __future__ import annotations

import time

from hpc_train.launch.page import attached_page
from hpc_train.world import World

__all__ = ["DIGEST_MODULUS", "Progress"]

DIGEST_MODULUS = 1 << 63


class Progress:
    """Tells how far a run is.

    Args:  total_steps: where the run ends, if known; shown by `hpc-train status`.
    """

    def __init__(self, world: World, *, total_steps: int | None = None) -> None:
        self._world = world
        self._page = attached_page()
        self._since = time.monotonic()
        world.record("progress", total_steps=total_steps, num_ranks=world.size)

    def step(self, step: int, *, loss: float | None = None, digest: int | None = None, samples: int = 0) -> None:
        """Step `step` is done. Collective if `digest` is given (then by all ranks).

        Args:  step: counted from 1, the steps done so far.   loss: this rank's; only rank 0's is journalled, and read.
        digest: this rank's share of the global batch's digest (`ShardStream.batch_digest`).   samples: of the global
        batch, for samples/s.
        """
        if self._page is not None:
            self._page.beat(step)
        whole = None if digest is None else int(self._world.allreduce(digest)) % DIGEST_MODULUS
        now = time.monotonic()
        seconds, self._since = now - self._since, now
        if self._world.rank == 0:
            value = None if loss is None else float(loss)  # a tensor of one element too; on a GPU this waits for it
            self._world.record("step", step=step, loss=value, digest=whole, samples=samples, seconds=round(seconds, 4))
