"""DDP over gloo on real ranks: does an interrupted training equal an uninterrupted one bit for bit?"""

from __future__ import annotations

import hashlib
import io
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import hpc_train
from hpc_train.world import World

Ddp = nn.parallel.DistributedDataParallel
STEPS = 10


def model() -> nn.Module:
    """A model of several buckets, with dropout and BatchNorm's buffers."""
    torch.manual_seed(1)
    layers: list[nn.Module] = []
    for _ in range(4):
        layers += [nn.Linear(48, 48), nn.BatchNorm1d(48), nn.ReLU(), nn.Dropout(0.3)]
    return nn.Sequential(*layers, nn.Linear(48, 1))


def batch(rank: int, step: int) -> Tensor:
    """This rank's part of a step's batch."""
    return torch.randn(8, 48, generator=torch.Generator().manual_seed(1000 * step + rank))


def loss_of(module: nn.Module) -> Tensor:
    """A loss of the usual shape."""
    loss: Tensor = module(torch.ones(8, 48)).pow(2).mean()
    return loss


def plain(module: nn.Module) -> Ddp:
    """torch's own."""
    return Ddp(module, bucket_cap_mb=0.02)


def settled(module: nn.Module) -> Ddp:
    """Ours."""
    return hpc_train.settled_ddp(module, loss_of, bucket_cap_mb=0.02)


class Training:
    """A training that can be saved and started again."""

    def __init__(self, rank: int, wrap: Callable[[nn.Module], Ddp], state: dict[str, Any] | None = None) -> None:
        self.rank = rank
        self.module = model()
        self.ddp = wrap(self.module)
        self.optimizer = torch.optim.SGD(self.module.parameters(), lr=0.05, momentum=0.9)
        torch.manual_seed(100 + rank)  # each rank drops other units
        if state is not None:
            self.module.load_state_dict(state["module"])
            self.optimizer.load_state_dict(state["optimizer"])
            torch.set_rng_state(state["rng"])

    def train(self, begin: int, end: int) -> None:
        """Steps [begin, end)."""
        for step in range(begin, end):
            self.optimizer.zero_grad()
            self.ddp(batch(self.rank, step)).pow(2).mean().backward()
            self.optimizer.step()

    def state(self) -> dict[str, Any]:
        """Everything that a checkpoint would hold."""
        box = io.BytesIO()
        rng = torch.get_rng_state()
        torch.save({"module": self.module.state_dict(), "optimizer": self.optimizer.state_dict(), "rng": rng}, box)
        box.seek(0)
        state: dict[str, Any] = torch.load(box)
        return state


def fingerprint(module: nn.Module) -> str:
    """All bits of parameters and buffers."""
    digest = hashlib.sha256()
    for tensor in module.state_dict().values():
        digest.update(tensor.numpy().tobytes())
    return digest.hexdigest()


def interrupted_equals_whole(world: World, wrap: Callable[[nn.Module], Ddp]) -> bool:
    """Whether 10 steps equal 5 + a fresh start + 5, on every rank."""
    whole = Training(world.rank, wrap)
    whole.train(0, STEPS)
    first = Training(world.rank, wrap)
    first.train(0, STEPS // 2)
    second = Training(world.rank, wrap, first.state())
    second.train(STEPS // 2, STEPS)
    return all(world.allgather(fingerprint(whole.module) == fingerprint(second.module)))


def case_a_settled_resume_equals_the_whole_and_a_plain_one_does_not(world: World, tmp_path: Path) -> None:
    hpc_train.init()
    assert torch.distributed.get_world_size() == world.size == 4
    assert interrupted_equals_whole(world, settled)
    # Without this the case above could not fail: with few ranks or one bucket everything is equal.
    assert not interrupted_equals_whole(world, plain)


def case_settling_changes_nothing_but_the_buckets(world: World, tmp_path: Path) -> None:
    module = model()
    before, rng, python = fingerprint(module), torch.get_rng_state(), random.getstate()
    ddp = settled(module)
    assert fingerprint(module) == before
    assert torch.equal(torch.get_rng_state(), rng)
    assert random.getstate() == python
    assert all(parameter.grad is None for parameter in ddp.parameters())
    assert module.training


def case_every_rank_has_rank_0s_state_afterwards(world: World, tmp_path: Path) -> None:
    module = model()
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            tensor.add_(world.rank)
    settled(module)
    assert len(set(world.allgather(fingerprint(module)))) == 1
