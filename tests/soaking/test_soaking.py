"""The soak's plan and its claims: what it would say of runs whose story is known."""

from __future__ import annotations

from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from hpc_train.run.journal import Event
from soaking.findings import Injection, Losses, Sickness, find_false_alarms, find_losses, find_outcome
from soaking.main import main
from soaking.plan import EXPECTATIONS, MAX_DELAY_S, plan
from soaking.report import Case, Ended, find_faults_of_ours, table

KILLED = Injection(kind="kill rank", run="r", attempt=0, rank=3, node="n2", time=103.5)


def event(kind: str, attempt: int, time: float, **fields: Any) -> Event:
    return Event(kind, "decide" if kind == "decision" else "rank0", attempt, time, fields)


def story(**decision: Any) -> list[Event]:
    """Three steps, a commit after the second, a fault, and an attempt that goes on to step 4."""
    told = {"word": "again", "failure": "killed", "rank": 3, "node": "n2", "reason": "ended by SIGKILL"}
    return [
        event("attempt_started", 0, 100.0),
        *(event("step", 0, 100.0 + step, step=step, digest=10 * step) for step in (1, 2, 3)),
        event("commit", 0, 102.5, step=2),
        event("decision", 0, 105.0, **{**told, **decision}),
        event("attempt_started", 1, 111.0),
        event("resumed", 1, 112.0, step=2),
        *(event("step", 1, 110.0 + step, step=step, digest=10 * step) for step in (3, 4)),
        event("decision", 1, 115.0, word="done", failure="done"),
    ]


def test_a_seed_plans_the_same_faults_again_and_another_one_others() -> None:
    first, again, other = (list(islice(plan(seed, 0, num_nodes=4), 40)) for seed in (7, 7, 8))
    assert first == again != other
    assert list(islice(plan(7, 1, num_nodes=4), 40)) != first


def test_every_kind_comes_before_any_comes_twice() -> None:
    for seed in range(20):
        faults = list(islice(plan(seed, 0, num_nodes=4, has_disk=True), 2 * len(EXPECTATIONS)))
        for part in (faults[: len(EXPECTATIONS)], faults[len(EXPECTATIONS) :]):
            assert {fault.kind for fault in part} == set(EXPECTATIONS)
        assert all(0 <= fault.victim < 1 and 0 <= fault.delay_s <= MAX_DELAY_S for fault in faults)


def test_ranks_of_an_only_host_are_not_frozen() -> None:
    assert "freeze ranks" not in {fault.kind for fault in islice(plan(1, 0, num_nodes=1), 50)}


def test_a_disk_that_others_share_is_not_filled() -> None:
    assert "full disk" not in {fault.kind for fault in islice(plan(1, 0, num_nodes=4), 50)}


def test_a_fault_that_the_end_of_the_run_outran_is_no_wrong_class() -> None:
    found = find_outcome(KILLED, story(word="done", failure="done", rank=None))
    assert find_faults_of_ours([Case(KILLED, found)], []) == []
    assert "1 of them outrun" in table([Case(KILLED, found)], [])


def test_a_fault_that_was_found_and_overcome() -> None:
    found = find_outcome(KILLED, story())
    assert (found.failure, found.rank, found.node) == ("killed", 3, "n2")
    assert (found.detect_s, found.resume_s, found.recomputed) == (1.5, 9.5, 1)
    assert found.is_class_right and found.is_name_right


@pytest.mark.parametrize(
    ("kind", "decision", "is_class_right", "is_name_right"),
    [
        ("kill rank", {"rank": 2}, True, False),
        ("kill rank", {"failure": "hang"}, False, True),
        ("cut node", {"failure": "node_fail"}, True, True),
        ("cut node", {"failure": "node_fail", "node": "n1"}, True, False),
        ("warning", {"failure": "stopped", "node": "", "rank": None}, True, True),  # nobody is to blame
    ],
)
def test_the_wrong_class_and_the_wrong_culprit_are_noticed(
    kind: str, decision: dict[str, Any], is_class_right: bool, is_name_right: bool
) -> None:
    found = find_outcome(replace(KILLED, kind=kind), story(**decision))
    assert (found.is_class_right, found.is_name_right) == (is_class_right, is_name_right)


def test_a_fault_that_nobody_found() -> None:
    found = find_outcome(KILLED, story()[:5])
    assert (found.failure, found.detect_s, found.resume_s, found.recomputed) == (None, None, None, None)


def test_a_decision_without_a_fault_is_a_false_alarm() -> None:
    assert find_false_alarms(story(), [0], {}, []) == []
    alarms = find_false_alarms(story(), [], {0: ["n1", "n2"]}, [])
    assert alarms == ["attempt 0: killed: ended by SIGKILL"]


@pytest.mark.parametrize(
    ("sick", "is_explained"),
    [
        (Sickness("n2", 90.0, 101.0), True),  # it still was when the attempt began
        (Sickness("n2", 104.0, 200.0), True),
        (Sickness("n2", 90.0, 99.0), False),  # before
        (Sickness("n2", 106.0, 200.0), False),  # after
        (Sickness("n3", 90.0, 200.0), False),  # elsewhere
    ],
)
def test_an_attempt_on_a_sick_node_is_none(sick: Sickness, is_explained: bool) -> None:
    assert (find_false_alarms(story(), [], {0: ["n1", "n2"]}, [sick]) == []) is is_explained


def test_losses_are_counted_against_the_plan() -> None:
    events = story()
    assert find_losses(events, [10, 20, 30, 40]) == Losses(0, 0, 0)
    assert find_losses(events, [10, 20, 30, 41, 50]) == Losses(missing=1, doubled=0, wrong=1)
    twice = [*events, event("step", 1, 116.0, step=4, digest=40)]
    assert find_losses(twice, [10, 20, 30, 40]).doubled == 1


def ended(**changes: Any) -> Ended:
    run = Ended("r", 8, 2, "done", is_equal=True, losses=Losses(0, 0, 0), false_alarms=())
    return replace(run, **changes)


@pytest.mark.parametrize(
    ("run", "word"),
    [
        ({}, None),
        ({"end": "cut short", "is_equal": None, "losses": None}, None),
        ({"end": "hung", "is_equal": None, "losses": None}, "hung"),
        ({"end": "hold", "is_equal": None, "losses": None}, "given up"),
        ({"is_equal": False}, "differs"),
        ({"losses": Losses(1, 0, 0)}, "lost"),
        ({"false_alarms": ("attempt 1: hang",)}, "false alarm"),
    ],
)
def test_what_must_not_happen_is_found(run: dict[str, Any], word: str | None) -> None:
    found = find_faults_of_ours([Case(KILLED, find_outcome(KILLED, story()))], [ended(**run)])
    assert found == [] if word is None else (len(found) == 1 and word in found[0])


def test_the_table_has_a_line_for_each_kind_that_came() -> None:
    wrong = find_outcome(KILLED, story(rank=2))
    lines = table([Case(KILLED, find_outcome(KILLED, story())), Case(KILLED, wrong)], [ended()]).splitlines()
    assert lines[2] == "| kill rank | 2 | 2/2 | 1/2 (rank) | 2 (2–2) | 10 (10–10) | 1 (1–1) |"
    assert lines[-1].startswith("1 runs, 1 of them to their end, 2 attempts, 2 faults, 0 of them outrun")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--report", "gone/soak.json"], "--report gone/soak.json: cannot write it"),
        (["--report", "."], "--report .: cannot write it"),
        (["--minutes", "0"], "--minutes 0: allowed"),
        (["--minutes", "nan"], "--minutes nan: allowed"),
    ],
)
def test_what_would_fail_only_at_the_end_is_refused_at_once(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="2"):
        main(words)
    assert said in capsys.readouterr().err
