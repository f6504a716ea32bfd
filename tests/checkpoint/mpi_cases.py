"""Cases that run on real ranks under mpirun: see tests/support/ranks.py."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

from hpc_train.bootstrap.mpi import MpiWorld
from hpc_train.checkpoint import Checkpointer, list_checkpoints, rng_state, verify_checkpoint
from hpc_train.errors import CheckpointError
from hpc_train.world import SoloWorld


def _state(seed: int = 0) -> dict[str, Any]:
    draw = np.random.default_rng(seed)
    return {
        "model": {f"w{i}": draw.standard_normal((i + 1, 37)).astype(np.float32) for i in range(40)},
        "big": {"a": draw.integers(0, 255, (5 << 20) + 3, np.uint8), "b": draw.standard_normal(3 << 20)},
        "train": {"epoch": seed, "seen": [1, (2, 3)]},
    }


def _assert_equal(one: dict[str, Any], other: dict[str, Any]) -> None:
    for part in ("model", "big"):
        for key, value in one[part].items():
            np.testing.assert_array_equal(value, other[part][key])
    assert one["train"] == other["train"]


def case_saved_state_loads_back_equal_and_both_writers_make_the_same_bytes(world: MpiWorld, tmp_path: Path) -> None:
    saved = _state(3)
    for writer in ("mpiio", "posix"):
        Checkpointer(tmp_path / writer, world=world, writer=writer).save(7, saved, per_rank={"mine": {"r": world.rank}})
    live, mine = _state(4), {"mine": {"r": -1}}
    assert Checkpointer(tmp_path / "mpiio", world=world).load(live, per_rank=mine) == 7
    _assert_equal(live, saved)
    assert mine["mine"]["r"] == world.rank
    one, other = (tmp_path / writer / "step-000000007" for writer in ("mpiio", "posix"))
    names = sorted(os.listdir(one))
    assert names == sorted(os.listdir(other))
    for name in names:
        if name != "COMMIT":
            assert (one / name).read_bytes() == (other / name).read_bytes(), name
    world.barrier()


def case_every_rank_writes_its_share(world: MpiWorld, tmp_path: Path) -> None:
    from hpc_train.checkpoint.layout import Spec, plan_layout

    state = _state()
    specs = [Spec(name, "F32", value.shape) for name, value in state["model"].items()]
    specs += [Spec("a", "U8", state["big"]["a"].shape), Spec("b", "F64", state["big"]["b"].shape)]
    layout = plan_layout(specs, [], world_size=world.size)
    shares = [sum(piece.nbytes for piece in layout.pieces if piece.rank == rank) for rank in range(world.size)]
    assert min(shares) > 0
    assert max(shares) - min(shares) <= 2 * (8 << 20)


def case_a_rank_that_describes_another_state_fails_all_ranks_alike(world: MpiWorld, tmp_path: Path) -> None:
    checkpoint = Checkpointer(tmp_path / "root", world=world)
    if world.size == 1:
        return
    odd = np.zeros((2, 2 + (world.rank == world.size - 1)), np.float32)
    with pytest.raises(
        CheckpointError, match=rf"rank {world.size - 1} of {world.size}: .*'model.odd'.*\[2, 3\]"
    ) as one:
        checkpoint.save(1, {"model": {"odd": odd}})
    assert len(set(world.allgather(str(one.value)))) == 1
    with pytest.raises(CheckpointError, match=r"value 'train\.loss'"):
        checkpoint.save(1, {"train": {"loss": float(world.rank)}})
    with pytest.raises(CheckpointError, match="per_rank"):
        checkpoint.save(1, {"train": {}}, per_rank={"r": {}} if world.rank else None)
    assert list_checkpoints(tmp_path / "root") == []


class _Breaks:
    def __init__(self, is_broken: bool) -> None:
        self.is_broken = is_broken

    def state_dict(self) -> dict[str, int]:
        if self.is_broken:
            raise RuntimeError("no state today")
        return {"x": 1}


def case_a_rank_that_fails_while_planning_fails_all_ranks_alike(world: MpiWorld, tmp_path: Path) -> None:
    last = world.size - 1
    with pytest.raises(CheckpointError, match="no state today") as error:
        Checkpointer(tmp_path / "root", world=world).save(1, {"part": _Breaks(world.rank == last)})
    assert world.size == 1 or f"rank {last} of" in str(error.value)


def case_each_rank_gets_its_own_random_streams_back(world: MpiWorld, tmp_path: Path) -> None:
    np.random.seed(100 + world.rank)
    checkpoint = Checkpointer(tmp_path / "root", world=world)
    checkpoint.save(5, {}, per_rank={"rng": rng_state()})
    expected = np.random.random(4).tolist()
    np.random.seed(0)
    assert checkpoint.load({}, per_rank={"rng": rng_state()}) == 5
    assert np.random.random(4).tolist() == expected
    streams = world.allgather(expected)
    assert len({tuple(stream) for stream in streams}) == world.size


def _draws() -> tuple[float, ...]:
    """The next random numbers of this rank, of both generators; the generators stay where they are."""
    python, of_numpy = random.getstate(), np.random.get_state()
    drawn = (*(random.random() for _ in range(3)), *np.random.random(3).tolist())
    random.setstate(python)
    np.random.set_state(of_numpy)
    return drawn


def case_at_another_size_ranks_keep_their_own_streams_and_new_ones_get_streams_that_nobody_had(
    world: MpiWorld, tmp_path: Path
) -> None:
    # NVIDIA/Megatron-LM#6858: 252 of 256 ranks went on with another rank's stream.
    random.seed(world.rank)
    np.random.seed(world.rank)
    ever = set(world.allgather(_draws()))
    saved: list[tuple[float, ...]] = []
    half = max(1, world.size // 2)
    sizes = [world.size, half, 1, world.size, half, world.size]  # the last has new ranks a second time
    for step, size in enumerate(sizes, start=1):
        comm = MPI.Intracomm(world.mpi.Split(0 if world.rank < size else 1, world.rank))
        part = MpiWorld(comm)
        checkpoint = Checkpointer(tmp_path / "root", world=part)
        streams: list[tuple[float, ...]] = []
        if world.rank < size:
            live = {"model": {"w": np.zeros(5000, np.float32)}}
            for _ in range(2):  # the same each time
                assert checkpoint.load(live, per_rank={"rng": rng_state()}) == (step - 1 or None)
                assert not streams or streams == part.allgather(_draws())
                streams = part.allgather(_draws())
            assert len(set(streams)) == size
            assert streams[: len(saved)] == saved[:size]
            assert step == 1 or not ever & set(streams[len(saved) :])
            ever |= set(part.allgather(_draws()))
            assert (live["model"]["w"] == step - 1).all()
            live["model"]["w"] += 1
            random.random(), np.random.random()
            streams = part.allgather(_draws())
            checkpoint.save(step, live, per_rank={"rng": rng_state()})
        saved = world.broadcast(streams)
        ever |= set(saved)
        comm.Free()


def case_damage_seen_by_the_ranks_makes_all_fall_back(world: MpiWorld, tmp_path: Path) -> None:
    checkpoint = Checkpointer(tmp_path / "root", world=world)
    checkpoint.save(1, _state(1))
    path = checkpoint.save(2, _state(2))
    if world.rank == 0:
        with open(path / "data-00000.safetensors", "r+b") as file:
            file.seek(-1, os.SEEK_END)
            last = file.read(1)[0]
            file.seek(-1, os.SEEK_END)
            file.write(bytes([last ^ 1]))
    world.barrier()
    live = _state(9)
    assert Checkpointer(tmp_path / "root", world=world).load(live) == 1
    _assert_equal(live, _state(1))
    assert not verify_checkpoint(path).is_good


def case_another_world_size_is_refused_for_rank_state_that_cannot_begin_anew(world: MpiWorld, tmp_path: Path) -> None:
    if world.rank == 0:
        # One process alone: a world of size 1.
        Checkpointer(tmp_path / "root", world=SoloWorld()).save(3, _state(3), per_rank={"mine": {"x": 1}})
    world.barrier()
    if world.size == 1:
        return
    live = _state(0)
    checkpoint = Checkpointer(tmp_path / "root", world=world)
    for on_resize in ("reseed", "refuse"):
        with pytest.raises(CheckpointError, match="saved by 1 rank,"):
            checkpoint.load(live, per_rank={"mine": {"x": 0}}, per_rank_on_resize=on_resize)
    with pytest.raises(CheckpointError, match=r"per_rank 'mine' has no load_resized\(\)"):
        checkpoint.load(live, per_rank={"random": rng_state(), "mine": {"x": 0}})
    with pytest.raises(CheckpointError, match="saved by 1 rank,"):
        checkpoint.load(live, per_rank={"random": rng_state()}, per_rank_on_resize="refuse")
    _assert_equal(live, _state(0))
    mine = {"mine": {"x": 0}}
    assert checkpoint.load(live, per_rank=mine, per_rank_on_resize="skip") == 3
    assert mine == {"mine": {"x": 0}}
    _assert_equal(live, _state(3))
