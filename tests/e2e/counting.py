"""A torch-free program with checkpoints: counting.py STEPS SAVE_EVERY PAUSE_S [hang]: rank 1 stops dead at first."""

from __future__ import annotations

import os
import signal
import sys
import time

import numpy as np

import hpc_train

total, save_every, pause = int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
world = hpc_train.init(process_group=False)
state = {"sum": np.zeros(4)}
checkpoint = hpc_train.Checkpointer(world=world)
step = checkpoint.load(state) or 0
progress = hpc_train.Progress(world, total_steps=total)
while step < total:
    step += 1
    state["sum"] += step
    progress.step(step)
    time.sleep(pause)
    if "hang" in sys.argv and world.rank == 1 and step == 3 and os.environ["HPC_TRAIN_ATTEMPT"] == "0":
        os.kill(os.getpid(), signal.SIGSTOP)
    world.barrier()
    if step % save_every == 0 or step == total:
        checkpoint.save(step, state)
if world.rank == 0:
    print(f"the sum is {state['sum'].tolist()}")
