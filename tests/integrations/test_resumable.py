"""The loader with a position: what is left of an epoch is read, once, in the order it would have had."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset

from hpc_train.errors import UsageError
from hpc_train.integrations.resumable import ResumableLoader

NUM_BATCHES = 5


class Noisy(Dataset[float]):
    """A sample and a random number, as an augmentation in a worker draws it."""

    def __len__(self) -> int:
        return NUM_BATCHES * 2

    def __getitem__(self, index: int) -> Any:
        return torch.tensor([float(index), float(torch.rand(()))])


def make(workers: int, shuffle: bool = True, **options: Any) -> ResumableLoader[Any]:
    torch.manual_seed(3)
    return ResumableLoader(Noisy(), batch_size=2, shuffle=shuffle, num_workers=workers, **options)


def epochs_of(loader: ResumableLoader[Any], count: int) -> list[list[Any]]:
    """The batches of some epochs. Numbers drawn between them, as dropout does, must not change an order."""
    return [[batch.tolist() for batch in loader if torch.rand(()) >= 0] for _ in range(count)]


def indices(batches: Iterable[Any]) -> list[float]:
    return [sample[0] for batch in batches for sample in batch]


@pytest.mark.parametrize("position", range(NUM_BATCHES + 1))
def test_from_every_position_the_rest_is_read_as_it_would_have_been(position: int) -> None:
    whole = [indices(epoch) for epoch in epochs_of(make(0), 3)]
    loader = make(0)
    assert [indices(epoch) for epoch in epochs_of(loader, 1)] == whole[:1]
    iterator = iter(loader)
    part = [next(iterator).tolist() for _ in range(position)]
    state = loader.state_dict()
    resumed = make(0)
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    rest = [indices(epoch) for epoch in epochs_of(resumed, 2)]
    if position in (0, NUM_BATCHES):  # an epoch that is over, or not begun: the next ones
        assert rest[0] == whole[2 if position else 1]
    else:
        assert [indices(part) + rest[0], rest[1]] == whole[1:]


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_of_a_resumed_run_draw_what_they_would_have_drawn(persistent: bool) -> None:
    _, second, third = epochs_of(make(1, persistent_workers=persistent), 3)
    resumed = make(1, persistent_workers=persistent)
    resumed.load_state_dict({"epoch": 0, "batches": NUM_BATCHES, "sampler_epoch": None})
    found = epochs_of(resumed, 2)
    assert [indices(epoch) for epoch in found] == [indices(second), indices(third)]
    # Workers that live on keep generators of their own, whose state nobody can ask for.
    assert persistent or found == [second, third]


def test_a_distributed_sampler_gets_its_epoch_before_workers_ask_it() -> None:
    def make_part(epoch: int) -> ResumableLoader[Any]:
        sampler: DistributedSampler[Any] = DistributedSampler(Noisy(), num_replicas=2, rank=1, seed=5)
        sampler.set_epoch(epoch)
        return ResumableLoader(Noisy(), batch_size=1, sampler=sampler, num_workers=1)

    whole = [float(batch[0, 0]) for batch in make_part(4)]
    resumed = make_part(0)
    resumed.load_state_dict({"epoch": 4, "batches": 2, "sampler_epoch": 4})
    assert [float(batch[0, 0]) for batch in resumed] == whole[2:]


def test_its_length_stays_that_of_the_epoch() -> None:
    loader = make(0)
    loader.load_state_dict({"epoch": 0, "batches": 3, "sampler_epoch": None})
    assert (len(loader), len(list(loader)), len(loader)) == (NUM_BATCHES, 2, NUM_BATCHES)


def test_without_shuffling_it_reads_as_torchs_own() -> None:
    ours, theirs = make(0, shuffle=False), DataLoader(Noisy(), batch_size=2)
    assert [batch[:, 0].tolist() for batch in ours] == [batch[:, 0].tolist() for batch in theirs]


def test_a_stream_cannot_be_skipped_into() -> None:
    class Stream(IterableDataset[int]):
        def __iter__(self) -> Any:
            return iter(range(10))

    loader: ResumableLoader[Any] = ResumableLoader(Stream(), batch_size=2)
    loader.load_state_dict({"epoch": 0, "batches": 1, "sampler_epoch": None})
    with pytest.raises(UsageError, match="cannot skip into an IterableDataset"):
        next(iter(loader))
