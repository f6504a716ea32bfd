"""hpc-train: training neural networks with PyTorch on Slurm machines, from job file to finished, resumed model.

Importing this package imports nothing heavy; the public names load their rooms when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpc_train.bootstrap.init import init
    from hpc_train.checkpoint import Checkpointer, rng_state
    from hpc_train.data import ShardStream
    from hpc_train.errors import HpcTrainError, Stopped
    from hpc_train.observe.commits import commit
    from hpc_train.observe.progress import Progress
    from hpc_train.parallel.ddp import settled_ddp
    from hpc_train.parallel.seeding import seed_ranks
    from hpc_train.recovery.stop import StopRequest
    from hpc_train.world import SoloWorld, World

__all__ = [
    "Checkpointer",
    "HpcTrainError",
    "Progress",
    "ShardStream",
    "SoloWorld",
    "StopRequest",
    "Stopped",
    "World",
    "__version__",
    "commit",
    "init",
    "rng_state",
    "seed_ranks",
    "settled_ddp",
]

__version__ = "0.1.0"

_HOMES = {
    "Checkpointer": "hpc_train.checkpoint",
    "HpcTrainError": "hpc_train.errors",
    "Progress": "hpc_train.observe.progress",
    "ShardStream": "hpc_train.data",
    "SoloWorld": "hpc_train.world",
    "StopRequest": "hpc_train.recovery.stop",
    "Stopped": "hpc_train.errors",
    "World": "hpc_train.world",
    "commit": "hpc_train.observe.commits",
    "init": "hpc_train.bootstrap.init",
    "rng_state": "hpc_train.checkpoint",
    "seed_ranks": "hpc_train.parallel.seeding",
    "settled_ddp": "hpc_train.parallel.ddp",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'hpc_train' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
