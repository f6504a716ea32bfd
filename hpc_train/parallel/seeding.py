"""Seeds every random generator of a rank.

Apart because a resumed run equals an uninterrupted one only if all generators do, also those a program forgot: Python's
and numpy's are seeded from the operating system otherwise, and their state is saved with the checkpoint.
"""

from __future__ import annotations

import random

import torch

from hpc_train.world import World

__all__ = ["seed_ranks"]


def seed_ranks(seed: int, world: World) -> None:
    """Seed Python's, numpy's (if installed) and torch's generators with a stream of this rank. Not collective.

    Call it after the model is initialised alike on all ranks, and before `Checkpointer.load`, which restores the
    generators if `hpc_train.rng_state()` is among its `per_rank` state.

    Args:  seed: 0 or more, the same on all ranks; rank r uses seed * 1 000 003 + r, so that neighbouring seeds share
    no stream.
    """
    own = seed * 1_000_003 + world.rank
    random.seed(own)
    torch.manual_seed(own)  # CUDA's generators too
    try:
        import numpy
    except ImportError:
        return
    numpy.random.seed(own % (1 << 32))
