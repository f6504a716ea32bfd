"""An ordinary `env://` DDP script that knows nothing of hpc-train.

It stands for the scripts that people have: torchrun would start it, and so does
hpc-train submit --nodes 2 --ranks-per-node 2 -- python -m hpc_train.examples.plain_ddp --lr 1e-3
"""

from __future__ import annotations

import argparse
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main() -> None:
    """Fit a line with DDP and print the loss."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=1e-2)
    parser.add_argument("--steps", type=int, default=20)
    options = parser.parse_args()

    use_gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if use_gpu else "gloo")
    rank, size, local_rank = dist.get_rank(), dist.get_world_size(), int(os.environ["LOCAL_RANK"])
    device = torch.device("cuda", local_rank % torch.cuda.device_count()) if use_gpu else torch.device("cpu")
    torch.manual_seed(rank)
    model = DistributedDataParallel(nn.Linear(8, 1).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=options.lr)
    loss = torch.zeros(())
    for _ in range(options.steps):
        x = torch.randn(32, 8, device=device)
        loss = (model(x) - x.sum(1, keepdim=True)).pow(2).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    total = loss.detach().clone()
    dist.all_reduce(total)
    print(f"rank {rank} of {size}, local rank {local_rank}, mean loss {total.item() / size:.4f}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
