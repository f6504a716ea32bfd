"""Saving into a file system that is full, or fills up while the ranks write: on a real 24 MiB tmpfs."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpc_train.bootstrap.mpi import MpiWorld
from hpc_train.checkpoint import Checkpointer, list_checkpoints, verify_checkpoint
from hpc_train.errors import HpcTrainError, NoSpaceError

MIB = 1 << 20


class FillingWorld:
    """The ranks' own World, but another user fills the file system just when they begin to write."""

    def __init__(self, world: MpiWorld, folder: Path, leave: int) -> None:
        self._world, self._folder, self._leave = world, folder, leave

    def __getattr__(self, name: str) -> Any:
        return getattr(self._world, name)

    @contextlib.contextmanager
    def phase(self, name: str, limit_s: float | None = None) -> Iterator[None]:
        with self._world.phase(name, limit_s):
            if name == "checkpoint write":
                if self._world.rank == 0:
                    space = os.statvfs(self._folder)
                    with open(self._folder / "filler", "wb") as file:
                        file.write(bytes(space.f_bavail * space.f_frsize - self._leave))
                self._world.barrier()
            yield


@contextlib.contextmanager
def small_file_system(world: MpiWorld, tmp_path: Path, options: str = "size=24m") -> Iterator[Path]:
    folder = tmp_path / "small"
    if world.rank == 0:
        folder.mkdir()
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=True, timeout=20)
    world.barrier()
    yield folder
    world.barrier()
    if world.rank == 0:
        # Lazily: this process keeps the root that it saved into.
        subprocess.run(["umount", "--lazy", str(folder)], check=True, timeout=20)


def state(nbytes: int, value: int) -> dict[str, Any]:
    return {"m": {"w": np.full(nbytes, value, np.uint8)}}


def assert_old_is_intact(world: MpiWorld, folder: Path, error: HpcTrainError) -> None:
    assert len(set(world.allgather((type(error).__name__, str(error))))) == 1
    assert not [name for name in os.listdir(folder / "root") if "inprogress" in name]
    assert [entry.step for entry in list_checkpoints(folder / "root")] == [1]
    assert verify_checkpoint(folder / "root/step-000000001").is_good
    live = state(MIB, 0)
    assert Checkpointer(folder / "root", world=world).load(live) == 1
    assert (live["m"]["w"] == 1).all()
    world.barrier()


def case_too_little_space_is_told_before_anything_is_written(world: MpiWorld, tmp_path: Path) -> None:
    with small_file_system(world, tmp_path) as folder:
        checkpoint = Checkpointer(folder / "root", world=world)
        checkpoint.save(1, state(MIB, 1))
        with pytest.raises(NoSpaceError, match=r"\d+ bytes are missing") as error:
            checkpoint.save(2, state(30 * MIB, 2))
        assert_old_is_intact(world, folder, error.value)


def case_too_few_inodes_are_told_before_anything_is_written(world: MpiWorld, tmp_path: Path) -> None:
    with small_file_system(world, tmp_path, "size=24m,nr_inodes=20") as folder:
        checkpoint = Checkpointer(folder / "root", world=world)
        checkpoint.save(1, state(MIB, 1))
        if world.rank == 0:
            for i in range(8):
                (folder / f"file{i}").touch()
        world.barrier()
        with pytest.raises(NoSpaceError, match="inodes"):
            checkpoint.save(2, state(MIB, 2))
        world.barrier()


def _fills_up(world: MpiWorld, tmp_path: Path, writer: str) -> None:
    with small_file_system(world, tmp_path) as folder:
        Checkpointer(folder / "root", world=world, writer=writer).save(1, state(MIB, 1))
        filling: Any = FillingWorld(world, folder, leave=5 * MIB)
        with pytest.raises(NoSpaceError) as error:
            Checkpointer(folder / "root", world=filling, writer=writer).save(2, state(16 * MIB, 2))
        assert_old_is_intact(world, folder, error.value)


def case_space_that_runs_out_while_writing_by_mpiio(world: MpiWorld, tmp_path: Path) -> None:
    _fills_up(world, tmp_path, "mpiio")


def case_space_that_runs_out_while_writing_by_posix(world: MpiWorld, tmp_path: Path) -> None:
    _fills_up(world, tmp_path, "posix")
