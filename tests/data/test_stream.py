"""ShardStream: the right bytes, the right part, and a position that resumes exactly, at any allowed world size."""

from __future__ import annotations

import contextlib
import itertools
import json
import threading
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from hpc_train.data import Manifest, ShardStream, expected_digest
from hpc_train.data.order import combine_digests
from hpc_train.errors import DataError, SpecError
from tests.data.datasets import SimulatedWorld, arrays_of, make_dataset, simulated_worlds

Dataset = tuple[Path, Manifest]


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return make_dataset(tmp_path_factory.mktemp("data") / "set", 203)


def streams(dataset: Dataset, size: int, **options: Any) -> list[ShardStream]:
    """The stream of every rank of a simulated world."""
    arguments = {"global_batch": 8, "seed": 3, "as_numpy": True, **options}
    return [ShardStream(dataset[0], world=world, **arguments) for world in simulated_worlds(size)]


def run_steps(ranks: list[ShardStream], count: int) -> list[list[int]]:
    """Labels of the next global batches, ranks in order; goes over the ends of epochs."""
    found: list[list[list[int]]] = []
    for stream in ranks:
        mine: list[list[int]] = []
        while len(mine) < count:
            for batch in stream:
                mine.append(batch["label"].tolist())
                assert batch["label"].tolist() == stream.batch_ids.tolist()
                if len(mine) == count:
                    break
        found.append(mine)
    return [[*itertools.chain(*parts)] for parts in zip(*found, strict=True)]


@pytest.mark.parametrize("options", [{"lanes": 4}, {"lanes": 8, "window": 3}, {"lanes": 2}, {"shuffle": False}])
def test_bytes_equal_what_h5py_reads_for_the_ids(dataset: Dataset, options: dict[str, Any]) -> None:
    path, manifest = dataset
    plain: dict[str, list[Any]] = {name: [] for name in manifest.fields}
    for shard in manifest.shards:
        with h5py.File(path / shard.name) as file:
            for name, rows in plain.items():
                rows.append(file[name][()])
    whole = {name: np.concatenate(rows) for name, rows in plain.items()}
    (stream,) = streams(dataset, 1, **options)
    for batch in stream:
        for name, array in batch.items():
            assert array.dtype == arrays_of(1)[name].dtype
            np.testing.assert_array_equal(array, whole[name][stream.batch_ids])
    assert stream.num_retries == 0


def test_tensors_hold_the_same_as_arrays(dataset: Dataset) -> None:
    import torch

    tensors = ShardStream(dataset[0], global_batch=8, seed=3)
    (arrays,) = streams(dataset, 1)
    for tensor, array in zip(tensors, arrays, strict=True):
        assert isinstance(tensor["weight"], torch.Tensor)
        assert torch.equal(tensor["image"], torch.from_numpy(array["image"]))


@pytest.mark.parametrize("options", [{"lanes": 8}, {"lanes": 4}, {"shuffle": False}])
def test_every_world_size_sees_the_same_ordered_global_batches(dataset: Dataset, options: dict[str, Any]) -> None:
    alone = run_steps(streams(dataset, 1, **options), 60)
    for size in (2, 4):
        assert run_steps(streams(dataset, size, **options), 60) == alone


@pytest.mark.parametrize("saved_after", [1, 5, 24, 25, 26, 49, 50])
def test_resume_at_any_step_and_world_size_continues_with_the_next_batch(dataset: Dataset, saved_after: int) -> None:
    # mosaicml/streaming#437 began again at sample 0; 25 and 50 are the last batches of epochs, where
    # meta-pytorch/data#1437 and verl#7401 skipped the next epoch.
    whole = run_steps(streams(dataset, 1, lanes=8), 75)
    before = streams(dataset, 4, lanes=8)
    assert run_steps(before, saved_after) == whole[:saved_after]
    states = [stream.state_dict() for stream in before]
    assert all(state == states[0] for state in states)
    saved = json.loads(json.dumps(states[0]))
    for size in (1, 2, 8):
        after = streams(dataset, size, lanes=8)
        for stream in after:
            stream.load_state_dict(saved)
        assert run_steps(after, 75 - saved_after) == whole[saved_after:]


def test_state_after_the_last_batch_is_the_start_of_the_next_epoch(dataset: Dataset) -> None:
    (stream,) = streams(dataset, 1)
    assert len(stream) == 25
    (*_, last) = [stream.state_dict() for _ in stream]
    assert (last["epoch"], last["step"]) == (1, 0)
    assert stream.state_dict() == last
    assert len(json.dumps(last)) < 400
    assert [stream.epoch, stream.step] == [1, 0]


def test_a_state_at_the_end_of_an_epoch_starts_the_next(dataset: Dataset) -> None:
    (stream,) = streams(dataset, 1)
    stream.load_state_dict({**stream.state_dict(), "epoch": 2, "step": 25})
    assert [stream.epoch, stream.step] == [3, 0]


def test_a_loop_left_in_the_last_batch_is_followed_by_a_full_epoch(dataset: Dataset) -> None:
    (stream,) = streams(dataset, 1)
    for _ in stream:
        if stream.step == len(stream):
            break
    assert stream.epoch == 0
    assert len([*stream]) == len(stream)
    assert stream.epoch == 2


def test_state_counts_given_batches_not_prefetched_ones(dataset: Dataset) -> None:
    (stream,) = streams(dataset, 1, prefetch=16)
    iterator = iter(stream)
    for expected in (1, 2, 3):
        next(iterator)
        assert stream.state_dict()["step"] == expected


def test_leaving_a_loop_and_starting_again_loses_nothing(dataset: Dataset) -> None:
    (whole,) = streams(dataset, 1)
    (broken,) = streams(dataset, 1)
    labels = [batch["label"].tolist() for batch in whole]
    again: list[list[int]] = []
    while len(again) < len(labels):
        for batch in broken:
            again.append(batch["label"].tolist())
            if len(again) % 7 == 0:
                break
    assert again == labels


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"seed": 4}, "seed is 3 in the state and 4 here"),
        ({"global_batch": 16}, "global_batch is 8 in the state and 16 here"),
        ({"lanes": 2}, "lanes is 8 in the state and 2 here"),
        ({"window": 1}, "window is 2 in the state and 1 here"),
        ({"shuffle": False}, "shuffle is True in the state and False here"),
    ],
)
def test_state_of_another_order_is_refused_with_both_values(
    dataset: Dataset, change: dict[str, Any], message: str
) -> None:
    (saved,) = streams(dataset, 1, lanes=8)
    (other,) = streams(dataset, 1, **{"lanes": 8, **change})
    with pytest.raises(DataError, match=message):
        other.load_state_dict(saved.state_dict())


def test_state_of_another_dataset_is_refused(dataset: Dataset, tmp_path: Path) -> None:
    other = make_dataset(tmp_path / "other", 204)
    (saved,) = streams(dataset, 1)
    (stream,) = streams(other, 1)
    with pytest.raises(DataError, match=f"dataset is '{dataset[1].hash}' in the state and '{other[1].hash}' here"):
        stream.load_state_dict(saved.state_dict())


def test_the_same_data_packed_again_accept_the_state(dataset: Dataset, tmp_path: Path) -> None:
    again = make_dataset(tmp_path / "again", 203)
    (saved,) = streams(dataset, 1)
    next(iter(saved))
    (stream,) = streams(again, 1)
    stream.load_state_dict(saved.state_dict())
    assert again[1].uuid != dataset[1].uuid
    assert stream.step == 1


@pytest.mark.parametrize(
    "change",
    [{"step": 26}, {"step": -1}, {"step": True}, {"step": "3"}, {"epoch": None}, {"epoch": 2**40}, {"version": 2},
     {"format": "x"}, {"seed": 3.0}],
)  # fmt: skip
def test_a_damaged_state_is_refused_and_changes_nothing(dataset: Dataset, change: dict[str, Any]) -> None:
    (stream,) = streams(dataset, 1)
    next(iter(stream))
    state = stream.state_dict()
    with pytest.raises(DataError):
        stream.load_state_dict({**state, **change})
    assert stream.state_dict() == state


@pytest.mark.parametrize("state", [None, [], "x", 3])
def test_what_is_no_state_at_all_is_refused(dataset: Dataset, state: Any) -> None:
    (stream,) = streams(dataset, 1)
    with pytest.raises(DataError, match="is no saved position"):
        stream.load_state_dict(state)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_digest_shares_add_up_to_the_expected_digest(dataset: Dataset, size: int) -> None:
    ranks = streams(dataset, size, lanes=4)
    shares = [[stream.batch_digest for _ in stream] for stream in ranks]
    for step, of_step in enumerate(zip(*shares, strict=True)):
        expected = expected_digest(dataset[1], global_batch=8, seed=3, lanes=4, epoch=0, step=step)
        assert combine_digests(list(of_step)) == expected


def test_a_world_size_that_does_not_fit_is_refused_with_the_allowed_ones(dataset: Dataset) -> None:
    with pytest.raises(SpecError, match="run on 1, 2, 4, 8 ranks"):
        streams(dataset, 3)


@pytest.mark.parametrize("size", [1, 3])
def test_what_a_stream_can_be_dealt_to_is_journalled_also_where_it_is_refused(dataset: Dataset, size: int) -> None:
    told: list[tuple[str, dict[str, Any]]] = []

    class Journalled(SimulatedWorld):
        def record(self, event: str, **fields: Any) -> None:
            told.append((event, fields))

    with contextlib.suppress(SpecError):
        ShardStream(dataset[0], global_batch=8, lanes=4, world=Journalled(0, size, []))
    assert told == [("stream", {"global_batch": 8, "lanes": 4})]


def test_ranks_with_different_seeds_are_refused(dataset: Dataset) -> None:
    class Disagreeing(SimulatedWorld):
        def allreduce(self, value: int | float, op: str = "sum") -> int | float:
            return value + (op == "max")  # what a rank sees if another one sent a larger number

    with pytest.raises(DataError, match="the ranks ask for different orders of samples"):
        ShardStream(dataset[0], global_batch=8, world=Disagreeing(0, 2, []))


def test_waiting_for_data_is_the_phase_data(dataset: Dataset) -> None:
    (world,) = simulated_worlds(1)
    list(ShardStream(dataset[0], global_batch=8, world=world, as_numpy=True))
    assert set(world.phases) == {"data"}
    assert len(world.phases) == 26


def test_a_second_loop_ends_the_first_with_an_error(dataset: Dataset) -> None:
    (stream,) = streams(dataset, 1)
    first, second = iter(stream), iter(stream)
    next(first)
    next(second)
    with pytest.raises(RuntimeError, match="another one began"):
        next(first)
    assert next(second)["label"].tolist() == stream.batch_ids.tolist()


def test_threads_end_with_their_loops(dataset: Dataset) -> None:
    def names() -> list[str]:
        return [thread.name for thread in threading.enumerate() if thread.name == "hpc-train-data"]

    (stream,) = streams(dataset, 1, prefetch=1)
    for _ in stream:
        assert names() == ["hpc-train-data"]
        break
    assert names() == []
    list(stream)
    iterator = iter(stream)
    next(iterator)
    del iterator
    assert names() == []
    iterator = iter(stream)
    next(iterator)
    stream.close()
    assert names() == []


def test_each_rank_opens_each_shard_it_uses_once_per_epoch(dataset: Dataset) -> None:
    (stream,) = streams(dataset, 1, shuffle=False)
    list(stream)
    assert stream._reader.num_opens == len(dataset[1].shards) - 1  # the last holds only dropped samples


@pytest.mark.parametrize("options", [{"lanes": 2, "window": 2}, {"lanes": 4, "window": 1, "global_batch": 12}])
def test_every_block_is_read_once_and_memory_stays_bounded(dataset: Dataset, options: dict[str, Any]) -> None:
    manifest = dataset[1]
    (stream,) = streams(dataset, 1, **options)
    list(stream)
    assert stream._reader.bytes_read <= manifest.num_samples * manifest.sample_bytes
    assert stream.max_buffer_bytes < manifest.num_samples * manifest.sample_bytes


@pytest.mark.parametrize("prefetch", [0, 1.5, 5000])
def test_prefetch_out_of_range_is_refused(dataset: Dataset, prefetch: Any) -> None:
    with pytest.raises(SpecError, match="prefetch = "):
        streams(dataset, 1, prefetch=prefetch)


def test_batch_facts_before_the_first_batch_are_refused(dataset: Dataset) -> None:
    (stream,) = streams(dataset, 1)
    with pytest.raises(SpecError, match="no batch has been given out yet"):
        _ = stream.batch_ids
    with pytest.raises(SpecError, match="no batch has been given out yet"):
        _ = stream.batch_digest
