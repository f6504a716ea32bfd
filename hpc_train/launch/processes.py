"""Finds the processes of a run's ranks on this machine.

Apart because drills and tests kill or stop a rank on purpose and must hit the program, not its monitor. Reads /proc
only; ranks of other nodes are not seen. Standard library only.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

__all__ = ["RankProcess", "find_ranks"]


@dataclass(frozen=True)
class RankProcess:
    """A rank on this machine: the process of its program and of the monitor beside it."""

    rank: int
    program: int
    monitor: int


def find_ranks(run_dir: str | os.PathLike[str], *, attempt: int | None = None) -> list[RankProcess]:
    """The ranks of a run that are alive here, in rank order. Processes of other users are passed over.

    Args:  attempt: only ranks of this one; of two attempts at once one has been given up.
    """
    number = [] if attempt is None else [b"--attempt", str(attempt).encode()]
    shims: dict[int, tuple[int, int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and (found := _shim(entry, os.fspath(run_dir), number)):
            shims[int(entry.name)] = found
    # The fork that became the program kept its parent's command line and environment.
    ranks = [RankProcess(rank, pid, parent) for pid, (rank, parent) in shims.items() if parent in shims]
    return sorted(ranks, key=lambda found: found.rank)


def _shim(entry: Path, run_dir: str, number: list[bytes]) -> tuple[int, int] | None:
    try:
        argv = (entry / "cmdline").read_bytes().split(b"\0")
        if argv[1:2] == [b"-u"]:
            del argv[1]
        # Right behind the interpreter: srun and its own child have these words too, further behind.
        if argv[1:5] != [b"-m", b"hpc_train", b"run", os.fsencode(run_dir)]:
            return None
        if number and argv[7:9] != number:
            return None
        pairs = dict(pair.split(b"=", 1) for pair in (entry / "environ").read_bytes().split(b"\0") if b"=" in pair)
        parent = int((entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[1])
    except (OSError, ValueError):
        return None
    for name in (b"OMPI_COMM_WORLD_RANK", b"PMI_RANK", b"PMIX_RANK", b"SLURM_PROCID"):
        if pairs.get(name, b"").isdigit():
            return int(pairs[name]), parent
    return None
