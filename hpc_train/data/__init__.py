"""Datasets: HDF5 shards with a manifest, an order that any allowed number of ranks shares, and the stream of batches.

The names below load on first use, so that a command on a login node never imports numpy, h5py or torch by accident.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hpc_train.data.digest import expected_digest
    from hpc_train.data.manifest import Manifest, read_manifest
    from hpc_train.data.pack import pack_arrays, pack_bytes
    from hpc_train.data.stream import ShardStream
    from hpc_train.data.verify import verify_dataset

__all__ = [
    "Manifest",
    "ShardStream",
    "expected_digest",
    "pack_arrays",
    "pack_bytes",
    "read_manifest",
    "verify_dataset",
]

_HOME = {
    "Manifest": "manifest",
    "ShardStream": "stream",
    "expected_digest": "digest",
    "pack_arrays": "pack",
    "pack_bytes": "pack",
    "read_manifest": "manifest",
    "verify_dataset": "verify",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
