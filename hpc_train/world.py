"""World: the little that data and checkpoints need to know of the ranks they run on.

A protocol of its own, so that neither room depends on MPI or torch: the bootstrap makes Worlds from MPI,
torch.distributed or a single process, tests make them too, and another trainer can bring its own.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol, TypeVar, runtime_checkable

from hpc_train.errors import UsageError

__all__ = ["ShownWorld", "SoloCollectives", "SoloWorld", "World", "alone", "on_nodes", "on_root"]

T = TypeVar("T")


@runtime_checkable
class World(Protocol):
    """The ranks of one attempt, seen from one of them.

    Attributes:  rank, size: global rank and number of ranks.   local_rank, local_size: the same within this node.
    node: host name.   device: torch device text ("cpu", "cuda:0").   attempt: number of the attempt, 0 outside a run.
    run_dir: the run's directory, None outside a run.   mpi: the mpi4py communicator (a duplicate that is the World's
    own) or None where there is no MPI.

    Methods marked collective must be called by all ranks in the same order; they block until all have come.
    Values sent are small (records, numbers): bulk data travels through files or torch.
    """

    @property
    def rank(self) -> int: ...
    @property
    def size(self) -> int: ...
    @property
    def local_rank(self) -> int: ...
    @property
    def local_size(self) -> int: ...
    @property
    def node(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def attempt(self) -> int: ...
    @property
    def run_dir(self) -> Path | None: ...
    @property
    def mpi(self) -> Any: ...

    def barrier(self) -> None:
        """Wait for all ranks. Collective."""

    def broadcast(self, value: T, root: int = 0) -> T:
        """The root's value on every rank. Collective."""

    def allgather(self, value: T) -> list[T]:
        """Every rank's value, in rank order, on every rank. Collective."""

    def allreduce(self, value: int | float, op: str = "sum") -> int | float:
        """Sum, "min" or "max" of one number over the ranks; integers stay exact (up to 64 bits). Collective."""

    def fence(self) -> None:
        """Raise Superseded if another attempt owns the run now. Reads one small file; not collective."""

    def record(self, event: str, **fields: Any) -> None:
        """Append an event to the run's journal. Only rank 0 writes; elsewhere and outside a run: nothing happens."""

    def phase(self, name: str, limit_s: float | None = None) -> AbstractContextManager[None]:
        """Tell the watchdog what this rank does now; after `limit_s` (None: the run's limit) it ends the rank."""


class ShownWorld:
    """How a World prints: what somebody who types `print(world)` wants to know."""

    def __repr__(self) -> str:
        """For people: MpiWorld(rank 1 of 4, local rank 1 of 2 on n3, device cpu, attempt 0 of run train-…)."""
        world: Any = self
        place = f"local rank {world.local_rank} of {world.local_size} on {world.node}, device {world.device}"
        run = "outside a run" if world.run_dir is None else f"attempt {world.attempt} of run {world.run_dir.name}"
        return f"{type(self).__name__}(rank {world.rank} of {world.size}, {place}, {run})"


class SoloCollectives:
    """Collectives of one rank: each returns at once."""

    def barrier(self) -> None:
        """Nothing to wait for."""

    def broadcast(self, value: T, root: int = 0) -> T:
        """The value itself."""
        return value

    def allgather(self, value: T) -> list[T]:
        """A list of the one value."""
        return [value]

    def allreduce(self, value: int | float, op: str = "sum") -> int | float:
        """The value itself."""
        return value


class SoloWorld(SoloCollectives, ShownWorld):
    """A World of one process outside any run: for laptops, notebooks and tools."""

    rank = 0
    size = 1
    local_rank = 0
    local_size = 1
    attempt = 0
    run_dir: Path | None = None
    mpi: Any = None

    def __init__(self, device: str = "cpu") -> None:
        self.device = device
        self.node = socket.gethostname()

    def fence(self) -> None:
        """Nobody else owns anything."""

    def record(self, event: str, **fields: Any) -> None:
        """No journal outside a run."""

    @contextlib.contextmanager
    def phase(self, name: str, limit_s: float | None = None) -> Iterator[None]:
        """No watchdog outside a run."""
        yield


def alone(what: str) -> SoloWorld:
    """The World of a piece that was given none: this process, unless it is one of several ranks.

    Raises: UsageError under torchrun, mpirun or srun with more than one rank, and beside an initialised process group
    of several: each rank would take itself for the whole run, and write over the others' files without a word.
    """
    names = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")
    sizes = [int(text) for name in names if (text := os.environ.get(name, "")).isdecimal()]
    dist = sys.modules.get("torch.distributed")
    if dist is not None and dist.is_available() and dist.is_initialized():
        sizes.append(dist.get_world_size())
    if max(sizes, default=1) > 1:
        raise UsageError(
            f"{what} was given no world, but this is one of {max(sizes)} ranks: pass world=hpc_train.init(), or "
            "world=hpc_train.SoloWorld() if each rank really works alone"
        )
    return SoloWorld()


def on_root(world: World, act: Callable[[], T]) -> T:
    """Run `act` on rank 0 only and give its result, or raise its error, on every rank alike. Collective.

    Without it a failure on rank 0 alone leaves the other ranks waiting in the next collective.
    Raises: what `act` raised, with the same type on all ranks (it must be picklable, as our errors are).
    """
    outcome: tuple[bool, Any] = (True, None)
    if world.rank == 0:
        try:
            outcome = (True, act())
        except Exception as error:  # noqa: BLE001 - carried to all ranks and raised there
            outcome = (False, error)
    is_good, value = world.broadcast(outcome)
    if not is_good:
        raise value
    result: T = value
    return result


def on_nodes(world: World, act: Callable[[], None]) -> None:
    """Run `act` on one rank of each node, and raise the first error on every rank alike. Collective.

    It begins when all ranks have come, so that what a node's other ranks have done is done.
    Raises: what `act` raised on the first node where it failed (it must be picklable, as our errors are).
    """
    error: Exception | None = None
    world.barrier()
    if world.local_rank == 0:
        try:
            act()
        except Exception as problem:  # noqa: BLE001 - carried to all ranks and raised there
            error = problem
    for failed in world.allgather(error):
        if failed is not None:
            raise failed
