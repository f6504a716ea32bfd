"""A program that fails in many true ways and writes what Python printed of each into a log of its own."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any


def memory() -> Any:
    """numpy asks for more than there is."""
    import numpy as np

    return np.ones((1 << 24, 1 << 24))


def disk() -> None:
    """A full device."""
    with open("/dev/full", "w") as file:
        file.write("x")


def module() -> None:
    """A module that nobody has installed."""
    import module_of_no_one  # type: ignore[import-not-found]  # noqa: F401


def truncated() -> None:
    """A half copied HDF5 file."""
    import h5py

    with h5py.File("whole.h5", "w") as file:
        file["x"] = list(range(10_000))
    os.truncate("whole.h5", 4000)
    h5py.File("whole.h5")


def no_hdf5() -> None:
    """Another kind of file."""
    import h5py

    Path("text.h5").write_text("version https://git-lfs.github.com/spec/v1\n")
    h5py.File("text.h5")


def locked() -> None:
    """A file that another process writes."""
    import h5py

    with h5py.File("busy.h5", "w"):
        argv = [sys.executable, "-c", "import h5py; h5py.File('busy.h5')"]
        done = subprocess.run(argv, stderr=subprocess.PIPE, text=True, check=False)
    Path("locked.log").write_text(done.stderr)


def missing_hdf5() -> None:
    """No file at all."""
    import h5py

    h5py.File("nowhere.h5")


def files() -> None:
    """More open files than the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened = []
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, hard))
    try:
        while True:
            opened.append(open("/dev/null"))  # noqa: SIM115
    finally:
        for file in opened:
            file.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def no_gpu() -> Any:
    """A build without CUDA, or a machine without GPUs."""
    import torch

    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    return torch.zeros(1, device="cuda")


def torch_memory() -> Any:
    """torch asks for more than there is."""
    import torch

    return torch.ones(1 << 58)


def port() -> None:
    """A port that another process has."""
    from torch._C._distributed_c10d import TCPStore

    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        TCPStore("localhost", taken.getsockname()[1], is_master=True, wait_for_workers=False)


def rendezvous() -> None:
    """Ranks that never come."""
    from torch._C._distributed_c10d import TCPStore

    TCPStore("localhost", 0, world_size=3, is_master=True, timeout=timedelta(seconds=1), wait_for_workers=True)


def no_master() -> None:
    """A master that does not listen."""
    from torch._C._distributed_c10d import TCPStore

    TCPStore("localhost", 1, is_master=False, timeout=timedelta(seconds=1))


def interface() -> None:
    """gloo told of an interface that is not there."""
    import torch.distributed as dist
    from torch._C._distributed_c10d import HashStore

    os.environ["GLOO_SOCKET_IFNAME"] = "hsn9"
    dist.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)


def worker() -> None:
    """A DataLoader worker that is killed."""
    from torch.utils.data import DataLoader

    for _ in DataLoader(Killed(), num_workers=1):  # type: ignore[arg-type]
        pass


class Killed:
    """A dataset whose reading kills the process."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, at: int) -> int:
        os.kill(os.getpid(), 9)
        return at


def permission() -> None:
    """A file of somebody else: as root, the system's own refusal to write."""
    raise PermissionError(13, os.strerror(13), "/projects/other")


def _dataset() -> Path:
    from hpc_train.data.pack import pack_bytes

    Path("source.txt").write_text("some text\n" * 100)
    pack_bytes("books", ["source.txt"], sequence=16)
    return Path("books")


def data_damaged() -> None:
    """A dataset of ours with a flipped byte."""
    from hpc_train.data.stream import ShardStream

    shard = next(_dataset().glob("*.h5"))
    content = bytearray(shard.read_bytes())
    content[-5] ^= 1
    shard.write_bytes(content)
    next(iter(ShardStream("books", global_batch=2, seed=1)))


def data_missing() -> None:
    """A path without a dataset."""
    from hpc_train.data.stream import ShardStream

    ShardStream("nowhere", global_batch=2, seed=1)


def data_too_small() -> None:
    """A whole dataset of which too much is asked."""
    from hpc_train.data.stream import ShardStream

    ShardStream("books", global_batch=1 << 20, seed=1)


def _checkpointer(root: str, **state: Any) -> Any:
    from hpc_train.checkpoint import Checkpointer

    checkpoint = Checkpointer(root)
    checkpoint.save(1, state)
    return checkpoint


def checkpoint_without_index() -> None:
    """A checkpoint of which somebody removed a file."""
    checkpoint = _checkpointer("ckpt", train={"epoch": 1})
    Path("ckpt/step-000000001/index.json").unlink()
    checkpoint.load({"train": {"epoch": 0}})


def checkpoint_of_another() -> None:
    """A checkpoint of another model."""
    import torch

    checkpoint = _checkpointer("other", model=torch.nn.Linear(2, 2))
    checkpoint.load({"model": torch.nn.Linear(3, 2)})


def record(name: str, error: Exception) -> None:
    """Write an exception as Python prints it, one of ours as a rank of a run does."""
    from hpc_train.errors import HpcTrainError
    from hpc_train.launch.guard import shorten

    if isinstance(error, HpcTrainError):
        shorten(error)
    Path(f"{name}.log").write_text("".join(traceback.format_exception(error)))


CASES: list[Callable[[], Any]] = [
    memory, disk, module, truncated, no_hdf5, locked, missing_hdf5, files, no_gpu, torch_memory, port, rendezvous,
    no_master, interface, worker, permission, data_damaged, data_missing, data_too_small, checkpoint_without_index,
    checkpoint_of_another,
]  # fmt: skip

if __name__ == "__main__":
    os.chdir(sys.argv[1])
    for case in CASES:
        try:
            case()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is what the test is about
            record(case.__name__, error)
