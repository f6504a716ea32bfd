"""The rendezvous for unmodified `env://` programs: a store hosted by the shim, on a port that the kernel chose.

Apart because it is torchrun's contract and nothing of ours: MASTER_ADDR and MASTER_PORT name a store that already
listens (TORCHELASTIC_USE_AGENT_STORE), so no two jobs can clash over a port. Rank 0 publishes the address through the
attempt's directory. torch is imported only here, and only by programs that use it.
"""

from __future__ import annotations

import importlib
import importlib.util
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hpc_train.errors import BootstrapError
from hpc_train.files import read_json, write_json
from hpc_train.launch.failure import one_line
from hpc_train.launch.identity import Identity
from hpc_train.launch.network import choose_interface, interface_towards, list_interfaces
from hpc_train.launch.page import FINISHED, Page

__all__ = [
    "host_store",
    "join_rendezvous",
    "keep_store",
    "rendezvous_address",
    "require_reachable",
    "start_store_process",
    "torch_is_installed",
]

# Rank 0 imports torch from a cold parallel file system in this time. Should it fail instead, the launcher ends us.
WAIT_S = 600.0
# A store that listens answers at once, but of ten thousand ranks that connect together some ask several times.
REACH_S = 120.0

_stores: list[Any] = []  # kept to the end of the process: other ranks may still ask while they shut down


def rendezvous_address(identity: Identity, wanted: tuple[str, ...]) -> tuple[str, str]:
    """Address and interface name by which the other ranks reach this one (loopback where there is one node)."""
    if identity.num_nodes == 1 and identity.local_size == identity.size:
        return "127.0.0.1", "lo"
    chosen = choose_interface(list_interfaces(), wanted)
    if chosen is None:
        raise BootstrapError("no network interface but loopback on this node; name one in the site's rendezvous")
    return chosen.address, chosen.name


def host_store(address: str) -> Any:
    """A torch TCPStore that listens on a port the kernel chose. Imports torch; keep the result alive."""
    dist: Any = importlib.import_module("torch.distributed")  # which does not declare the names it gives
    return dist.TCPStore(address, 0, is_master=True, wait_for_workers=False)


def join_rendezvous(
    path: Path, identity: Identity, *, wanted: tuple[str, ...], hosted: bool, reach_s: float = REACH_S
) -> None:
    """Set MASTER_ADDR, MASTER_PORT and the store's variables of this process. Blocks until rank 0 has published.

    Args:  path: the attempt's rendezvous record.   hosted: a process of its own hosts the store (not this one).
    reach_s: how long the published address is tried.
    Raises: BootstrapError if rank 0 publishes nothing within WAIT_S, if this rank cannot reach what it published, or if
    the node has only loopback.
    """
    if identity.rank == 0 and not hosted:
        address, _ = rendezvous_address(identity, wanted)
        store = host_store(address)
        _stores.append(store)
        write_json(path, {"address": address, "port": store.port})
    elif not hosted:
        importlib.import_module("torch")  # the program will need it: use the time until rank 0 is up
    record = _await_record(path)
    if identity.rank != 0:
        require_reachable(record["address"], record["port"], rank=identity.rank, limit_s=reach_s)
    os.environ["MASTER_ADDR"] = record["address"]
    os.environ["MASTER_PORT"] = str(record["port"])
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    _set_interface(record["address"])


def keep_store(page: Page, is_unneeded: Callable[[], bool], owner: int) -> None:
    """Exit hook of rank 0, whose process hosts the store: stay until the other ranks have ended too.

    torchrun's agent outlives its programs, and NCCL's threads, for one, look at the store to the end. After a failure
    nobody is waited for.

    Args:  owner: PID of the program; a fork of it that runs exit hooks does not wait.
    """
    pause = 0.02
    while os.getpid() == owner:
        seen = page.read()
        if seen.state != FINISHED or seen.failure or is_unneeded():
            return
        time.sleep(pause)
        pause = min(pause * 1.5, 1.0)


def _set_interface(address: str) -> None:
    # Gloo takes exactly one concrete name, and by default resolves the host's name, which may be loopback.
    interface = interface_towards(list_interfaces(), address)
    if interface is not None:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface.name)


def require_reachable(address: str, port: int, *, rank: int, limit_s: float = REACH_S) -> None:
    """Connect once to what rank 0 hosts: torch would try for long, and not say who cannot reach whom.

    Raises: BootstrapError if nothing answers within `limit_s`.
    """
    deadline = time.monotonic() + limit_s
    while True:
        try:
            socket.create_connection((address, port), max(0.1, deadline - time.monotonic())).close()
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise BootstrapError(
                    f"rank {rank} on {socket.gethostname()} cannot reach rank 0 at {address}:{port} "
                    f"({one_line(error)}); name an interface that all nodes share in the site's rendezvous.interfaces"
                ) from error
        time.sleep(min(1.0, limit_s / 10))


def _await_record(path: Path) -> dict[str, Any]:
    deadline = time.monotonic() + WAIT_S
    pause = 0.02
    while True:
        try:
            record = read_json(path, limit=4096)
            return {"address": str(record["address"]), "port": int(record["port"])}
        except FileNotFoundError:
            pass
        except (ValueError, KeyError, TypeError) as error:
            raise BootstrapError(f"{path}: the rendezvous record is damaged ({error})") from error
        if time.monotonic() > deadline:
            raise BootstrapError(f"rank 0 published no rendezvous at {path} within {WAIT_S:.0f} s; see rank 0's log")
        time.sleep(pause)
        pause = min(pause * 1.5, 1.0)  # a stat a second and rank is the most that a shared file system sees


def torch_is_installed() -> bool:
    """Whether this interpreter could import torch; imports nothing."""
    return importlib.util.find_spec("torch") is not None


def start_store_process(path: Path, identity: Identity, wanted: tuple[str, ...]) -> subprocess.Popen[bytes]:
    """Host the store in a process of its own, for programs that are not Python. It ends with its parent."""
    address, _ = rendezvous_address(identity, wanted)
    argv = [sys.executable, "-m", "hpc_train.launch.rendezvous", str(path), address]
    return subprocess.Popen(argv, stdin=subprocess.PIPE)


def _serve() -> None:
    path, address = Path(sys.argv[1]), sys.argv[2]
    store = host_store(address)
    write_json(path, {"address": address, "port": store.port})
    sys.stdin.read()  # until the parent ends, however it ends


if __name__ == "__main__":
    _serve()
