"""A World over torch.distributed, for ranks that torchrun or srun started and no MPI joins.

Apart because only this module calls torch's collectives on records; a gloo group carries them, whatever the training
uses.
"""

from __future__ import annotations

import os
import socket
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist

from hpc_train.bootstrap.attachment import Attachment, find_attachment
from hpc_train.bootstrap.meeting import MeetingWorld

__all__ = ["TorchWorld"]

T = TypeVar("T")

# As long as a job may run, not torch's 30 minutes: the ranks wait for the one that writes longest, and a save's own
# limit grows with its bytes. What hangs is for the watchdog to tell, and a peer that dies closes its connections.
LONGEST_WAIT = timedelta(days=30)


class TorchWorld(MeetingWorld):
    """The ranks of the default process group, which must exist. Collective to make: a gloo group of its own."""

    def __init__(self, attachment: Attachment | None = None) -> None:
        rank, size, node = dist.get_rank(), dist.get_world_size(), socket.gethostname()
        self._group = dist.new_group(backend="gloo", timeout=LONGEST_WAIT)
        super().__init__(
            find_attachment(rank) if attachment is None else attachment,
            rank=rank,
            size=size,
            local=self._find_local(node),
            node=node,
        )
        self._ops = {"sum": dist.ReduceOp.SUM, "min": dist.ReduceOp.MIN, "max": dist.ReduceOp.MAX}

    def _find_local(self, node: str) -> tuple[int, int]:
        """Local rank and size, as torchrun or the shim says; else by host names: a group made by hand tells neither."""
        names = ("LOCAL_RANK", "LOCAL_WORLD_SIZE")
        if all(name in os.environ for name in names):
            return int(os.environ[names[0]]), int(os.environ[names[1]])
        nodes: list[str] = [node] * dist.get_world_size()
        dist.all_gather_object(nodes, node, group=self._group)
        return nodes[: dist.get_rank()].count(node), nodes.count(node)

    def broadcast(self, value: T, root: int = 0) -> T:
        """The root's value on every rank. Collective."""
        box = [value]
        with self._turn("broadcast"):
            self._meet(f"broadcast from {root}")
            dist.broadcast_object_list(box, src=root, group=self._group)
        return box[0]

    def allgather(self, value: T) -> list[T]:
        """Every rank's value in rank order. Collective."""
        box: list[T] = [value] * self.size
        with self._turn("allgather"):
            self._meet("allgather")
            dist.all_gather_object(box, value, group=self._group)
        return box

    def _highest(self, numbers: list[int]) -> list[int]:
        box = torch.tensor(numbers, dtype=torch.int64)
        dist.all_reduce(box, op=dist.ReduceOp.MAX, group=self._group)
        found: list[int] = box.tolist()
        return found

    def _reduce(self, value: int | float, op: str, *, is_whole: bool) -> int | float:
        box = torch.tensor([value], dtype=torch.int64 if is_whole else torch.float64)  # integers wrap beyond 64 bits
        dist.all_reduce(box, op=self._ops[op], group=self._group)
        result: int | float = box.item()
        return result

    def _exchange(self, words: tuple[str, str]) -> list[tuple[str, str]]:
        box = [words] * self.size
        dist.all_gather_object(box, words, group=self._group)
        return box
