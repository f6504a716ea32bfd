"""Progress: one call a step that feeds the watchdog and the journal.

Apart because the proof that a resumed run saw the right samples must come from what was read, not from what was
planned: each rank hands in the digest of its part, and their sum over the ranks is journalled.
"""

from __future__ import annotations

import operator
import time
from typing import Any, SupportsFloat, SupportsIndex

from hpc_train.errors import UsageError
from hpc_train.launch.page import attached_page
from hpc_train.world import World

__all__ = ["DIGEST_MODULUS", "MAX_COUNT", "Progress", "whole_number"]

DIGEST_MODULUS = 1 << 63
MAX_COUNT = (1 << 63) - 1


class Progress:
    """Tells how far a run is.

    Args:  total_steps: where the run ends, if known; shown by `hpc-train status`. Whole numbers of any type will do,
    NumPy's and torch's too.
    Raises: UsageError for another number.
    """

    def __init__(self, world: World, *, total_steps: SupportsIndex | None = None) -> None:
        total = None if total_steps is None else whole_number(total_steps, "Progress: total_steps")
        self._world = world
        self._page = attached_page()
        self._since = time.monotonic()
        world.record("progress", total_steps=total, num_ranks=world.size)

    def step(
        self,
        step: SupportsIndex,
        *,
        loss: SupportsFloat | None = None,
        digest: SupportsIndex | None = None,
        samples: SupportsIndex = 0,
    ) -> None:
        """Step `step` is done. Collective if `digest` is given (then by all ranks).

        Args:  step: counted from 1, the steps done so far.   loss: this rank's; only rank 0's is journalled, and read.
        digest: this rank's share of the global batch's digest (`ShardStream.batch_digest`).   samples: of the global
        batch, for samples/s.
        Raises: UsageError for a step that is no whole number from 0 to 2**63 - 1; nothing is written then.
        """
        number = whole_number(step, "Progress.step: step")
        if self._page is not None:
            self._page.beat(number)
        whole = None if digest is None else int(self._world.allreduce(operator.index(digest))) % DIGEST_MODULUS
        now = time.monotonic()
        seconds, self._since = now - self._since, now
        if self._world.rank == 0:
            value = None if loss is None else _plain_loss(loss)
            took = round(seconds, 4)
            self._world.record("step", step=number, loss=value, digest=whole, samples=samples, seconds=took)


def _plain_loss(loss: Any) -> float:
    """A number or a tensor of one element, on a GPU too, which this waits for."""
    return float(loss.detach() if hasattr(loss, "detach") else loss)  # torch warns of one that still has its gradient


def whole_number(value: object, what: str) -> int:
    """The value as a plain int. Raises: UsageError, naming `what`, for anything else than 0 to 2**63 - 1."""
    try:
        number = -1 if isinstance(value, bool) else operator.index(value)  # type: ignore[arg-type]  # may be anything
    except Exception:  # noqa: BLE001 - a tensor's own error for several elements, or for a float
        number = -1
    if not 0 <= number <= MAX_COUNT:
        text = " ".join(repr(value).split())
        raise UsageError(f"{what} = {text[:100]}; allowed: a whole number from 0 to {MAX_COUNT}")
    return number
