"""Freezing a node, or only the ranks on it: its processes stop where they are and go on later as if nothing had been.

Apart from the nodes' life because nothing dies here. The processes of a node are found by its PID namespace, whatever
became of their parents.
"""

import os
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from slurm_cluster.errors import EXIT_WRONG_USE, ClusterError
from slurm_cluster.layout import Layout
from slurm_cluster.processes import is_running, read_record, read_stat, wait_until

SETTLE_TIMEOUT_S = 10
STOPPED = frozenset("Tt")
DEAD = frozenset("ZX")

THAWED, RANKS_FROZEN, FROZEN = "", "ranks frozen", "frozen"


@dataclass(frozen=True)
class Member:
    """A living process of a node. `is_rank`: srun started it there, it is no daemon and no batch shell."""

    pid: int
    state: str
    is_rank: bool


def freeze(layout: Layout, node: str, *, only_ranks: bool) -> int:
    """Stop every process of a node, or the ranks on it; returns how many stand still.

    Repeated until a look finds none that runs: one may fork between the look and its signal.
    """
    found: list[Member] = []

    def is_settled() -> bool:
        nonlocal found
        found = [member for member in members(layout, node) if member.is_rank or not only_ranks]
        running = [member for member in found if member.state not in STOPPED]
        _signal(layout, node, running, signal.SIGSTOP)
        return not running

    if not wait_until(is_settled, timeout_s=SETTLE_TIMEOUT_S):
        running = [str(member.pid) for member in found if member.state not in STOPPED]
        raise ClusterError(f"{node} did not freeze within {SETTLE_TIMEOUT_S} s: PIDs {', '.join(running)} go on")
    if only_ranks and not found:
        raise ClusterError(f"no rank runs on {node}: nothing was frozen", exit_code=EXIT_WRONG_USE)
    return len(found)


def thaw(layout: Layout, node: str) -> int:
    """Let every process of a node go on; returns how many had stood still."""
    stopped = [member for member in members(layout, node) if member.state in STOPPED]
    _signal(layout, node, stopped, signal.SIGCONT)
    return len(stopped)


def state_of(layout: Layout, node: str) -> str:
    """THAWED, RANKS_FROZEN or FROZEN (with its slurmd)."""
    found = members(layout, node)
    if any(member.state in STOPPED and not member.is_rank for member in found):
        return FROZEN
    return RANKS_FROZEN if any(member.state in STOPPED for member in found) else THAWED


def members(layout: Layout, node: str) -> list[Member]:
    """The living processes of a node, PID 1 included; none where it is dead."""
    record = read_record(layout.record_of(node))
    if record is None or not is_running(record):
        return []
    namespace = _namespace_of(record.pid)
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [
        Member(pid, stat.state, _is_rank(pid))
        for pid in pids
        if namespace and _namespace_of(pid) == namespace and (stat := read_stat(pid)) and stat.state not in DEAD
    ]


def _namespace_of(pid: int) -> str:
    """Which PID namespace a process lives in; "" when it is gone."""
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return ""


def _is_rank(pid: int) -> bool:
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    # The batch shell has SLURM_PROCID too, but belongs to no numbered step.
    return any(variable.startswith(b"SLURM_STEP_ID=") for variable in variables)


def _signal(layout: Layout, node: str, chosen: Iterable[Member], number: signal.Signals) -> None:
    """Through a pidfd whose process is looked at once more: a PID may be another one's by now."""
    record = read_record(layout.record_of(node))
    namespace = _namespace_of(record.pid) if record else ""
    for member in chosen:
        try:
            descriptor = os.pidfd_open(member.pid)
        except ProcessLookupError:
            continue
        try:
            if namespace and _namespace_of(member.pid) == namespace:
                signal.pidfd_send_signal(descriptor, number)
        except ProcessLookupError:
            pass  # it ended meanwhile
        finally:
            os.close(descriptor)
