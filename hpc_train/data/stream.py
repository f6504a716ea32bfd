"""ShardStream: this rank's part of each global batch, in an order that any allowed world size shares.

Apart from reading and ordering because here they meet the ranks: one manifest for all of them, one state of a few
hundred bytes that any of them can save, and the same error on every rank.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from hpc_train.data.assemble import Part, assemble, num_store_blocks
from hpc_train.data.bijection import Int64Array
from hpc_train.data.blocks import BlockReader, check_shard_files
from hpc_train.data.digest import order_of
from hpc_train.data.manifest import Manifest, decode_manifest, manifest_path, read_manifest_text
from hpc_train.data.order import SampleOrder
from hpc_train.data.prefetch import Prefetcher
from hpc_train.errors import DataError, SpecError, UsageError
from hpc_train.world import World, alone, on_root

if TYPE_CHECKING:
    import os

__all__ = ["ShardStream"]

STATE_FORMAT = "hpc-train-stream"
STATE_VERSION = 1
# Batches made ahead: they cover the jitter of one step; what covers slow storage is the window, not this number.
DEFAULT_PREFETCH = 4
MAX_EPOCH = 1 << 31
_INSTEAD = "iterate it in the training process, without a DataLoader or with num_workers=0: it prefetches by itself"


class ShardStream:
    """Batches of a dataset for one rank. Making one is collective; iterating, saving and loading state are not.

    One `for` loop runs from the current position to the end of the epoch, then the epoch advances: resuming is
    `load_state_dict`, then the same loops as ever. A loop that is left early costs a new read of the windows in use.
    It works in the process that made it: in workers of a torch DataLoader each would give all samples again.

    Args:  path: the dataset's directory, the same on all ranks.   global_batch: samples per step over all ranks.
    seed: of the order; equal on all ranks.   world: the ranks (None: this process alone).   window: blocks of a lane
    that are mixed with each other.   lanes: virtual readers (None: see `order.default_lanes`); the world sizes that
    divide it give the same global batches.   shuffle: False for file order; every rank then reads nearly all blocks.
    as_numpy: numpy arrays instead of torch tensors.   check_crc: compare each block with its checksum.
    prefetch: batches made ahead in a thread.
    Raises: DataError (the dataset is missing, damaged, or smaller than a batch) and SpecError (a value out of range, or
    a world size that does not fit, naming those that do), the same on all ranks. While iterating: DataError for bytes
    that stay wrong. UsageError in a worker process of a DataLoader.
    Invariants: tests/data/test_stream.py.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        global_batch: int,
        seed: int = 0,
        world: World | None = None,
        window: int = 2,
        lanes: int | None = None,
        shuffle: bool = True,
        as_numpy: bool = False,
        check_crc: bool = True,
        prefetch: int = DEFAULT_PREFETCH,
    ) -> None:
        if not isinstance(prefetch, int) or not 1 <= prefetch <= 1024:
            raise SpecError(f"prefetch = {prefetch!r}: a whole number of batches from 1 to 1024 is needed")
        _refuse_workers()
        self._world: World = alone("ShardStream") if world is None else world
        self._directory = Path(path)
        self._manifest = _shared_manifest(self._directory, self._world)
        self._order = order_of(
            self._manifest, global_batch=global_batch, seed=seed, lanes=lanes, window=window, shuffle=shuffle
        )
        # Before the refusal: which sizes are allowed is what the next `hpc-train resume` wants to know.
        self._world.record("stream", global_batch=self._order.global_batch, lanes=self._order.lanes)
        self._order.slots(self._world.rank, self._world.size)  # refuses a world size that does not fit
        _check_agreement(self._identity(), self._world)
        self._reader = BlockReader(self._directory, self._manifest, check_crc=check_crc)
        self._prefetch = prefetch
        self._as_numpy = as_numpy
        self._loop: Prefetcher[Part] | None = None
        self._epoch = 0
        self._step = 0
        self._batch_ids: Int64Array | None = None
        self._batch_digest: int | None = None

    def __len__(self) -> int:
        """Steps per epoch."""
        return self._order.steps_per_epoch

    @property
    def manifest(self) -> Manifest:
        """The dataset's manifest."""
        return self._manifest

    @property
    def order(self) -> SampleOrder:
        """The order of samples, with the number of lanes that was chosen."""
        return self._order

    @property
    def epoch(self) -> int:
        """Epoch of the last batch that was given out, or of the first one to come; from 0."""
        return self._epoch

    @property
    def step(self) -> int:
        """Batches given out in this epoch."""
        return self._step

    @property
    def batch_ids(self) -> Int64Array:
        """Sample ids of this rank's part of the last batch, int64 (global_batch // size,).

        Raises: SpecError before the first batch.
        """
        if self._batch_ids is None:
            raise SpecError("ShardStream.batch_ids: no batch has been given out yet; take one from the loop first")
        return self._batch_ids

    @property
    def batch_digest(self) -> int:
        """This rank's share of the last batch's digest, in [0, 2^63).

        The shares of all ranks add up, modulo 2^63, to `expected_digest`. Raises: SpecError before the first batch.
        """
        if self._batch_digest is None:
            raise SpecError("ShardStream.batch_digest: no batch has been given out yet; take one from the loop first")
        return self._batch_digest

    @property
    def num_retries(self) -> int:
        """Reads of blocks that had to be tried again so far, on this rank."""
        return self._reader.num_retries

    @property
    def max_buffer_bytes(self) -> int:
        """The most that blocks and prefetched batches take on this rank [bytes]."""
        manifest, size = self._manifest, self._world.size
        blocks = num_store_blocks(self._order, num_blocks=manifest.num_blocks, size=size)
        samples = blocks * manifest.block_samples + (self._prefetch + 2) * (self._order.global_batch // size)
        return samples * manifest.sample_bytes

    def __iter__(self) -> Iterator[dict[str, Any]]:
        """This rank's parts, from the current position to the end of the epoch: per field (global_batch // size, ...).

        Raises: DataError naming shard, block and samples if three reads do not give the right bytes; RuntimeError
        in a loop that is still running when another one is started or a state is loaded; UsageError in a worker
        process of a DataLoader.
        """
        _refuse_workers()
        self._end_loop()
        if self._step == len(self):  # the last loop was left in the epoch's last batch
            self._epoch, self._step = self._epoch + 1, 0
        loop = self._loop = self._start_loop()
        try:
            while True:
                with self._world.phase("data"):
                    part = loop.get()
                if part is None:
                    break
                self._step = part.step + 1
                self._batch_ids, self._batch_digest = part.ids, part.digest
                yield self._batch_of(part)
                if self._loop is not loop:
                    raise RuntimeError("this loop over a ShardStream ended: another one began or a state was loaded")
            self._epoch, self._step = self._epoch + 1, 0
        finally:
            if self._loop is loop:
                self._end_loop()

    def __getitem__(self, index: object) -> NoReturn:
        """Not there: a DataLoader that is given the stream itself asks for single samples. Raises: UsageError."""
        raise UsageError(f"a ShardStream gives whole batches in its own order, not sample {index!r}: {_INSTEAD}")

    def __getstate__(self) -> NoReturn:
        """Not there: threads, open files and the ranks' World stay in their process. Raises: UsageError."""
        raise UsageError(f"a ShardStream cannot be copied or sent to another process: {_INSTEAD}")

    def state_dict(self) -> dict[str, Any]:
        """The position after the last batch that was given out; batches only prefetched do not count.

        Returns: a few hundred bytes of JSON values, the same on every rank and for every world size.
        """
        is_over = self._step == len(self)
        position = {"epoch": self._epoch + is_over, "step": 0 if is_over else self._step}
        return {"format": STATE_FORMAT, "version": STATE_VERSION, **self._identity(), **position}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where `state_dict` was taken; the world size may differ, the order may not.

        Raises: DataError naming both values where dataset, seed, global_batch, lanes, window or shuffle differ,
        or the state is not one; nothing is changed then.
        """
        if not isinstance(state, Mapping):
            raise DataError(
                f"{self._directory}: a {type(state).__name__} is no saved position; give what state_dict() gave"
            )
        expected = {"format": STATE_FORMAT, "version": STATE_VERSION, **self._identity()}
        different = [
            f"{key} is {state.get(key)!r} in the state and {value!r} here"
            for key, value in expected.items()
            if type(state.get(key)) is not type(value) or state.get(key) != value
        ]
        if different:
            raise DataError(
                f"{self._directory}: the saved position belongs to another order of samples: {'; '.join(different)}; "
                f"make the stream as it was, or start without the state"
            )
        epoch = self._count_in(state, "epoch", MAX_EPOCH)
        step = self._count_in(state, "step", len(self))
        self._end_loop()
        self._epoch, self._step = (epoch + 1, 0) if step == len(self) else (epoch, step)
        self._batch_ids = self._batch_digest = None

    def close(self) -> None:
        """End a running loop's thread and close all files; a later loop opens them again."""
        self._end_loop()

    def _count_in(self, state: Mapping[str, Any], key: str, highest: int) -> int:
        value = state.get(key)
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= highest:
            return value
        raise DataError(f"{self._directory}: the saved position is damaged: {key} = {value!r}, not 0 to {highest}")

    def _identity(self) -> dict[str, Any]:
        """What must be equal for positions to mean the same samples."""
        order = self._order
        return {
            "dataset": self._manifest.hash,
            "seed": order.seed,
            "global_batch": order.global_batch,
            "lanes": order.lanes,
            "window": order.window,
            "shuffle": order.shuffle,
        }

    def _start_loop(self) -> Prefetcher[Part]:
        # Locals only: a thread that holds the stream would keep it alive.
        reader, manifest, order, world = self._reader, self._manifest, self._order, self._world
        epoch, step, rank, size = self._epoch, self._step, world.rank, world.size

        def produce() -> Iterator[Part]:
            return assemble(reader, manifest, order, epoch=epoch, first_step=step, rank=rank, size=size)

        return Prefetcher(produce, depth=self._prefetch, name="hpc-train-data")

    def _end_loop(self) -> None:
        if self._loop is not None:
            loop, self._loop = self._loop, None
            loop.close()
            self._reader.close()  # each epoch opens the shards anew and so notices one that was replaced

    def _batch_of(self, part: Part) -> dict[str, Any]:
        if self._as_numpy:
            return dict(part.arrays)
        import torch

        return {name: torch.from_numpy(array) for name, array in part.arrays.items()}


def _refuse_workers() -> None:
    """Raises: UsageError in a worker process of a torch DataLoader: each one would read all of this rank's samples."""
    data: Any = sys.modules.get("torch.utils.data")  # not imported for this: without it there are no workers
    worker = data.get_worker_info() if data is not None else None
    if worker is not None:
        raise UsageError(
            f"a ShardStream in worker {worker.id} of a DataLoader with num_workers={worker.num_workers}: each worker "
            f"would give every sample again, and state_dict() would not see it; {_INSTEAD}"
        )


def _shared_manifest(directory: Path, world: World) -> Manifest:
    """The manifest that rank 0 read, on all ranks; so only one rank lists and stats the shards. Collective."""

    def read_and_check() -> str:
        text = read_manifest_text(directory)
        check_shard_files(directory, decode_manifest(text, str(manifest_path(directory))))
        return text

    return decode_manifest(on_root(world, read_and_check), str(manifest_path(directory)))


def _check_agreement(identity: dict[str, Any], world: World) -> None:
    """Refuse ranks that ask for different orders, such as a seed made from the rank. Collective.

    Raises: DataError on all ranks.
    """
    digest = hashlib.blake2b(repr(sorted(identity.items())).encode(), digest_size=7).digest()
    number = int.from_bytes(digest, "little")
    if world.allreduce(number, "min") != world.allreduce(number, "max"):
        mine = ", ".join(f"{key} = {value}" for key, value in identity.items() if key != "dataset")
        raise DataError(
            f"the ranks ask for different orders of samples (rank {world.rank}: {mine}); "
            f"give every rank the same arguments: the stream itself takes care of each rank's part"
        )
