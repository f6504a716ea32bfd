"""All ranks in one call: what a collective of a World makes sure of before it carries anything.

Apart from the Worlds because both do the same. Neither MPI nor gloo notices ranks in different collectives, as where
rank 0 alone calls `Checkpointer.save`: they wait for each other for ever, or take each other's messages for their own.
"""

from __future__ import annotations

import sys
import zlib
from abc import abstractmethod
from types import FrameType

from hpc_train.bootstrap.attached import AttachedWorld
from hpc_train.errors import UsageError
from hpc_train.launch.sampler import describe_call
from hpc_train.quantities import format_ranks

__all__ = ["MeetingWorld"]

# What calls our pieces as a user's own code does: ranks may well come by different ways from there.
_CALLERS = ("hpc_train.examples", "hpc_train.integrations")


class MeetingWorld(AttachedWorld):
    """A World of several ranks whose collectives begin with `_meet`; a subclass gives the two that carry it."""

    def _meet(self, kind: str) -> None:
        """Wait for all ranks, and make sure that all have come for the same call. Collective: 16 bytes, one message.

        Args:  kind: the collective, with what must be equal on all ranks.
        Raises: UsageError that names the calls and their ranks, the same on all ranks; they are in step again then.
        """
        name = f"{_entry(sys._getframe(2)) or 'the program'}: {kind}"
        number = zlib.crc32(name.encode())
        highest, lowest = self._highest(number, -number)
        if highest == -lowest:
            return
        calls = self._exchange((describe_call(sys._getframe()).text, name))
        is_told_apart = len({call for call, _ in calls}) > 1
        ranks_of: dict[str, list[int]] = {}
        for rank, (call, known) in enumerate(calls):
            ranks_of.setdefault(call if is_told_apart else f"{call}, {known}", []).append(rank)
        where = "; ".join(f"{format_ranks(ranks)} in {call}" for call, ranks in ranks_of.items())
        raise UsageError(
            f"the ranks are in different calls that each wait for all ranks: {where}. Let all ranks make every such "
            "call, in the same order: none of them under `if rank == 0`"
        )

    @abstractmethod
    def _highest(self, first: int, second: int) -> tuple[int, int]:
        """The highest of each of two 64-bit numbers over all ranks. Collective."""

    @abstractmethod
    def _exchange(self, words: tuple[str, str]) -> list[tuple[str, str]]:
        """Every rank's words in rank order. Collective, without a meeting of its own."""


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
