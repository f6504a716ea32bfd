"""All ranks in one call: what a collective of a World makes sure of before it carries anything.

Apart from the Worlds because both do the same. Neither MPI nor gloo notices ranks in different collectives, as where
rank 0 alone calls `Checkpointer.save`: they wait for each other for ever, or take each other's messages for their own.
"""

from __future__ import annotations

import sys
import threading
import zlib
from abc import abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from hpc_train.bootstrap.attached import AttachedWorld
from hpc_train.bootstrap.attachment import Attachment
from hpc_train.errors import UsageError
from hpc_train.launch.sampler import describe_call
from hpc_train.quantities import format_ranks

__all__ = ["MeetingWorld"]

# What calls our pieces as a user's own code does: ranks may well come by different ways from there.
_CALLERS = ("hpc_train.examples", "hpc_train.integrations")


class MeetingWorld(AttachedWorld):
    """A World of several ranks whose collectives begin with `_meet`; a subclass gives what carries them.

    Each holds the World's turn: of two threads one waits, as the values of the one could else reach the other.
    """

    def __init__(self, attachment: Attachment, *, rank: int, size: int, local: tuple[int, int], node: str) -> None:
        super().__init__(attachment, rank=rank, size=size, local=local, node=node)
        self._lock = threading.RLock()  # not Lock: a signal handler must not wait for the call that it interrupts

    @contextmanager
    def _turn(self, name: str) -> Iterator[None]:
        with self.phase(name), self._lock:
            yield

    def barrier(self) -> None:
        """Wait for all ranks. Collective."""
        with self._turn("barrier"):
            self._meet("barrier")

    def allreduce(self, value: int | float, op: str = "sum") -> int | float:
        """Sum, "min" or "max" over the ranks; the World says how large integers may be. Collective."""
        carried = int(value) if isinstance(value, int) and -(1 << 63) <= value < 1 << 63 else None
        sign = -1 if op == "min" else 0  # the complement turns the order of integers round, and has no overflow
        with self._turn("allreduce"):
            # The meeting itself brings the highest integer: a loop asks for one at each step.
            is_odd, highest = self._meet(f"allreduce {op}", int(carried is None), (carried or 0) ^ sign)
            if op in ("min", "max") and not is_odd:
                return highest ^ sign
            return self._reduce(value, op, is_whole=not is_odd)

    def _meet(self, kind: str, *numbers: int) -> list[int]:
        """Wait for all ranks, and make sure that all have come for the same call. Collective: one small message.

        Args:  kind: the collective, with what must be equal on all ranks.   numbers: of 64 bits; as many on all ranks.
        Returns: the highest of each of the numbers over all ranks.
        Raises: UsageError that names the calls and their ranks, the same on all ranks; they are in step again then.
        """
        name = f"{_entry(sys._getframe(2)) or 'the program'}: {kind}{_thread()}"
        number = zlib.crc32(name.encode())
        # Of one length always: messages of two lengths would not meet.
        highest, lowest, *found = self._highest([number, -number, *numbers, 0, 0][:4])
        if highest == -lowest:
            return found
        calls = self._exchange((describe_call(sys._getframe()).text, name))
        is_told_apart = len({call for call, _ in calls}) > 1
        ranks_of: dict[str, list[int]] = {}
        for rank, (call, known) in enumerate(calls):
            ranks_of.setdefault(call if is_told_apart else f"{call}, {known}", []).append(rank)
        where = "; ".join(f"{format_ranks(ranks)} in {call}" for call, ranks in ranks_of.items())
        raise UsageError(
            f"the ranks are in different calls that each wait for all ranks: {where}. Let all ranks make every such "
            "call, in the same order: none of them under `if rank == 0`, and none in a thread beside others"
        )

    @abstractmethod
    def _highest(self, numbers: list[int]) -> list[int]:
        """The highest of each of the 64-bit numbers over all ranks. Collective."""

    @abstractmethod
    def _reduce(self, value: int | float, op: str, *, is_whole: bool) -> int | float:
        """As `allreduce`. Collective. `is_whole`: all ranks gave integers of 64 bits."""

    @abstractmethod
    def _exchange(self, words: tuple[str, str]) -> list[tuple[str, str]]:
        """Every rank's words in rank order. Collective, without a meeting of its own."""


def _thread() -> str:
    """Whether this is the main thread; not which other one, as pools of threads deal their work out as it comes."""
    return "" if threading.current_thread() is threading.main_thread() else ", in a thread of its own"


def _entry(frame: FrameType | None) -> str:
    """The function of ours through which the user's code came to a collective, as "hpc_train.checkpoint.….save"."""
    entry = ""
    while frame is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if not module.startswith("hpc_train.") or module.startswith(_CALLERS):
            break
        entry = f"{module}.{frame.f_code.co_name}"
        frame = frame.f_back
    return entry
