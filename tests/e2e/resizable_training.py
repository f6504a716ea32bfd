"""A small training program for runs that go on at other sizes: DDP with dropout, a learning rate that falls with steps.

Run by the tests' jobs: resizable_training.py DATA STEPS SAVE_EVERY PAUSE_S [EXIT_CODE]. It journals what it loaded and
saved, and where every rank's random stream stands, so that a test can tell "restored" from "looks restored".
"""

from __future__ import annotations

import hashlib
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

import hpc_train

GLOBAL_BATCH = 16
SEED = 3
BASE_LR, HORIZON = 1e-3, 1000  # steps are global batches: the number of ranks has no part in it


def fingerprint(*tensors: torch.Tensor) -> str:
    """Of the bytes of tensors."""
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().numpy().tobytes())
    return digest.hexdigest()[:16]


def loss_of(model: nn.Module, tokens: torch.Tensor) -> torch.Tensor:
    """How badly the last byte of each sample is predicted from the 16 before it."""
    return F.cross_entropy(model(tokens[:, :-1].long()), tokens[:, -1].long())


def main() -> int:
    """Train to the last step, from wherever the newest checkpoint stands."""
    data, total, save_every, pause = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), float(sys.argv[4])
    world = hpc_train.init()
    stop = hpc_train.StopRequest(world)
    torch.manual_seed(SEED)
    stream = hpc_train.ShardStream(data, global_batch=GLOBAL_BATCH, seed=SEED, world=world)
    model = nn.Sequential(
        nn.Embedding(256, 24), nn.Flatten(), nn.Linear(24 * 16, 96), nn.ReLU(), nn.Dropout(0.3), nn.Linear(96, 256)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=BASE_LR)

    example = torch.zeros(GLOBAL_BATCH // world.size, 17, dtype=torch.uint8)
    train: nn.Module = model
    if world.size > 1:
        train = hpc_train.settled_ddp(model, lambda wrapped: loss_of(wrapped, example))
    hpc_train.seed_ranks(SEED, world)
    checkpoint = hpc_train.Checkpointer(world=world, keep=None)
    state = {"model": model, "optimizer": optimizer, "stream": stream}
    per_rank = {"random": hpc_train.rng_state()}

    def tell(event: str, step: int) -> None:
        moments = [value for kept in optimizer.state.values() for value in kept.values()]
        streams = world.allgather(fingerprint(torch.get_rng_state()))
        weights = fingerprint(*model.state_dict().values(), *moments)
        lr = optimizer.param_groups[0]["lr"]
        world.record(event, step=step, weights=weights, streams=streams, lr=lr)

    step = checkpoint.load(state, per_rank=per_rank) or 0
    tell("loaded", step)
    progress = hpc_train.Progress(world, total_steps=total)
    while step < total:
        for batch in stream:
            step += 1
            optimizer.param_groups[0]["lr"] = BASE_LR * (1 - step / HORIZON)
            loss = loss_of(train, batch["tokens"])
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            progress.step(step, loss=loss.item(), digest=stream.batch_digest, samples=GLOBAL_BATCH)
            time.sleep(pause)
            must_stop = stop.agreed()
            if step % save_every == 0 or step == total or must_stop:
                checkpoint.save(step, state, per_rank=per_rank)
                tell("saved", step)
            if step == total:
                break
            if must_stop:
                raise hpc_train.Stopped(f"{stop.reason}, saved at step {step}")
    return int(sys.argv[5]) if len(sys.argv) > 5 else 0


if __name__ == "__main__":
    sys.exit(main())
