"""A ShardStream in torch's DataLoader: right in the training process, refused in its workers, where it would repeat."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import DataLoader, IterableDataset

from hpc_train.data import ShardStream
from hpc_train.errors import UsageError
from tests.data.datasets import make_dataset


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_dataset(tmp_path_factory.mktemp("data") / "set", 203)[0]


class Wrapped(IterableDataset[dict[str, Any]]):
    """What people write around a stream; with a path it makes the stream where it is iterated."""

    def __init__(self, source: ShardStream | Path) -> None:
        self.source = source

    def __iter__(self) -> Iterator[dict[str, Any]]:
        source = self.source
        yield from source if isinstance(source, ShardStream) else ShardStream(source, global_batch=8)


def load(source: Any, num_workers: int, method: str | None = None) -> list[int]:
    """The labels that a DataLoader gives."""
    timeout_s = 60 if num_workers else 0
    loader: DataLoader[dict[str, Any]] = DataLoader(
        source, batch_size=None, num_workers=num_workers, multiprocessing_context=method, timeout=timeout_s
    )
    return [label for batch in loader for label in batch["label"].tolist()]


def test_without_workers_a_wrapped_stream_gives_every_sample_once_and_resumes(path: Path) -> None:
    stream = ShardStream(path, global_batch=8, seed=3)
    labels = load(Wrapped(stream), 0)
    assert len(labels) == len(set(labels)) == 200
    assert stream.state_dict()["epoch"] == 1
    assert load(Wrapped(stream), 0) != labels


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_stream_in_forked_workers_is_refused(path: Path, num_workers: int) -> None:
    stream = ShardStream(path, global_batch=8)
    with pytest.raises(UsageError, match=rf"num_workers={num_workers}: .* iterate it in the training process"):
        load(Wrapped(stream), num_workers, "fork")
    assert len(load(Wrapped(stream), 0)) == 200  # nothing has happened to it


def test_a_stream_for_spawned_workers_is_refused(path: Path) -> None:
    with pytest.raises(UsageError, match=r"sent to another process: iterate it .* num_workers=0"):
        load(Wrapped(ShardStream(path, global_batch=8)), 2, "spawn")


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_a_stream_made_in_a_worker_is_refused(path: Path, method: str) -> None:
    with pytest.raises(UsageError, match=r"a ShardStream in worker 0 of a DataLoader with num_workers=1"):
        load(Wrapped(path), 1, method)


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_stream_instead_of_a_dataset_is_refused(path: Path, num_workers: int) -> None:
    stream: Any = ShardStream(path, global_batch=8)
    with pytest.raises(UsageError, match=r"whole batches in its own order, not sample 0: iterate it"):
        load(stream, num_workers, "fork" if num_workers else None)


def test_a_stream_in_the_middle_of_a_loop_is_no_riddle_either(path: Path) -> None:
    stream = ShardStream(path, global_batch=8)
    loop = iter(stream)
    next(loop)
    with pytest.raises(UsageError, match="cannot be copied or sent"):
        pickle.dumps(stream)
    assert len([*loop]) == 24
