"""A small training program whose pace a test sets: DDP with dropout over a ShardStream, all of hpc-train's library.

Run by the tests' jobs: paced_training.py DATA STEPS SAVE_EVERY PAUSE_S [ROOT]. Final weights, optimizer and random
state stand in its last checkpoint.
"""

from __future__ import annotations

import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

import hpc_train

GLOBAL_BATCH = 16
SEED = 3


def main() -> None:
    """Train to the last step, from wherever the newest checkpoint stands."""
    data, total, save_every, pause = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
    world = hpc_train.init()
    stop = hpc_train.StopRequest(world)
    torch.manual_seed(SEED)
    stream = hpc_train.ShardStream(data, global_batch=GLOBAL_BATCH, seed=SEED, world=world)
    model = nn.Sequential(
        nn.Embedding(256, 24), nn.Flatten(), nn.Linear(24 * 16, 96), nn.ReLU(), nn.Dropout(0.3), nn.Linear(96, 256)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def loss_of(wrapped: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(wrapped(tokens[:, :-1].long()), tokens[:, -1].long())

    example = torch.zeros(GLOBAL_BATCH // world.size, 17, dtype=torch.uint8)
    train: nn.Module = model
    if world.size > 1:
        # small buckets: several of them, so that their order could differ
        train = hpc_train.settled_ddp(model, lambda wrapped: loss_of(wrapped, example), bucket_cap_mb=0.05)
    hpc_train.seed_ranks(SEED, world)
    checkpoint = hpc_train.Checkpointer(sys.argv[5] if len(sys.argv) > 5 else None, world=world, keep=2)
    state = {"model": model, "optimizer": optimizer, "stream": stream}
    per_rank = {"random": hpc_train.rng_state()}
    step = checkpoint.load(state, per_rank=per_rank) or 0
    progress = hpc_train.Progress(world, total_steps=total)
    while step < total:
        for batch in stream:
            loss = loss_of(train, batch["tokens"])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            step += 1
            progress.step(step, loss=loss.item(), digest=stream.batch_digest, samples=GLOBAL_BATCH)
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
