"""A DataLoader that goes on in the middle of an epoch.

Apart because it needs torch only. Lightning resumes a loader that has `state_dict` and `load_state_dict`; torch's has
neither, and a resumed epoch then begins with its first batches again and never reads its last, with a warning at most.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any, TypeVar

import torch
from torch.utils.data import DataLoader, IterableDataset, RandomSampler

from hpc_train.errors import UsageError

__all__ = ["ResumableLoader"]

T = TypeVar("T")


class ResumableLoader(DataLoader[T]):
    """torch's DataLoader with a position: the same arguments, the same batches, and `state_dict`.

    Skipped batches are not read. Order and workers' seeds depend on the epoch alone, not on numbers that were drawn
    before, so that a resumed epoch reads what was left of it. Without `__init__`, since Lightning makes such loaders
    again with a sampler for its ranks. Not with `limit_train_batches`: an epoch must end where the loader does.
    """

    _epoch = -1  # of the last iterator, counted from 0
    _batches = 0  # of that iterator, given out so far
    _skip = 0
    _seed: int | None = None
    _resumed: dict[str, Any] | None = None

    def state_dict(self) -> dict[str, Any]:
        """Where the loader stands."""
        if self._resumed is not None:
            return self._resumed
        return {"epoch": self._epoch, "batches": self._batches, "sampler_epoch": getattr(self.sampler, "epoch", None)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there with the next iterator."""
        self._resumed = dict(state)

    def begin_epoch(self, epoch: int) -> None:
        """The next iterator is that of this epoch, unless a position was loaded (Lightning loads none at its end)."""
        self._epoch = epoch - 1

    def __iter__(self) -> Iterator[T]:  # type: ignore[override]
        # A generator: it begins at the first batch, when the sampler knows its epoch.
        state, self._resumed = self._resumed, None
        self._epoch, self._skip = self._epoch + 1, 0
        if state is not None:
            self._go_on(state)
        self._batches = self._skip
        self._seed_epoch()
        for batch in super().__iter__():
            self._batches += 1
            yield batch

    def _go_on(self, state: dict[str, Any]) -> None:
        is_over = bool(state["batches"]) and self._has_length() and state["batches"] >= len(self)
        self._epoch = state["epoch"] + is_over
        self._skip = 0 if is_over else state["batches"]
        if self._skip and isinstance(self.dataset, IterableDataset):
            raise UsageError(
                "ResumableLoader cannot skip into an IterableDataset, which alone knows its order: give the dataset's "
                "loader a state_dict of its own, or read from a dataset with __getitem__"
            )
        set_epoch = getattr(self.sampler, "set_epoch", None)
        if set_epoch is not None and state["sampler_epoch"] is not None:
            set_epoch(state["sampler_epoch"] + is_over)

    def _has_length(self) -> bool:
        return not isinstance(self.dataset, IterableDataset) or hasattr(self.dataset, "__len__")

    def _seed_epoch(self) -> None:
        sampler = self.sampler
        own = sampler.generator if isinstance(sampler, RandomSampler) else None
        if self._seed is None:
            given = self.generator or own
            self._seed = torch.initial_seed() if given is None else given.initial_seed()
        self.generator = _generator(self._seed + self._epoch)
        if isinstance(sampler, RandomSampler):
            # One of its own: whether the loader draws a seed for workers must not change the order.
            sampler.generator = _generator(self._seed + self._epoch)

    @property
    def _index_sampler(self) -> Any:  # what torch's iterators draw their indices from
        return _Skipping(self, super()._index_sampler)


class _Skipping:
    """The batches of an epoch without those that were read before. Its length stays that of the whole epoch."""

    def __init__(self, loader: ResumableLoader[Any], inner: Any) -> None:
        self._loader = loader
        self._inner = inner

    def __iter__(self) -> Iterator[Any]:
        return itertools.islice(iter(self._inner), self._loader._skip, None)

    def __len__(self) -> int:
        return len(self._inner)


def _generator(seed: int) -> torch.Generator:
    generator = torch.Generator()
    generator.manual_seed(seed % (1 << 63))
    return generator
