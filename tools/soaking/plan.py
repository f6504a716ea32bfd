"""Which fault comes when, from a seed. Pure.

Apart from what does the faults, so that a soak that found something can be run again, fault by fault.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

__all__ = ["DISK", "EXPECTATIONS", "RESIZE", "Expectation", "Fault", "plan"]

MAX_DELAY_S = 4.0


@dataclass(frozen=True)
class Expectation:
    """What hpc-train should say of a fault. `names`: what it should name, "rank", "node" or nothing ("")."""

    classes: frozenset[str]
    names: str


def _expect(*classes: str, names: str = "") -> Expectation:
    return Expectation(frozenset(classes), names)


EXPECTATIONS = {
    "kill rank": _expect("killed", names="rank"),
    "kill slurmstepd": _expect("infrastructure", "killed", "node_fail", "peer_lost"),
    "crash node": _expect("node_fail", names="node"),
    # "hang" where the lane's hang limit comes before Slurm has noticed, as on a busy machine: docs/reliability.md.
    "cut node": _expect("node_fail", "hang", names="node"),
    "freeze ranks": _expect("hang", names="node"),
    "freeze node": _expect("node_fail", "hang", names="node"),
    "warning": _expect("stopped"),
    "requeue by Slurm": _expect("preempted"),
    "cancel, then requeue": _expect("cancelled"),
    "cancel, then resume": _expect("cancelled"),
    "cancel, then resize": _expect("cancelled"),
    "full disk": _expect("no_space"),
}
DISK = "full disk"  # only where a lane's runs lie on a small disk of their own
RESIZE = "cancel, then resize"  # after that a run is the undisturbed one in its samples alone


@dataclass(frozen=True)
class Fault:
    """One fault: it comes `delay_s` after the first commit of an attempt; `victim` in [0, 1) chooses the rank."""

    kind: str
    victim: float
    delay_s: float


def plan(seed: int, lane: int, *, num_nodes: int, has_disk: bool = False, can_resize: bool = True) -> Iterator[Fault]:
    """The faults of one lane, without end. Every kind comes once before any comes again.

    Args:  num_nodes: of each of its runs. Where the ranks of an only host freeze with their monitors, nobody is left to
    notice before the wall time.   has_disk: whether they lie on a small disk of their own, which can be filled.
    can_resize: whether their program goes on with another number of ranks.
    """
    random = Random(f"soak {seed} {lane}")
    unfit = {
        kind for kind, fits in (("freeze ranks", num_nodes > 1), (DISK, has_disk), (RESIZE, can_resize)) if not fits
    }
    while True:
        kinds = [kind for kind in EXPECTATIONS if kind not in unfit]
        random.shuffle(kinds)
        for kind in kinds:
            yield Fault(kind, round(random.random(), 4), round(random.uniform(0.0, MAX_DELAY_S), 2))
