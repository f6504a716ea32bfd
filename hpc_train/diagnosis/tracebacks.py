"""Finds Python tracebacks in a log and the line that names what was raised, rank by rank where lines are labelled.

Apart from the engine because a traceback is many lines: its last line is what counts, lines of other ranks may stand
between, and one exception may have been raised while another was handled. Standard library only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from hpc_train.diagnosis.logs import Line, Log

__all__ = ["Traceback", "find_tracebacks"]

NEEDLE = b"traceback (most recent call last)"
MAX_TRACEBACKS = 50  # in one stretch of a log: after so many, no further one is the first
MAX_LINES = 1500  # of one traceback, lines of other ranks included; a recursion error prints about 1000
MAX_GAP = 4  # lines from an exception to the words that join it to the next

# A name with a capital in its last part or with dots: "srun: error" of a launcher may stand between.
_RAISED = re.compile(
    r"(?:[A-Za-z_]\w{0,60}\.){0,12}(?:[A-Za-z_]\w{0,30}[A-Z]\w{0,80}|[A-Z]\w{0,80})(?::(?: .*)?)?|"
    r"(?:[a-z_]\w{0,60}\.){1,12}(?:error|timeout|gaierror|herror)(?::(?: .*)?)?"
)
_JOINED = ("During handling of the above exception", "The above exception was the direct cause")


@dataclass(frozen=True)
class Traceback:
    """One traceback, chained ones together.

    Attributes:  part: of the log.   first: its first line.   raised: the lines that name exceptions, in the order of
    printing: the last is the one that was not caught; empty where the rank was killed while it printed, as srun does
    once another line of it has told of the end.
    """

    part: int
    first: Line
    raised: tuple[Line, ...]

    @property
    def told(self) -> Line:
        """The line that tells most."""
        return self.raised[-1] if self.raised else self.first


def find_tracebacks(log: Log) -> list[Traceback]:
    """The first tracebacks of each part of a log."""
    found: list[Traceback] = []
    for part in range(len(log.parts)):
        chained: set[int] = set()
        for at in _places(log.parts[part].lower):
            if at not in chained:
                found.append(_follow(log, part, at, chained))
    return found


def _places(lower: bytes) -> list[int]:
    places: list[int] = []
    at = lower.find(NEEDLE)
    while at >= 0 and len(places) < MAX_TRACEBACKS:
        places.append(at)
        at = lower.find(NEEDLE, at + 1)
    return places


def _follow(log: Log, part: int, at: int, chained: set[int]) -> Traceback:
    """Read on from a "Traceback" line; those that it is chained with are noted in `chained`."""
    first = log.line_at(part, at)
    indent = first.text.lower().find(NEEDLE.decode())
    raised: list[Line] = []
    is_inside, gap, line = True, 0, log.line_after(part, first)
    for _ in range(MAX_LINES):
        if line is None:
            break
        if line.rank == first.rank and len(line.text) >= indent:  # else: another rank's
            text = line.text[indent:]
            if is_inside and _RAISED.fullmatch(text):
                raised.append(line)
                is_inside, gap = False, 0
            elif not is_inside and NEEDLE.decode() in text.lower() and gap < 0:
                chained.add(log.parts[part].lower.find(NEEDLE, line.start))
                is_inside = True
            elif not is_inside and text.startswith(_JOINED):
                gap = -MAX_GAP  # its "Traceback" follows after a blank line
            elif not is_inside:
                gap += 1
                if gap > MAX_GAP:
                    break
        line = log.line_after(part, line)
    return Traceback(part, first, tuple(raised))
