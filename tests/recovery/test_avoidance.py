"""Which hosts the next start keeps off: the newest doubts, as many as the run can do without, and none for ever."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_train.recovery.avoidance import EXPIRY_S, Doubt, avoided_before, choose_avoided, find_doubts
from hpc_train.run.journal import Event

NOW = 1_000_000.0
HOSTS = [f"n{number}" for number in range(1, 9)]


def decided(attempt: int, *, age: float = 60.0, **fields: Any) -> Event:
    """The decision on an attempt, some seconds old."""
    return Event("decision", "decide", attempt, NOW - age, {"word": "again", "failure": "killed", **fields})


def nodes(events: list[Event], *, cleared: int = -1) -> list[str]:
    return [doubt.node for doubt in find_doubts(events, cleared=cleared, now=NOW)]


@pytest.mark.parametrize(
    ("events", "found"),
    [
        ([], []),
        ([decided(0, node="n3")], []),  # that a rank was killed there says nothing about the host
        ([decided(0, failure="hang", node="n3", exclude=["n3"])], ["n3"]),
        # lost, and no shell lived to exclude it: decided at the next start
        ([decided(0, failure="node_fail", node="n3", exclude=[])], ["n3"]),
        ([decided(0, failure="node_fail", node="n3", exclude=["n3", "n4"])], ["n3", "n4"]),
        ([decided(0, age=90, exclude=["n1"]), decided(1, age=60, exclude=["n2"])], ["n2", "n1"]),
        # found to be bad again: as young as the last time
        (
            [decided(0, age=90, exclude=["n1"]), decided(1, exclude=["n2"]), decided(2, age=9, exclude=["n1"])],
            ["n1", "n2"],
        ),
        ([decided(0, age=EXPIRY_S + 1, exclude=["n1"]), decided(1, age=EXPIRY_S - 1, exclude=["n2"])], ["n2"]),
        ([Event("step", "rank0", 0, NOW, {"exclude": ["n1"]})], []),
        # it goes into a command
        ([decided(0, exclude=["n1,n2", "n3 x", "--all", "", 7, "node-1.site"])], ["node-1.site"]),
        ([decided(0, exclude="n1")], []),
        ([decided(0, failure="node_fail", node=None)], []),
    ],
)
def test_hosts_are_in_doubt_for_a_day_where_an_attempt_failed_by_them(events: list[Event], found: list[str]) -> None:
    assert nodes(events) == found


def test_what_was_before_a_person_let_the_run_go_on_is_forgotten() -> None:
    events = [decided(0, exclude=["n1"]), decided(1, exclude=["n2"]), decided(2, exclude=["n3"])]
    assert nodes(events, cleared=1) == ["n3"]


def chosen(doubts: list[str], **changes: Any) -> tuple[list[str], list[str]]:
    """Avoided and spared hosts of eight; `doubts`: the newest first."""
    asked: dict[str, Any] = {"of_user": (), "up": HOSTS, "num_nodes": 4, **changes}
    found = choose_avoided([Doubt(node, NOW - n) for n, node in enumerate(doubts)], **asked)
    return list(found.nodes), list(found.spared)


@pytest.mark.parametrize(
    ("doubts", "changes", "avoided", "spared"),
    [
        (["n5", "n2"], {}, ["n2", "n5"], []),
        # four of eight are needed: the oldest doubts are let go
        (["n6", "n5", "n4", "n3", "n2", "n1"], {}, ["n3", "n4", "n5", "n6"], ["n1", "n2"]),
        (["n2", "n1"], {"num_nodes": 8}, [], ["n1", "n2"]),
        (["n2", "n1"], {"num_nodes": 7}, ["n2"], ["n1"]),
        # one that is down costs nothing, and may come back as it was
        (["n9", "n2", "n1"], {"num_nodes": 7}, ["n2", "n9"], ["n1"]),
        # what the user excluded is no room, and is not ours to let go
        (["n2", "n1"], {"of_user": ["n7", "n8"], "num_nodes": 5}, ["n2"], ["n1"]),
        (["n2", "n1"], {"of_user": ["n2"], "num_nodes": 6}, ["n1"], []),
        (["n2", "n1"], {"up": ["n1", "n2", "n3"]}, [], ["n1", "n2"]),  # it waits, but not because of us
    ],
)
def test_as_many_are_avoided_as_leave_enough(
    doubts: list[str], changes: dict[str, Any], avoided: list[str], spared: list[str]
) -> None:
    assert chosen(doubts, **changes) == (avoided, spared)


SOME = st.lists(st.sampled_from([*HOSTS, "n9", "n10"]), unique=True)


@given(SOME, SOME, SOME, st.integers(1, 10))
def test_a_run_is_never_kept_from_hosts_that_it_needs(
    doubts: list[str], of_user: list[str], up: list[str], num_nodes: int
) -> None:
    avoided, spared = chosen(doubts, of_user=of_user, up=up, num_nodes=num_nodes)
    assert {*avoided, *spared} == set(doubts) - set(of_user) and not set(avoided) & set(spared)
    open_to_user = set(up) - set(of_user)
    left = open_to_user - set(avoided)
    assert len(left) >= min(num_nodes, len(open_to_user))
    if spared:
        assert len(left) <= max(num_nodes, len(open_to_user & set(spared)))
    order = [node for node in doubts if node in open_to_user]
    assert [node in spared for node in order] == sorted(node in spared for node in order), "an older one was kept"


def test_ours_are_told_from_the_users_by_what_was_put_on_the_list_last() -> None:
    def told(attempt: int, nodes: Any, submission: int = 0) -> Event:
        return Event("avoided", "decide", attempt, NOW, {"nodes": nodes, "submission": submission})

    assert avoided_before([], 0) == frozenset()
    events = [told(0, ["n1", "n2"]), told(1, ["n2"])]
    assert avoided_before(events, 0) == {"n2"}
    assert avoided_before(events, 1) == frozenset()  # its list began with its user's alone
    assert avoided_before([*events, told(2, [])], 0) == frozenset()
    assert avoided_before([told(0, "n1")], 0) == frozenset()
