"""A torch-free program whose disk fills up in its first attempt: filling.py KIND, what it does on the full disk.

Rank 0 plays the other user who takes the last byte. With a kind that ends in "-all", that one also takes what hpc-train
gives free: the reserve in the run directory.
"""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

import numpy as np

import hpc_train

STEPS, SAVE_EVERY, FULL_AT = 40, 10, 15


def fill(directory: Path, name: str) -> None:
    """Write a file until not one more page has room."""
    with open(directory / name, "wb", buffering=0) as file, contextlib.suppress(OSError):
        for size in (1 << 16, 1 << 12, 1 << 9):
            with contextlib.suppress(OSError):
                while True:
                    file.write(os.urandom(size))


def act_on_full_disk(kind: str, run_dir: Path) -> None:
    """What the program happens to do next."""
    if kind.startswith("journal"):
        while True:
            progress.step(FULL_AT)
    elif kind.startswith("log"):
        while True:
            print("x" * 4000, flush=True)
    elif kind.startswith("own file"):
        (run_dir / f"results-{world.rank}").write_bytes(bytes(1 << 16))
    elif kind.startswith("save"):
        checkpoint.save(FULL_AT, state)
    elif kind.startswith("end"):
        sys.exit(0)


kind = sys.argv[1]
world = hpc_train.init(process_group=False)
state = {"sum": {"x": np.zeros(20_000)}}
checkpoint = hpc_train.Checkpointer(world=world, keep=2)
step = checkpoint.load(state) or 0
progress = hpc_train.Progress(world, total_steps=STEPS)
while step < STEPS:
    step += 1
    state["sum"]["x"] += step
    progress.step(step)
    if step % SAVE_EVERY == 0:
        checkpoint.save(step, state)
    if step == FULL_AT and world.attempt == 0:
        assert world.run_dir is not None
        if world.rank == 0:
            if kind.endswith("-all"):
                for path in world.run_dir.glob(".reserve-*"):
                    path.unlink()
            fill(world.run_dir.parents[1], "filler")
        world.barrier()
        act_on_full_disk(kind, world.run_dir)
