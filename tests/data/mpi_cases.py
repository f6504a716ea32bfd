"""What real ranks do together with one dataset; run by test_ranks.py under mpirun."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from hpc_train.data import ShardStream, expected_digest, read_manifest
from hpc_train.data.order import combine_digests
from hpc_train.errors import DataError, SpecError, UsageError
from hpc_train.world import SoloWorld, World
from tests.data.datasets import flip_bit, make_dataset


def shared_dataset(world: World, path: Path) -> Path:
    """A dataset that rank 0 makes."""
    if world.rank == 0:
        make_dataset(path / "set", 203)
    world.barrier()
    return path / "set"


def case_ranks_get_disjoint_parts_that_make_the_global_batch(world: World, tmp_path: Path) -> None:
    path = shared_dataset(world, tmp_path)
    alone = ShardStream(path, global_batch=8, seed=3, world=SoloWorld(), as_numpy=True)
    stream = ShardStream(path, global_batch=8, seed=3, world=world, as_numpy=True)
    for step, (whole, part) in enumerate(zip(alone, stream, strict=True)):
        assert part["label"].tolist() == stream.batch_ids.tolist()
        parts = world.allgather(part["label"].tolist())
        assert [label for each in parts for label in each] == whole["label"].tolist()
        expected = expected_digest(read_manifest(path), global_batch=8, seed=3, epoch=0, step=step)
        assert combine_digests(world.allgather(stream.batch_digest)) == expected
    states = world.allgather(stream.state_dict())
    assert all(state == states[0] for state in states)


def case_a_missing_dataset_is_the_same_error_on_all_ranks(world: World, tmp_path: Path) -> None:
    with pytest.raises(DataError) as caught:
        ShardStream(tmp_path / "nowhere", global_batch=8, world=world)
    texts = world.allgather(str(caught.value))
    assert len(set(texts)) == 1
    assert "nowhere: no such directory" in texts[0]


def case_a_missing_shard_is_the_same_error_on_all_ranks(world: World, tmp_path: Path) -> None:
    path = shared_dataset(world, tmp_path)
    name = read_manifest(path).shards[2].name
    world.barrier()
    if world.rank == 0:
        (path / name).unlink()
    with pytest.raises(DataError, match=f"{name}: No such file") as caught:
        ShardStream(path, global_batch=8, world=world)
    assert len(set(world.allgather(str(caught.value)))) == 1


def case_a_damaged_manifest_is_the_same_error_on_all_ranks(world: World, tmp_path: Path) -> None:
    path = shared_dataset(world, tmp_path)
    if world.rank == 0:
        flip_bit(path / "manifest.json", 0)
    with pytest.raises(DataError, match="or damaged") as caught:
        ShardStream(path, global_batch=8, world=world)
    assert len(set(world.allgather(str(caught.value)))) == 1


def case_seeds_that_differ_are_refused_on_all_ranks(world: World, tmp_path: Path) -> None:
    path = shared_dataset(world, tmp_path)
    if world.size == 1:
        return  # one rank agrees with itself
    with pytest.raises(DataError, match="different orders of samples"):
        ShardStream(path, global_batch=8, seed=world.rank, world=world)


def case_a_world_size_that_does_not_fit_is_refused_on_all_ranks(world: World, tmp_path: Path) -> None:
    path = shared_dataset(world, tmp_path)
    if world.size == 1:
        return  # one rank always fits
    with pytest.raises(SpecError, match="run on 1 ranks, or choose"):
        ShardStream(path, global_batch=7, lanes=1, world=world)


def case_a_stream_of_several_ranks_is_not_sent_to_workers(world: World, tmp_path: Path) -> None:
    stream = ShardStream(shared_dataset(world, tmp_path), global_batch=8, world=world)
    with pytest.raises(UsageError, match="cannot be copied or sent to another process: iterate it"):
        pickle.dumps(stream)
