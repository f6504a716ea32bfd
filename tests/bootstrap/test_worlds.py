"""One conformance test for all Worlds."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from hpc_train.bootstrap.attachment import Attachment
from hpc_train.bootstrap.solo import AttachedSoloWorld
from hpc_train.run.layout import RunDir
from hpc_train.world import SoloWorld, World
from tests.support.ranks import Mpi, cases_of, mpi_environment, on_both_mpis, run_cases

CASES = cases_of("tests.bootstrap.world_cases")


@pytest.mark.mpi
@pytest.mark.parametrize("ranks", [1, 2, 4])
@on_both_mpis
def test_mpi_worlds_keep_the_promise(mpi: Mpi, ranks: int, tmp_path: Path) -> None:
    run_cases("tests.bootstrap.world_cases", ranks, tmp_path, mpi=mpi)


@pytest.mark.mpi
def test_torch_worlds_keep_the_promise(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    argv = [*torchrun, "-m", "tests.bootstrap.torch_ranks", str(out), str(tmp_path)]
    done = subprocess.run(argv, env=mpi_environment(), capture_output=True, text=True, timeout=120)
    results = [json.loads((out / f"{rank}.json").read_text()) for rank in range(2)]
    assert results == [dict.fromkeys(CASES, "passed")] * 2, done.stderr[-3000:]


WAITS = """
import time
from datetime import timedelta
import torch.distributed.distributed_c10d as torch_settings
torch_settings.default_pg_timeout = timedelta(seconds=1)  # of torch, 30 minutes else
import hpc_train
world = hpc_train.init(timeout_s=90)
time.sleep(3 * world.rank)  # a rank that saves for longer
print(f"{world.allgather(world.rank)}\\n", end="")
"""


@pytest.mark.mpi
def test_a_torch_world_waits_longer_than_torch_does(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(WAITS)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]
    argv = [*torchrun, str(tmp_path / "program.py")]
    done = subprocess.run(argv, env=mpi_environment(), capture_output=True, text=True, timeout=120)
    assert done.stdout.splitlines() == ["[0, 1]"] * 2, done.stderr[-3000:]


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kind", ["solo", "attached"])
def test_solo_worlds_keep_the_promise(name: str, kind: str, tmp_path: Path) -> None:
    nowhere = Attachment(None, 0, token="", page=None, writes=False)
    world: World = SoloWorld() if kind == "solo" else AttachedSoloWorld(nowhere)
    CASES[name](world, tmp_path)


def test_a_world_of_a_run_prints_run_and_attempt(tmp_path: Path) -> None:
    attached = Attachment(RunDir(tmp_path / "train-7"), 2, token="", page=None, writes=False)
    assert repr(AttachedSoloWorld(attached)).endswith(", device cpu, attempt 2 of run train-7)")
