"""What becomes of state that each rank had for itself where another number of ranks goes on. Pure.

Apart from the loading because it is a rule, not a step: ranks below the saved number go on with their own state, ranks
above it begin anew, from a seed that no rank has had before. Only objects that say so (`load_resized`) are treated so:
of anything else, a loader's buffer, say, leaving ranks out would lose samples without a word.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Any

from hpc_train.checkpoint.reader import OpenCheckpoint
from hpc_train.errors import CheckpointError

__all__ = ["ON_RESIZE", "Resize", "check_resizable", "fresh_seed", "plan_resize"]

ON_RESIZE = ("reseed", "refuse", "skip")


@dataclass(frozen=True)
class Resize:
    """A checkpoint of `saved` ranks that goes on with `size`; `seed` is this rank's, if it has to begin anew."""

    saved: int
    size: int
    seed: int

    @property
    def saved_by(self) -> str:
        """Who saved, in words."""
        return f"{self.saved} rank{'s' * (self.saved != 1)}"


def plan_resize(checkpoint: OpenCheckpoint, *, rank: int, size: int) -> Resize | None:
    """The resize of a load, None where the number of ranks is the one that saved."""
    saved = checkpoint.index.world_size
    if saved == size:
        return None
    return Resize(saved, size, fresh_seed(checkpoint.commit.index_sha256, rank=rank, size=size))


def fresh_seed(index_sha256: str, *, rank: int, size: int) -> int:
    """A seed in [0, 2^63) for a rank that has no saved state.

    It follows from what was saved (the index holds the step and the checksums of weights and random states, so the
    program's own seed is in it), the rank and the new number of ranks: the same each time this checkpoint is loaded at
    this size, another one on every rank, and at every step from which a run goes on.
    """
    text = f"hpc-train fresh rank {rank} of {size} from {index_sha256}"
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little") >> 1


def check_resizable(per_rank: dict[str, Any], resize: Resize, on_resize: str, where: str) -> None:
    """Refuse a resize of state that has no owner at the new size.

    Raises: CheckpointError naming the part.
    """
    fixed = [name for name, part in per_rank.items() if not callable(getattr(part, "load_resized", None))]
    if on_resize == "reseed" and not fixed:
        return
    which = "" if on_resize == "refuse" else f" (per_rank {fixed[0]!r} has no load_resized())"
    raise CheckpointError(
        f"{where}: saved by {resize.saved_by}, loaded on {resize.size}: state that each rank had for itself has no"
        f" owner here{which}; load on {resize.saved_by}, give the part a method load_resized(state, seed), or pass"
        ' per_rank_on_resize="skip" to leave it as it is'
    )
