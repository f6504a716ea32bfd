"""Saving and loading need little memory beside the state itself: no second copy of a large model."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.ranks import mpi_environment, mpirun_argv

MIB = 1 << 20

# The state is 256 MiB in tensors of several sizes, one of half of it; ru_maxrss only ever grows.
PROGRAM = """
import json, resource, sys
import numpy as np
import torch
import hpc_train

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

world = hpc_train.init(process_group=False)
checkpoint = hpc_train.Checkpointer(sys.argv[1], world=world, keep=1)
checkpoint.save(1, {"model": {"w": torch.ones(100)}})  # what is loaded and kept once
checkpoint.load({"model": {"w": torch.zeros(100)}})
sizes = [32 << 20, *[4 << 20] * 7, *[1 << 16] * 64]  # of 4 bytes: 128 MiB, 7 of 16, 64 of 0.25
state = {"model": {f"t{i}": torch.full((n,), float(i)) for i, n in enumerate(sizes)}}
assert sum(t.nbytes for t in state["model"].values()) == 256 << 20
begin = peak()
checkpoint.save(2, state)
saved = peak()
for tensor in state["model"].values():
    tensor.zero_()
assert checkpoint.load(state) == 2
loaded = peak()
assert all((t == i).all() for i, t in enumerate(state["model"].values()))
print(json.dumps([saved - begin, loaded - saved]))
"""


@pytest.mark.parametrize("start", ["alone", pytest.param("mpirun", marks=pytest.mark.mpi)])
def test_a_save_and_a_load_in_place_need_less_than_a_quarter_of_the_state(tmp_path: Path, start: str) -> None:
    launcher = mpirun_argv(1) if start == "mpirun" else []  # with MPI the writer is MPI-IO
    argv = [*launcher, sys.executable, "-c", PROGRAM, str(tmp_path / "root")]
    done = subprocess.run(argv, env=mpi_environment(), capture_output=True, text=True, timeout=120)
    (tmp_path / "root" / "step-000000002" / "data-00000.safetensors").unlink(missing_ok=True)  # pytest keeps folders
    assert done.returncode == 0, done.stderr[-2000:]
    by_saving, by_loading = json.loads(done.stdout)
    assert by_saving < 64 * MIB
    assert by_loading < 64 * MIB
