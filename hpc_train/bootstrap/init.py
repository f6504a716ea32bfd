"""`hpc_train.init()`: one call that finds the ranks, however the program was started.

Apart because it acts on the choice between MPI, torch and alone; the Worlds themselves do not choose.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

from hpc_train.bootstrap.attachment import find_attachment
from hpc_train.bootstrap.choice import Choice, choose
from hpc_train.errors import SpecError
from hpc_train.launch.identity import Identity
from hpc_train.launch.network import interface_towards, list_interfaces
from hpc_train.launch.page import attached_page
from hpc_train.launch.rendezvous import REACH_S, rendezvous_address, require_reachable
from hpc_train.world import World, on_root

__all__ = ["init"]

_world: World | None = None


def init(*, process_group: bool | None = None, timeout_s: float = 1800.0) -> World:
    """The World of this process: from MPI, from torch, or alone, by what started it. Collective; idempotent.

    Args:  process_group: also initialise torch.distributed's default group (nccl with a GPU a rank, else gloo) over a
    store on a kernel-chosen port; None does so if torch is installed and there is more than one rank.
    timeout_s: of the collectives of torch's default group and, under a run, of the start of MPI or torch. Our own
    watchdog ends a stuck rank earlier, if it is set lower. The World's collectives, in which ranks wait for those that
    still save, have no limit but the watchdog's.
    Returns: the same World on every later call.
    Raises: SiteError if the ranks found are not those declared, or MPI cannot start here; SpecError if nothing joins
    several ranks, or in a process that a rank of MPI has spawned; BootstrapError if they cannot reach each other;
    Superseded if another attempt owns the run.
    """
    global _world
    if _world is None:
        _world = _find_world(process_group, timeout_s)
    return _world


def _find_world(process_group: bool | None, timeout_s: float) -> World:
    has_torch = importlib.util.find_spec("torch") is not None
    choice = choose(
        os.environ,
        has_mpi4py=importlib.util.find_spec("mpi4py") is not None,
        has_torch=has_torch,
        group_size=_size_of_group(),
    )
    if choice.kind == "mpi":
        return _mpi_world(choice, has_torch if process_group is None else process_group, timeout_s)
    return _torch_world(timeout_s) if choice.kind == "torch" else _alone()


def _size_of_group() -> int:
    dist = sys.modules.get("torch.distributed")  # one that nobody has imported has no group
    if dist is None or not dist.is_available() or not dist.is_initialized():
        return 1
    return int(dist.get_world_size())


def _alone() -> World:
    from hpc_train.bootstrap.solo import AttachedSoloWorld

    world = AttachedSoloWorld(find_attachment(0))
    world.device = _device(0)
    return world


def _device(local_rank: int) -> str:
    if "torch" not in sys.modules:  # without torch there is no device to choose
        return "cpu"
    import torch

    # local rank modulo what is visible: --gpus-per-task makes one GPU visible to each rank, always number 0
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return f"cuda:{local_rank % count}" if count else "cpu"


def _mpi_world(choice: Choice, with_group: bool, timeout_s: float) -> World:
    from hpc_train.bootstrap.mpi import MpiWorld, require_company, start_mpi

    _refuse_in_worker()
    with _limited("start of MPI", timeout_s):
        comm = start_mpi(choice.mode, os.environ.get("HPC_TRAIN_MPI_FLAVOUR", ""))
    require_company(comm, choice.size, choice.mode)
    world = MpiWorld(comm)
    if with_group and world.size > 1:
        _join_group_over_mpi(world, timeout_s)
    world.device = _device(world.local_rank)
    return world


def _refuse_in_worker() -> None:
    """A spawned process imports the program again: to MPI it would be its rank once more, and both would crash."""
    if getattr(sys.modules.get("__mp_main__"), "__name__", "") == "__mp_main__":  # in a rank it is another name of main
        raise SpecError(
            "hpc_train.init() was called in a process that multiprocessing started, as a data worker: it imports the "
            'program again. Put all but definitions under `if __name__ == "__main__":`, or have data workers forked'
        )


@contextlib.contextmanager
def _limited(phase: str, limit_s: float) -> Iterator[None]:
    """A phase before there is a World: a rank that is killed before it gets there is waited for by all others."""
    page = attached_page()
    key = page.enter(phase, limit_s) if page is not None else 0
    try:
        yield
    finally:
        if page is not None:
            page.leave(key)


def _join_group_over_mpi(world: World, timeout_s: float) -> None:
    """torch's default group over a store on rank 0; address and port travel by MPI, so nothing can clash."""
    dist: Any = importlib.import_module("torch.distributed")  # which does not declare the names it gives
    if dist.is_initialized():
        return
    hosted: list[Any] = []

    def host() -> tuple[str, int]:
        wanted = tuple(filter(None, os.environ.get("HPC_TRAIN_INTERFACES", "").split(",")))
        address, _ = rendezvous_address(_identity(world), wanted)
        hosted.append(dist.TCPStore(address, 0, is_master=True, wait_for_workers=False))
        return address, hosted[0].port

    address, port = on_root(world, host)
    interface = interface_towards(list_interfaces(), address)
    if interface is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface.name)
    if not hosted:
        require_reachable(address, port, rank=world.rank, limit_s=min(timeout_s, REACH_S))
    store = hosted[0] if hosted else dist.TCPStore(address, port, is_master=False)
    dist.init_process_group(
        _backend(world.local_rank, _has_own_gpu(world)),
        store=dist.PrefixStore(f"hpc-train-{world.attempt}", store),
        rank=world.rank,
        world_size=world.size,
        timeout=timedelta(seconds=timeout_s),
    )


def _identity(world: World) -> Identity:
    num_nodes = 1 if world.local_size == world.size else 2  # that there are others is all that matters here
    return Identity(world.rank, world.size, world.local_rank, world.local_size, 0, num_nodes)


def _has_own_gpu(world: World) -> bool:
    """Whether every rank has a GPU that no other rank has: NCCL refuses two ranks on one. Collective."""
    import torch

    mine = ""
    if torch.cuda.is_available():
        number = world.local_rank % torch.cuda.device_count()
        mine = f"{world.node} {getattr(torch.cuda.get_device_properties(number), 'uuid', number)}"
    taken = world.allgather(mine)
    return "" not in taken and len(set(taken)) == len(taken)


def _backend(local_rank: int, has_own_gpu: bool) -> str:
    import torch

    if torch.cuda.is_available():
        torch.cuda.set_device(local_rank % torch.cuda.device_count())
    return "cpu:gloo,cuda:nccl" if has_own_gpu else "gloo"


def _torch_world(timeout_s: float) -> World:
    import torch
    import torch.distributed as dist

    from hpc_train.bootstrap.torch_world import TorchWorld

    if not dist.is_initialized():
        local_rank = int(os.environ.get("LOCAL_RANK", "0"))
        # Whether each rank's GPU is its own cannot be asked before there is a group; NCCL refuses where it is not.
        backend = _backend(local_rank, torch.cuda.is_available())
        dist.init_process_group(backend, timeout=timedelta(seconds=timeout_s))
    with _limited("start of torch's group", timeout_s):
        world = TorchWorld()
    world.device = _device(world.local_rank)
    return world
