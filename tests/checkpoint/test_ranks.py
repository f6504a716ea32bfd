"""Checkpoints by real MPI ranks."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from hpc_train.checkpoint import Checkpointer, list_checkpoints
from tests.support.ranks import Mpi, mpi_environment, on_both_mpis, run_cases


@pytest.mark.mpi
@pytest.mark.parametrize("ranks", [1, 2, 4])
@on_both_mpis
def test_every_rank_keeps_every_promise(mpi: Mpi, ranks: int, tmp_path: Path) -> None:
    run_cases("tests.checkpoint.mpi_cases", ranks, tmp_path, mpi=mpi)


@pytest.fixture
def mountable(tmp_path: Path) -> Iterator[Path]:
    """A directory below which the ranks may mount file systems; whatever they leave is unmounted."""
    if os.geteuid() != 0:
        pytest.skip("mount(8) of a small tmpfs needs root")
    yield tmp_path
    for line in Path("/proc/self/mounts").read_text().splitlines():
        target = line.split()[1]
        if target.startswith(f"{tmp_path}/"):
            subprocess.run(["umount", "-l", target], check=True, timeout=20)


@pytest.mark.mpi
@pytest.mark.parametrize("ranks", [1, 2, 4])
@on_both_mpis
def test_a_full_file_system_is_the_same_error_on_all_ranks_and_costs_nothing(
    mpi: Mpi, ranks: int, mountable: Path
) -> None:
    run_cases("tests.checkpoint.full_disk_cases", ranks, mountable, mpi=mpi)


KILLED = """
import contextlib, os, signal, sys
import numpy as np
from mpi4py import MPI
from hpc_train.bootstrap.mpi import MpiWorld
from hpc_train.checkpoint import Checkpointer

class Killed(MpiWorld):
    @contextlib.contextmanager
    def phase(self, name, limit_s=None):
        with super().phase(name, limit_s):
            if name == sys.argv[2] and self.rank == int(sys.argv[3]) and self.may_die:
                os.kill(os.getpid(), signal.SIGKILL)
            yield

world = Killed(MPI.COMM_WORLD)
checkpoint = Checkpointer(sys.argv[1], world=world)
for step in (1, 2):
    world.may_die = step == 2
    checkpoint.save(step, {"m": {"w": np.full(20 << 20, step, np.uint8)}})
"""


@pytest.mark.mpi
@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("phase", ["checkpoint write", "checkpoint commit"])
@on_both_mpis
def test_one_rank_killed_while_saving_leaves_the_old_checkpoint(
    tmp_path: Path, mpi: Mpi, phase: str, rank: int
) -> None:
    argv = [*mpi.mpirun_argv(2), mpi.python, "-c", KILLED, str(tmp_path / "root"), phase, str(rank)]
    done = subprocess.run(argv, env=mpi_environment(), capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    entries = list_checkpoints(tmp_path / "root")
    # Rank 0 commits, once all have written: whether it outlives another's death by so long is the launcher's affair.
    allowed = ["uncommitted", "committed"] if (phase, rank) == ("checkpoint commit", 1) else ["uncommitted"]
    assert [e.step for e in entries] == [1, 2] and entries[0].status == "committed", done.stderr[-2000:]
    assert entries[1].status in allowed, done.stderr[-2000:]
    newest = 2 if entries[1].status == "committed" else 1
    live = {"m": {"w": np.zeros(20 << 20, np.uint8)}}
    checkpoint = Checkpointer(tmp_path / "root")
    assert checkpoint.load(live) == newest
    assert (live["m"]["w"] == newest).all()
    checkpoint.save(newest + 1, live)
    entries = list_checkpoints(tmp_path / "root")
    assert [(e.step, e.status) for e in entries] == [(step, "committed") for step in range(1, newest + 2)]
