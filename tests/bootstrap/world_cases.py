"""What every kind of World promises; the same cases for MPI, torch.distributed and one process alone."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hpc_train.checkpoint import Checkpointer
from hpc_train.errors import DataError, UsageError
from hpc_train.world import World, on_root


def case_is_a_world(world: World, tmp_path: Path) -> None:
    assert isinstance(world, World)
    assert world.allgather(world.rank) == list(range(world.size))


def case_knows_its_node(world: World, tmp_path: Path) -> None:
    on_node = [rank for rank, node in enumerate(world.allgather(world.node)) if node == world.node]
    assert world.local_size == len(on_node)
    assert world.local_rank == on_node.index(world.rank)


def case_prints_what_it_is(world: World, tmp_path: Path) -> None:
    text = str(world)
    assert text.startswith(
        f"{type(world).__name__}(rank {world.rank} of {world.size}, local rank {world.local_rank} of "
    )
    assert text.endswith(f" on {world.node}, device cpu, outside a run)")


def case_is_outside_any_run(world: World, tmp_path: Path) -> None:
    assert (world.run_dir, world.attempt, world.device) == (None, 0, "cpu")
    world.fence()
    world.record("step", step=1)


def case_broadcast_gives_every_roots_value(world: World, tmp_path: Path) -> None:
    for root in range(world.size):
        value = {"rank": world.rank, "list": [None, 1.5, "ü", b"\x00"]} if world.rank == root else None
        assert world.broadcast(value, root) == {"rank": root, "list": [None, 1.5, "ü", b"\x00"]}
    assert world.broadcast(None) is None


def case_allgather_keeps_rank_order_and_kinds(world: World, tmp_path: Path) -> None:
    values = [None, 2.5, ("a", 1), "x" * 100_000]
    assert world.allgather(values[world.rank % 4]) == [values[rank % 4] for rank in range(world.size)]


def case_allreduce_of_integers_is_exact(world: World, tmp_path: Path) -> None:
    large = (1 << 60) + world.rank  # beyond what a float holds
    assert world.allreduce(large, "max") == (1 << 60) + world.size - 1
    assert world.allreduce(large, "min") == 1 << 60
    assert world.allreduce((1 << 55) + world.rank) == world.size * (1 << 55) + sum(range(world.size))
    assert isinstance(world.allreduce(1), int)


def case_allreduce_of_floats(world: World, tmp_path: Path) -> None:
    assert world.allreduce(0.5 * world.rank, "max") == 0.5 * (world.size - 1)
    assert world.allreduce(0.5) == 0.5 * world.size
    assert isinstance(world.allreduce(0.5), float)


def case_allreduce_takes_integers_and_floats_of_any_sign_together(world: World, tmp_path: Path) -> None:
    last = world.size - 1
    assert world.allreduce(world.rank - 5, "max") == last - 5
    assert world.allreduce(world.rank - 5, "min") == -5
    assert world.allreduce(-(1 << 63), "min") == world.allreduce(-(1 << 63), "max") == -(1 << 63)
    assert world.allreduce(0.25 if world.rank == 0 else world.rank, "max") == (last or 0.25)
    assert world.allreduce(0.25 if world.rank == 0 else world.rank, "min") == 0.25
    assert world.allreduce(0.25 if world.rank == 0 else world.rank) == 0.25 + sum(range(world.size))


def case_barrier_waits_for_all(world: World, tmp_path: Path) -> None:
    (tmp_path / str(world.rank)).touch()
    world.barrier()
    assert len(list(tmp_path.iterdir())) == world.size
    world.barrier()


def case_on_root_gives_its_value_to_all(world: World, tmp_path: Path) -> None:
    calls: list[int] = []

    def act() -> int:
        calls.append(world.rank)
        return 42

    assert on_root(world, act) == 42
    assert calls == ([0] if world.rank == 0 else [])


def case_on_root_raises_the_same_error_on_all(world: World, tmp_path: Path) -> None:
    def fail() -> None:
        raise DataError("shard-3.h5: damaged")

    with pytest.raises(DataError, match="damaged"):
        on_root(world, fail)
    assert world.allgather(1) == [1] * world.size  # nobody was left behind


def case_phases_nest(world: World, tmp_path: Path) -> None:
    with world.phase("outer", 60), world.phase("inner"):
        world.barrier()


def case_ranks_in_different_calls_are_told_which_ranks_are_where(world: World, tmp_path: Path) -> None:
    def save() -> Any:
        return Checkpointer(tmp_path / "root", world=world).save(1, {"m": {"v": 1}})

    def load() -> Any:
        return Checkpointer(tmp_path / "root", world=world).load({"m": {"v": 1}})

    if world.size == 1:
        return  # it is with itself in whatever it calls
    here = Path(__file__).name
    last = world.size - 1
    others = "rank 0" if last == 1 else f"ranks 0-{last - 1}"
    pairs: list[tuple[Callable[[], Any], Callable[[], Any]]] = [
        (save, world.barrier),
        (world.barrier, save),
        (save, load),
        (load, lambda: world.broadcast(None)),
        (save, lambda: world.allgather(None)),
        (lambda: world.allreduce(1), lambda: world.allgather(1)),
        (lambda: world.allreduce(1), lambda: world.allreduce(1, "max")),
        (lambda: world.broadcast(1), lambda: world.broadcast(1, last)),
        (lambda: on_root(world, int), lambda: world.broadcast(0)),
    ]
    for of_last, of_others in pairs:
        told = rf"in different calls .*{others} in .*{here}.*; rank {last} in .*{here}"
        with pytest.raises(UsageError, match=told) as caught:
            (of_last if world.rank == last else of_others)()
        texts = world.allgather(str(caught.value))  # nobody was left behind
        assert len(set(texts)) == 1
    assert list(tmp_path.iterdir()) == []


def case_a_threads_call_is_not_taken_for_that_of_the_main_thread(world: World, tmp_path: Path) -> None:
    if world.size == 1:
        return
    found: list[Any] = []

    def gather() -> None:
        try:
            found.append(world.allgather("mine"))
        except UsageError as error:
            found.append(error)

    if world.rank == 0:
        thread = threading.Thread(target=gather)
        thread.start()
        thread.join()
    else:
        gather()
    assert [type(each) for each in found] == [UsageError], found
    assert "allgather, in a thread of its own" in str(found[0]) and "none in a thread beside others" in str(found[0])


def case_two_threads_get_their_own_values_or_an_error(world: World, tmp_path: Path) -> None:
    wrong: list[Any] = []

    def gather(who: str) -> None:
        with contextlib.suppress(UsageError):  # where they come in another order on another rank
            for number in range(100):
                if (found := world.allgather((who, number))) != [(who, number)] * world.size:
                    wrong.append((who, number, found))

    thread = threading.Thread(target=gather, args=["thread"])
    thread.start()
    gather("main")
    thread.join()
    assert not wrong
    assert world.allgather(1) == [1] * world.size  # nobody was left behind


def case_ranks_may_come_to_one_call_by_different_ways_of_their_own(world: World, tmp_path: Path) -> None:
    value = world.broadcast("told") if world.rank == 0 else world.broadcast(None)
    assert value == "told"
    if world.rank:
        assert on_root(world, lambda: 1) == 1
    else:
        assert on_root(world, lambda: 1) == 1
