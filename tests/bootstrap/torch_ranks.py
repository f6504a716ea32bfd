"""Runs the cases of every World on a rank that torchrun started; each rank writes its results."""

from __future__ import annotations

import json
import sys
import traceback
from pathlib import Path

import torch.distributed as dist

import hpc_train
from hpc_train.bootstrap.torch_world import TorchWorld
from tests.support.ranks import cases_of

if __name__ == "__main__":
    out, shared = Path(sys.argv[1]), Path(sys.argv[2])
    world = hpc_train.init()
    assert isinstance(world, TorchWorld)
    assert hpc_train.init() is world
    results: dict[str, str] = {}
    for name, case in cases_of("tests.bootstrap.world_cases").items():
        directory = shared / name
        if world.rank == 0:
            directory.mkdir()
        world.barrier()
        try:
            case(world, directory)
            results[name] = "passed"
        except Exception:  # noqa: BLE001 - written down
            results[name] = traceback.format_exc()
        (out / f"{world.rank}.json").write_text(json.dumps(results))
    dist.destroy_process_group()
