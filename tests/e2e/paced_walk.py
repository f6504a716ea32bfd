"""paced_training.py without torch, whose import is most of a short attempt: weights that walk by data and by chance.

Run by the tests' jobs: paced_walk.py DATA STEPS SAVE_EVERY PAUSE_S, the same arguments and the same state in its
checkpoints: weights, the stream, and the random state of every rank.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import numpy as np

import hpc_train

GLOBAL_BATCH = 16
SEED = 3


class Chance:
    """This rank's random numbers. Not rng_state(): torch, which nobody seeds here, begins elsewhere in each run."""

    def __init__(self, seed: int) -> None:
        self.numbers = np.random.RandomState(seed)

    def state_dict(self) -> dict[str, Any]:
        """For the checkpoint."""
        return {"state": self.numbers.get_state()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """From it."""
        self.numbers.set_state(state["state"])


def main() -> None:
    """Walk to the last step, from wherever the newest checkpoint stands."""
    data, total, save_every, pause = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
    world = hpc_train.init(process_group=False)
    stop = hpc_train.StopRequest(world)
    chance = Chance(SEED + world.rank)
    stream = hpc_train.ShardStream(data, global_batch=GLOBAL_BATCH, seed=SEED, world=world)
    weights = np.zeros(256)
    checkpoint = hpc_train.Checkpointer(world=world, keep=2)
    state = {"weights": weights, "stream": stream}
    per_rank = {"chance": chance}
    step = checkpoint.load(state, per_rank=per_rank) or 0
    progress = hpc_train.Progress(world, total_steps=total)
    while step < total:
        for batch in stream:
            counts = np.bincount(np.asarray(batch["tokens"]).ravel(), minlength=256)
            ours = counts * chance.numbers.standard_normal(256)
            weights += np.sum(world.allgather(ours), axis=0) - 0.01 * weights
            step += 1
            progress.step(step, loss=float(weights.mean()), digest=stream.batch_digest, samples=GLOBAL_BATCH)
            time.sleep(pause)
            must_stop = stop.agreed()
            if step % save_every == 0 or step == total or must_stop:
                checkpoint.save(step, state, per_rank=per_rank)
            if step == total:
                return
            if must_stop:
                raise hpc_train.Stopped(f"{stop.reason}, saved at step {step}")


if __name__ == "__main__":
    main()
