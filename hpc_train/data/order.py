"""The order of samples: which sample stands at which place of which global batch, for every world size alike.

Pure functions of counts and a seed, apart from everything that reads: a resume computes its place instead of replaying,
and a test or a tool can say what a run must have seen without touching the data.

The scheme, for one epoch. Full blocks are permuted and dealt to L lanes (virtual readers): lane l owns blocks
pi(l), pi(l+L), ... Within a lane, each window of W blocks is permuted sample by sample. What does not fill another
block in every lane (left-over full blocks and the short last block) is laid end to end, turned by a random offset,
and cut into L equal slices, each permuted. Global batch t holds places [t*c, (t+1)*c) of each lane, c = batch / L,
lane after lane. A rank reads L / world-size neighbouring lanes, hence a contiguous piece of the ordered global batch;
no lane depends on the world size. With fewer full blocks than lanes the epoch is one permutation of all samples.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpc_train.data.bijection import Int64Array, UInt64Array, derive_key, mix64, permute
from hpc_train.errors import DataError, SpecError
from hpc_train.quantities import divisors, format_counts

__all__ = [
    "DIGEST_MODULUS",
    "MAX_LANE_BUFFER_BYTES",
    "SampleOrder",
    "allowed_world_sizes",
    "batch_digest",
    "combine_digests",
    "default_lanes",
]

DIGEST_MODULUS = 1 << 63  # a share of the digest stays a non-negative int64
MAX_LANES = 4096
MAX_LANE_BUFFER_BYTES = 2 << 30  # what one rank that reads every lane may hold; R ranks hold a share of it each
SMALL_DATASET_BYTES = 64 << 20  # so small that every rank may hold all of it
MAX_COUNT = 1 << 53
_GOLDEN = 0x9E3779B97F4A7C15


@dataclass(frozen=True)
class SampleOrder:
    """The order of a dataset's samples under one seed; steps and epochs count from 0.

    Args:  num_samples: samples in the dataset.   block_samples: samples per block (the manifest's).
    global_batch: samples per step over all ranks.   lanes: virtual readers, a divisor of global_batch; world sizes
    that divide it are allowed.   window: blocks of a lane that are mixed with each other.
    shuffle: False gives samples in file order.
    Raises: SpecError for a value out of range; DataError where the data are smaller than one global batch.
    Invariants: tests/data/test_order.py (every sample once but for the dropped rest, ranks partition the batch).
    """

    num_samples: int
    block_samples: int
    global_batch: int
    lanes: int
    window: int = 2
    seed: int = 0
    shuffle: bool = True

    def __post_init__(self) -> None:
        for name, lowest in (("global_batch", 1), ("lanes", 1), ("window", 1), ("seed", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not lowest <= value < MAX_COUNT:
                raise SpecError(f"{name} = {value!r}: a whole number from {lowest} to 2^53 - 1 is needed")
        if self.global_batch % self.lanes:
            raise SpecError(
                f"lanes = {self.lanes} does not divide global_batch = {self.global_batch}; "
                f"choose one of {format_counts(divisors(self.global_batch))}"
            )
        if self.num_samples < self.global_batch:
            raise DataError(
                f"global_batch = {self.global_batch} is larger than the dataset ({self.num_samples} samples); "
                f"ask for {self.num_samples} or fewer"
            )

    @property
    def steps_per_epoch(self) -> int:
        """Global batches per epoch; the rest, num_samples modulo global_batch, is dropped: another one each epoch."""
        return self.num_samples // self.global_batch

    @property
    def num_dropped(self) -> int:
        """Samples that one epoch leaves out because they do not fill a global batch."""
        return self.num_samples % self.global_batch

    @property
    def per_lane_step(self) -> int:
        """Samples that each lane gives to one global batch."""
        return self.global_batch // self.lanes

    @property
    def blocks_per_lane(self) -> int:
        """Full blocks that each lane owns; 0 where the epoch is one permutation of all samples."""
        return self.num_samples // self.block_samples // self.lanes

    @property
    def num_windows(self) -> int:
        """Windows of full blocks in each lane; the last one may hold fewer than `window` blocks."""
        return -(-self.blocks_per_lane // self.window)

    def slots(self, rank: int, size: int) -> range:
        """Places of the global batch that a rank reads; ranks in order give the whole batch in order.

        Raises: SpecError naming the allowed world sizes where `size` does not divide the lanes.
        """
        if self.lanes % size:
            allowed = format_counts(allowed_world_sizes(self.lanes))
            raise SpecError(
                f"{size} ranks cannot share {self.lanes} lanes equally (global_batch = {self.global_batch}); "
                f"run on {allowed} ranks, or choose another global_batch or lanes"
            )
        part = self.global_batch // size
        return range(rank * part, (rank + 1) * part)

    def batch_ids(self, epoch: int, step: int) -> Int64Array:
        """The ordered global batch of a step: sample ids, int64 (global_batch,)."""
        return self.part_ids(epoch, step, 1, rank=0, size=1).ravel()

    def part_ids(self, epoch: int, first_step: int, num_steps: int, *, rank: int, size: int) -> Int64Array:
        """A rank's part of consecutive global batches: sample ids, int64 (num_steps, global_batch // size).

        Cost: O(result), independent of the position in the epoch. Steps must lie inside the epoch.
        """
        slots = np.arange(self.global_batch, dtype=np.int64)[slice_of(self.slots(rank, size))]
        steps = np.arange(first_step, first_step + num_steps, dtype=np.int64)[:, None]
        if not self.shuffle:
            return np.asarray(steps * self.global_batch + slots)
        if self.blocks_per_lane == 0:
            positions = (steps * self.global_batch + slots).ravel()
            ids = permute(positions, self.num_samples, derive_key("samples", self.seed, epoch))
        else:
            lane = np.broadcast_to(slots // self.per_lane_step, (num_steps, slots.size)).ravel()
            place = (steps * self.per_lane_step + slots % self.per_lane_step).ravel()
            ids = self._lane_ids(epoch, lane, place)
        return np.asarray(ids.reshape(num_steps, slots.size))

    def part_windows(self, first_step: int, num_steps: int, *, rank: int, size: int) -> Int64Array:
        """When blocks are done with: a number per place, int64 (num_steps, global_batch // size).

        It never falls from step to step within a lane, and a block that was read for number w is not needed
        once the smallest number of a step is larger than w. Independent of the epoch.
        """
        slots = np.arange(self.global_batch, dtype=np.int64)[slice_of(self.slots(rank, size))]
        steps = np.arange(first_step, first_step + num_steps, dtype=np.int64)[:, None]
        if not self.shuffle:
            return (steps * self.global_batch + slots) // self.block_samples
        place = steps * self.per_lane_step + slots % self.per_lane_step
        # The rest is shorter than a block per lane: it fits into a short last window, or comes after a full one.
        return np.asarray(np.minimum(place // (self.window * self.block_samples), self.num_windows))

    def _lane_ids(self, epoch: int, lane: Int64Array, place: Int64Array) -> Int64Array:
        """Sample ids at places of lanes: full blocks first, then the lane's slice of the rest."""
        ids = np.empty(lane.shape, dtype=np.int64)
        is_full = place < self.blocks_per_lane * self.block_samples
        ids[is_full] = self._full_block_ids(epoch, lane[is_full], place[is_full])
        rest = ~is_full
        if rest.any():
            start = self.blocks_per_lane * self.block_samples
            ids[rest] = self._rest_ids(epoch, lane[rest], place[rest] - start)
        return ids

    def _full_block_ids(self, epoch: int, lane: Int64Array, place: Int64Array) -> Int64Array:
        window_samples = self.window * self.block_samples
        number = place // window_samples
        num_blocks = np.minimum(self.window, self.blocks_per_lane - number * self.window)
        keys = self._window_keys(epoch, lane, number)
        inner = permute(place - number * window_samples, num_blocks * self.block_samples, keys)
        block_of_lane = number * self.window + inner // self.block_samples
        block = self._permuted_blocks(epoch, block_of_lane * self.lanes + lane)
        return block * self.block_samples + inner % self.block_samples

    def _rest_ids(self, epoch: int, lane: Int64Array, place: Int64Array) -> Int64Array:
        """The rest laid end to end is turned by an offset per epoch, so that what is dropped changes too."""
        num_blocks = self.num_samples // self.block_samples
        first = self.blocks_per_lane * self.lanes
        length = self.num_samples - first * self.block_samples
        slice_length = length // self.lanes
        inner = permute(place, slice_length, self._window_keys(epoch, lane, np.full_like(lane, self.num_windows)))
        turn = derive_key("rest", self.seed, epoch) % length
        flat = (lane * slice_length + inner + turn) % length
        block = first + flat // self.block_samples
        is_full = block < num_blocks  # the short last block keeps its place: it is not in the permutation
        block[is_full] = self._permuted_blocks(epoch, block[is_full])
        return np.asarray(block * self.block_samples + flat % self.block_samples)

    def _permuted_blocks(self, epoch: int, positions: Int64Array) -> Int64Array:
        num_blocks = self.num_samples // self.block_samples
        return permute(positions, num_blocks, derive_key("blocks", self.seed, epoch))

    def _window_keys(self, epoch: int, lane: Int64Array, number: Int64Array) -> UInt64Array:
        base = np.uint64(derive_key("window", self.seed, epoch))
        return mix64((lane * (self.num_windows + 1) + number).astype(np.uint64) + base)


def slice_of(places: range) -> slice:
    """The slice that selects a range of step 1."""
    return slice(places.start, places.stop)


def allowed_world_sizes(lanes: int) -> list[int]:
    """Numbers of ranks that share the lanes equally (and so the global batch, which the lanes divide)."""
    return divisors(lanes)


def default_lanes(*, num_samples: int, block_samples: int, sample_bytes: int, global_batch: int, window: int) -> int:
    """Lanes where the caller names none: as many as the data feed well; independent of the world size.

    The largest divisor of global_batch that is at most 4096 and
    - leaves more than 4 blocks to each lane, so that the rest that is dealt per sample stays below a fifth, and
    - keeps the windows of all lanes within 2 GiB, the buffer of a run on one rank (at least one lane always fits).
    Datasets up to 64 MiB, or of at most 4 full blocks and 2 GiB, are not bound so: each rank may hold them whole.
    """
    num_blocks = num_samples // block_samples
    num_bytes = num_samples * sample_bytes
    choices = [value for value in divisors(global_batch) if value <= MAX_LANES]
    if num_bytes <= SMALL_DATASET_BYTES or (num_blocks <= 4 and num_bytes <= MAX_LANE_BUFFER_BYTES):
        return choices[-1]
    window_bytes = window * block_samples * sample_bytes
    fitting = [value for value in choices if num_blocks > 4 * value and value * window_bytes <= MAX_LANE_BUFFER_BYTES]
    return fitting[-1] if fitting else 1


def batch_digest(positions: Int64Array, ids: Int64Array) -> int:
    """A number that tells which samples stood at which places: shares of ranks add up to that of the global batch.

    Args:  positions: places within the epoch, step * global_batch + slot, int64 (n,).   ids: sample ids, int64 (n,).
    Returns: the sum over places of mix64(mix64(position + golden ratio) + id), modulo 2^63.
    """
    mixed = mix64(mix64(positions.astype(np.uint64) + np.uint64(_GOLDEN)) + ids.astype(np.uint64))
    return int(mixed.sum(dtype=np.uint64)) % DIGEST_MODULUS


def combine_digests(shares: list[int]) -> int:
    """The digest of a global batch from its ranks' shares: their sum modulo 2^63."""
    return sum(shares) % DIGEST_MODULUS
