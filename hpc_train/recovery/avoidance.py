"""Which hosts the next start of a run keeps off, out of those that earlier attempts gave reason to doubt. Pure.

Apart from the policy because it looks at the whole run and at the queue. A list that only grows would at last leave
the run waiting for hosts that are not there: a run must go on wherever there are hosts for it, doubtful ones too.
Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from hpc_train.run.journal import Event

__all__ = ["EXPIRY_S", "Avoidance", "Doubt", "avoided_before", "choose_avoided", "find_doubts"]

# A day: longer than most attempts are, and by then a bad host has mostly been seen by its site, or was rebooted.
EXPIRY_S = 24 * 3600.0
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,254}", re.ASCII)  # goes into a command


@dataclass(frozen=True)
class Doubt:
    """A host at which an attempt failed, and the newest time of that [s since 1970]."""

    node: str
    time: float


@dataclass(frozen=True)
class Avoidance:
    """What becomes of the hosts in doubt.

    Attributes:  nodes: the next start keeps off them.   spared: in doubt too, but the run cannot do without them.
    """

    nodes: tuple[str, ...] = ()
    spared: tuple[str, ...] = ()


def find_doubts(events: Iterable[Event], *, cleared: int, now: float) -> list[Doubt]:
    """The hosts in doubt, the newest doubt first, each once.

    Also those that were lost when no shell lived to exclude them: what still runs there of this job can keep Slurm
    from starting it there again ("already running, do not launch second copy"), and then it holds the job.
    Args:  events: of the journal.   cleared: the last attempt after which a person let the run go on: what was wrong
    before has been seen to.   now: seconds since 1970.
    """
    newest: dict[str, float] = {}
    for event in events:
        if event.event != "decision" or event.attempt <= cleared or not now - EXPIRY_S < event.time:
            continue
        for node in _blamed(event):
            newest[node] = max(event.time, newest.get(node, event.time))
    return [Doubt(node, newest[node]) for node in sorted(newest, key=lambda name: (-newest[name], name))]


def _blamed(event: Event) -> list[str]:
    excluded = event.fields.get("exclude")
    named = list(excluded) if isinstance(excluded, list | tuple) else []
    if event.fields.get("failure") == "node_fail":
        named.append(event.fields.get("node"))
    return [node for node in named if isinstance(node, str) and _HOST.fullmatch(node)]


def avoided_before(events: Iterable[Event], submission: int) -> frozenset[str]:
    """The hosts that were put on the list of a submission's job last, so that they can be told from its user's."""
    lists = [event.fields for event in events if event.event == "avoided"]
    newest = lists[-1] if lists else {}
    nodes = newest.get("nodes") if newest.get("submission") == submission else None
    return frozenset(map(str, nodes)) if isinstance(nodes, list) else frozenset()


def choose_avoided(
    doubts: Sequence[Doubt], *, of_user: Collection[str], up: Collection[str], num_nodes: int
) -> Avoidance:
    """Keep off as many as leave enough hosts that are up; the oldest doubts are let go first.

    The newest doubt is the likeliest to be true still, and the oldest host the likeliest to have been repaired. A host
    that is down costs nothing and stays on the list: it may come back as it was.
    Args:  of_user: hosts that the job's user excluded.   up: hosts of the queue that could take a job sooner or later.
    num_nodes: that the job needs.
    """
    room = len(set(up) - set(of_user)) - num_nodes
    nodes: list[str] = []
    spared: list[str] = []
    for doubt in doubts:
        if doubt.node in of_user:
            continue
        if doubt.node not in up:
            nodes.append(doubt.node)
        elif room > 0:
            nodes.append(doubt.node)
            room -= 1
        else:
            spared.append(doubt.node)
    return Avoidance(tuple(sorted(nodes)), tuple(sorted(spared)))
