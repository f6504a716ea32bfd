"""What a run must have seen: the digest of any global batch, from the manifest and the seed alone.

Apart from the stream, so that a test or a tool checks a journal without opening a shard or importing torch.
"""

from __future__ import annotations

import numpy as np

from hpc_train.data.manifest import Manifest
from hpc_train.data.order import MAX_LANE_BUFFER_BYTES, SampleOrder, batch_digest, default_lanes
from hpc_train.errors import DataError

__all__ = ["expected_digest", "order_of"]


def order_of(
    manifest: Manifest,
    *,
    global_batch: int,
    seed: int = 0,
    lanes: int | None = None,
    window: int = 2,
    shuffle: bool = True,
) -> SampleOrder:
    """The order of a dataset's samples with the defaults of `ShardStream`.

    Raises: SpecError for a value out of range; DataError where the data are smaller than one global batch, or lanes
    were asked for that large data have not blocks enough for.
    """
    if lanes is None and all(isinstance(value, int) and 0 < value < 1 << 53 for value in (global_batch, window)):
        lanes = default_lanes(
            num_samples=manifest.num_samples,
            block_samples=manifest.block_samples,
            sample_bytes=manifest.sample_bytes,
            global_batch=global_batch,
            window=window,
        )
    order = SampleOrder(
        num_samples=manifest.num_samples,
        block_samples=manifest.block_samples,
        global_batch=global_batch,
        lanes=1 if lanes is None else lanes,
        window=window,
        seed=seed,
        shuffle=shuffle,
    )
    num_bytes = manifest.num_samples * manifest.sample_bytes
    if order.shuffle and order.blocks_per_lane == 0 and num_bytes > MAX_LANE_BUFFER_BYTES:
        raise DataError(
            f"lanes = {order.lanes} is more than the {manifest.num_samples // manifest.block_samples} full blocks of "
            f"the dataset, so that every rank would have to hold all its {num_bytes} bytes; ask for fewer lanes, "
            f"or pack the data again with smaller blocks"
        )
    return order


def expected_digest(
    manifest: Manifest,
    *,
    global_batch: int,
    epoch: int,
    step: int,
    seed: int = 0,
    lanes: int | None = None,
    window: int = 2,
    shuffle: bool = True,
) -> int:
    """The digest of one global batch: what the ranks' `ShardStream.batch_digest` add up to, modulo 2^63.

    Args:  epoch: from 0.   step: within the epoch, from 0; the others as for `ShardStream`.
    Returns: a number in [0, 2^63), the same for every world size.
    Raises: SpecError for a value out of range. Not collective; reads nothing.
    """
    order = order_of(manifest, global_batch=global_batch, seed=seed, lanes=lanes, window=window, shuffle=shuffle)
    positions = np.arange(step * global_batch, (step + 1) * global_batch, dtype=np.int64)
    return batch_digest(positions, order.batch_ids(epoch, step))
