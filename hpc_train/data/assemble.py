"""Batches from blocks: a fixed store of blocks that are in use, and the samples of each step taken from it.

Apart from the reader (which knows files) and the stream (which knows ranks and state): here is the memory, and its
bound. A rank holds the blocks of its lanes' windows and no others: lanes / ranks * window blocks.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from hpc_train.data.bijection import Int64Array
from hpc_train.data.blocks import BlockReader
from hpc_train.data.manifest import Manifest
from hpc_train.data.order import SampleOrder, batch_digest, slice_of

__all__ = ["Part", "assemble", "num_store_blocks"]

PLAN_SAMPLES = 8192  # ids computed at a time: enough to hide the cost of numpy calls, 64 KiB per array


@dataclass(frozen=True)
class Part:
    """A rank's part of one global batch.

    Attributes:  step: within the epoch.   ids: sample ids, int64 (n,).   digest: the rank's share of it.
    arrays: per field (n, *shape), native byte order, owned by nobody else.
    """

    step: int
    ids: Int64Array
    digest: int
    arrays: dict[str, npt.NDArray[Any]]


def num_store_blocks(order: SampleOrder, *, num_blocks: int, size: int) -> int:
    """Blocks that a rank may have to hold at once; memory is this times the bytes of a block."""
    part = order.global_batch // size
    if not order.shuffle:
        return min(num_blocks, part // order.block_samples + 2)
    if order.blocks_per_lane == 0:
        return num_blocks
    lanes = order.lanes // size
    # The slices of the rest are below one block per lane; neighbours share blocks, the ends and the turn add some.
    held = max(lanes * order.window, lanes + 4)
    # A step can lie across the end of a window: then its samples may need as many blocks again.
    across = min(part, held) if order.block_samples % order.per_lane_step else 0
    return min(num_blocks, held + across)


def assemble(
    reader: BlockReader, manifest: Manifest, order: SampleOrder, *, epoch: int, first_step: int, rank: int, size: int
) -> Iterator[Part]:
    """A rank's parts from a step to the end of the epoch. Reads each block once, when its first sample is due.

    Raises: what the reader raises.
    """
    slots = np.arange(order.global_batch, dtype=np.int64)[slice_of(order.slots(rank, size))]
    store = _BlockStore(reader, manifest, num_store_blocks(order, num_blocks=manifest.num_blocks, size=size))
    steps_at_once = max(1, PLAN_SAMPLES // len(slots))
    for first in range(first_step, order.steps_per_epoch, steps_at_once):
        count = min(steps_at_once, order.steps_per_epoch - first)
        all_ids = order.part_ids(epoch, first, count, rank=rank, size=size)
        all_windows = order.part_windows(first, count, rank=rank, size=size)
        for index in range(count):
            ids = all_ids[index]
            arrays = store.take(ids, all_windows[index])
            positions = (first + index) * order.global_batch + slots
            yield Part(step=first + index, ids=ids.copy(), digest=batch_digest(positions, ids), arrays=arrays)


class _BlockStore:
    """Memory for a fixed number of blocks; a block is dropped when the window it was read for has passed."""

    def __init__(self, reader: BlockReader, manifest: Manifest, num_slots: int) -> None:
        self._reader = reader
        self._block_samples = manifest.block_samples
        self._fields = manifest.fields
        # One array per field, so that the samples of a batch are gathered in one call. The system gives
        # memory only to the slots that are written.
        self._bytes = {
            name: np.empty((num_slots, self._block_samples * field.row_bytes), dtype=np.uint8)
            for name, field in manifest.fields.items()
        }
        self._rows = {
            name: self._bytes[name].reshape(-1).view(np.dtype(field.dtype).newbyteorder("<")).reshape(-1, *field.shape)
            for name, field in manifest.fields.items()
        }
        self._slot_of_block = np.full(manifest.num_blocks, -1, dtype=np.int32)
        self._block_of_slot = np.full(num_slots, -1, dtype=np.int64)
        self._window_of_slot = np.full(num_slots, -1, dtype=np.int64)
        self._free = list(range(num_slots))

    def take(self, ids: Int64Array, windows: Int64Array) -> dict[str, npt.NDArray[Any]]:
        """The samples of a step as new arrays; reads what is missing, forgets what no later step needs."""
        self._release(int(windows.min()))
        blocks = ids // self._block_samples
        slots = self._slot_of_block[blocks]
        missing = np.flatnonzero(slots < 0)
        if missing.size:
            wanted, where = np.unique(blocks[missing], return_index=True)
            for block, window in zip(wanted.tolist(), windows[missing[where]].tolist(), strict=True):
                self._load(block, window)
            slots = self._slot_of_block[blocks]
        rows = slots.astype(np.int64) * self._block_samples + ids % self._block_samples
        return {name: flip_to_native(array.take(rows, axis=0)) for name, array in self._rows.items()}

    def _load(self, block: int, window: int) -> None:
        slot = self._free.pop()
        try:
            self._reader.read(block, {name: data[slot] for name, data in self._bytes.items()})
        except BaseException:
            self._free.append(slot)
            raise
        self._slot_of_block[block] = slot
        self._block_of_slot[slot] = block
        self._window_of_slot[slot] = window

    def _release(self, current: int) -> None:
        """Forget the blocks of windows before `current`. Free slots carry window -1 and no block."""
        passed = np.flatnonzero((self._window_of_slot < current) & (self._block_of_slot >= 0))
        if passed.size:
            self._slot_of_block[self._block_of_slot[passed]] = -1
            self._block_of_slot[passed] = -1
            self._window_of_slot[passed] = -1
            self._free.extend(passed.tolist())


def flip_to_native(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The array in the machine's byte order: itself on little-endian machines."""
    native = array.dtype.newbyteorder("=")
    return array if array.dtype == native else array.astype(native)
