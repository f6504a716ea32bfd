"""Checkpoints that cannot be torn: few shared files, a checksum on every byte, one rename that commits.

The names here load lazily, so that importing the package (as command modules do) brings in neither torch nor numpy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpc_train.checkpoint.catalogue import list_checkpoints as list_checkpoints
    from hpc_train.checkpoint.checkpointer import Checkpointer as Checkpointer
    from hpc_train.checkpoint.rng import rng_state as rng_state
    from hpc_train.checkpoint.verify import verify_checkpoint as verify_checkpoint

__all__ = ["Checkpointer", "list_checkpoints", "rng_state", "verify_checkpoint"]

_HOMES = {
    "Checkpointer": "checkpointer",
    "list_checkpoints": "catalogue",
    "rng_state": "rng",
    "verify_checkpoint": "verify",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
