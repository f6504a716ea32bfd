"""A torch-free program with checkpoints: counting.py STEPS SAVE_EVERY PAUSE_S [hang|stops|brief|dies|restless]...

hang: rank 1 stops dead, once.   stops: it saves and leaves when it is asked to.   brief: only the first attempt
pauses.   dies: the first attempt fails once there is a file `die` in the run directory.   restless: each attempt saves
after 6 steps and asks to be run again, until there is a file `settle` there.
"""

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
stop = hpc_train.StopRequest(world) if "stops" in sys.argv else None
is_first = os.environ["HPC_TRAIN_ATTEMPT"] == "0"
die, settle, hung = (os.path.join(os.environ["HPC_TRAIN_RUN_DIR"], name) for name in ("die", "settle", "hung"))
last = step + 6 if "restless" in sys.argv and not os.path.exists(settle) else total
if "brief" in sys.argv and not is_first:
    pause = 0.0
while step < total:
    step += 1
    state["sum"] += step
    progress.step(step)
    time.sleep(pause)
    if "hang" in sys.argv and world.rank == 1 and step == 3 and not os.path.exists(hung):
        open(hung, "x").close()
        os.kill(os.getpid(), signal.SIGSTOP)
    world.barrier()
    if "dies" in sys.argv and is_first and os.path.exists(die):
        sys.exit("told to die")
    must_stop = step < total and (step == last or (stop is not None and stop.agreed()))
    if step % save_every == 0 or step == total or must_stop:
        checkpoint.save(step, state)
    if must_stop:
        raise hpc_train.Stopped("asked to")
if world.rank == 0:
    print(f"the sum is {state['sum'].tolist()}")
