"""With how many ranks a run can go on: its global batches must be dealt out equally. Pure.

Apart from the placement, which knows what a site has: this is what the program needs, as it has told the journal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from hpc_train.errors import SpecError
from hpc_train.quantities import divisors, format_counts
from hpc_train.run.journal import Event

__all__ = ["Streams", "check_ranks", "find_streams"]

MAX_LANES = 1 << 32  # a journal is data: a number of lanes beyond all sense must not cost minutes


@dataclass(frozen=True)
class Streams:
    """What the newest attempt that opened data streams said of them: (global batch, lanes) of each."""

    batches: tuple[tuple[int, int], ...]

    @property
    def allowed_ranks(self) -> list[int]:
        """Numbers of ranks that share the lanes of every stream equally."""
        return divisors(math.gcd(*(lanes for _, lanes in self.batches)))


def find_streams(events: Sequence[Event]) -> Streams | None:
    """The streams that a run's journal tells of, None where no attempt has opened any."""
    told = [event for event in events if event.event == "stream"]
    newest = [event.fields for event in told if event.attempt == told[-1].attempt]
    numbers = [(fields.get("global_batch"), fields.get("lanes")) for fields in newest]
    sound = [(batch, lanes) for batch, lanes in numbers if _is_count(batch) and _is_count(lanes)]
    return Streams(tuple(dict.fromkeys(sound))) if sound else None  # type: ignore[arg-type]  # counts by now


def _is_count(value: object) -> bool:
    return type(value) is int and 1 <= value <= MAX_LANES


def check_ranks(num_ranks: int, streams: Streams, *, run: str, asked: str) -> None:
    """Refuse a number of ranks to which the run's batches cannot be dealt.

    Args:  asked: how the number was asked for, "3 nodes x 2 ranks_per_node".
    Raises: SpecError with the allowed numbers.
    """
    allowed = streams.allowed_ranks
    if num_ranks in allowed:
        return
    batches = ", ".join(f"{batch} samples in {lanes} lanes" for batch, lanes in streams.batches)
    raise SpecError(
        f"run {run} reads global batches of {batches}: allowed ranks {format_counts(allowed)}; asked {num_ranks} "
        f"({asked}); if the new command has another global batch, say so: --global-batch N"
    )
