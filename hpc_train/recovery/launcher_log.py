"""Which ranks srun saw end, from what it printed. Pure.

Apart because it is evidence of last resort: when Slurm gives a job up after a node has failed, it kills everything on
the living nodes before any rank can write a mark. srun names the tasks it saw die; those that it does not name were on
the node that went away. Standard library only.
"""

from __future__ import annotations

import re

__all__ = ["MAX_LOG_BYTES", "ranks_seen_to_end"]

MAX_LOG_BYTES = 4 << 20

# "srun: error: n2: tasks 2-3,6: Killed", "srun: error: n4: task 7: Exited with exit code 1"
_TASKS = re.compile(r"^srun: error: \S+: tasks? ([0-9][0-9,-]*): ", re.MULTILINE)


def ranks_seen_to_end(text: str) -> frozenset[int]:
    """The ranks whose end srun reported, however they ended; empty where it reported none."""
    ranks: set[int] = set()
    for found in _TASKS.findall(text):
        for part in found.split(","):
            first, _, last = part.partition("-")
            if first and (last or "-" not in part):
                low, high = int(first), int(last or first)
                ranks.update(range(low, min(high, low + 10_000_000) + 1))
    return frozenset(ranks)
