"""DistributedDataParallel whose resumed run equals the uninterrupted one bit for bit.

Apart because of one trap: DDP rebuilds its gradient buckets after the first backward pass, so the first step after
every start sums in another order than the same step in the middle of a run. With two ranks nobody notices (a + b =
b + a); from four ranks on the last bits differ. One discarded pass at every start, before state is loaded, settles it.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from hpc_train.world import alone

__all__ = ["settled_ddp"]


def settled_ddp(module: nn.Module, loss_of: Callable[[nn.Module], Tensor], **options: Any) -> DistributedDataParallel:
    """Wrap a module in DDP and run one discarded forward and backward pass, so that its buckets are in place.

    Collective. Afterwards parameters and buffers are as DDP's constructor leaves them (by default rank 0's, on every
    rank), the random states of torch and Python are as before the call, and gradients are None.

    Args:  module: on its device.   loss_of: computes a scalar loss through the wrapped module from any batch of the
    usual shape; its values do not matter.   options: for DistributedDataParallel.
    Returns: the wrapped module; load a checkpoint into `.module` after this call or before it, both are right.
    Raises: UsageError if there is no process group, and this is one of several ranks. A process that is alone gets a
    group of its own, so that a program can be tried with plain `python`.
    """
    if not dist.is_initialized():
        alone("settled_ddp")
        backend = "nccl" if any(parameter.is_cuda for parameter in module.parameters()) else "gloo"
        store = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group(backend, store=store, rank=0, world_size=1)
    ddp = DistributedDataParallel(module, **options)
    buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
    python_state = random.getstate()
    devices = [p.device for p in module.parameters() if p.device.type == "cuda"][:1]
    with torch.random.fork_rng(devices=devices):
        loss_of(ddp).backward()  # type: ignore[no-untyped-call]
        ddp.zero_grad(set_to_none=True)
        loss_of(ddp).backward()  # type: ignore[no-untyped-call]  # the rebuild happens at the second forward
    random.setstate(python_state)
    ddp.zero_grad(set_to_none=True)
    with torch.no_grad():
        for name, buffer in module.named_buffers():
            buffer.copy_(buffers[name])
    return ddp
