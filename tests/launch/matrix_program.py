"""The program of the fault matrix: `matrix_program.py KIND` fails on rank 1 in the way KIND says; torch-free.

The file `event` in the run directory marks the instant of the fault. KIND "steps on": until it is killed from outside.
"""

from __future__ import annotations

import errno
import os
import queue
import signal
import sys
import threading
import time

KIND = sys.argv[1]
IS_BAD = os.environ["RANK"] == "1"


def event() -> None:
    """Mark the instant."""
    open(os.path.join(os.environ["HPC_TRAIN_RUN_DIR"], "event"), "w").close()


if KIND == "import" and IS_BAD:
    event()
    import no_such_module_here  # type: ignore[import-not-found]  # noqa: F401
if KIND == "exit before MPI" and IS_BAD:
    event()
    sys.exit(5)
if KIND == "kill before MPI" and IS_BAD:
    event()
    os.kill(os.getpid(), signal.SIGKILL)

import hpc_train  # noqa: E402

world = hpc_train.init(process_group=False)
progress = hpc_train.Progress(world, total_steps=50)
for step in range(1, 4):
    progress.step(step, loss=1.0)
    world.barrier()


def dies_in_thread() -> None:
    """A thread that never delivers what the main thread waits for."""
    answers: queue.Queue[float] = queue.Queue()
    threading.Thread(target=lambda: answers.put(1 / 0), name="loader").start()
    answers.get()


def fail() -> None:
    """Fail in the way KIND says."""
    if KIND == "exception":
        raise ValueError("boom")
    if KIND.startswith("sys.exit"):
        sys.exit(int(KIND.split()[1]))
    if KIND.startswith("os._exit"):
        os._exit(int(KIND.split()[1]))
    if KIND.startswith("SIG"):
        os.kill(os.getpid(), getattr(signal, KIND))
    if KIND == "MemoryError":
        raise MemoryError
    if KIND == "ENOSPC":
        raise OSError(errno.ENOSPC, "No space left on device")
    if KIND == "thread":
        dies_in_thread()
    if KIND == "phase":
        with world.phase("load", 2):
            time.sleep(1000)
    if KIND == "no progress":
        time.sleep(1000)


while KIND == "steps on":
    progress.step(step)
    world.barrier()
    time.sleep(0.05)
if IS_BAD:
    event()
    fail()
world.barrier()
