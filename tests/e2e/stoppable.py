"""A torch-free program that imports for some seconds and then steps until it is asked to stop: stoppable.py SECONDS."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

time.sleep(float(sys.argv[1]))  # stands for a slow import: no handler is installed yet

import hpc_train  # noqa: E402

world = hpc_train.init(process_group=False)
stop = hpc_train.StopRequest(world)
progress = hpc_train.Progress(world)
step = 0
while not stop.agreed():
    step += 1
    progress.step(step)
    time.sleep(0.05)
stops = Path(os.environ["HPC_TRAIN_RUN_DIR"], "stops")
stops.mkdir(exist_ok=True)
(stops / str(world.rank)).write_text(json.dumps({"step": step, "reason": stop.reason}))
raise hpc_train.Stopped(stop.reason)
