"""A program whose ranks join as DeepSpeed's do; it knows nothing of hpc-train."""

from __future__ import annotations

import os

import deepspeed
import torch

# On CPUs it would compile an operation for a minute first, under a lock in the home directory that a kill leaves there.
deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
deepspeed.init_distributed(dist_backend="gloo")
rank, size = deepspeed.comm.get_rank(), deepspeed.comm.get_world_size()
total = torch.tensor([rank + 1])
deepspeed.comm.all_reduce(total)
print(f"rank {rank} of {size}, local rank {os.environ['LOCAL_RANK']}, sum {int(total)}\n", end="", flush=True)
deepspeed.comm.destroy_process_group()
