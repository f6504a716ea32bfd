"""The policy: one row a rule, and what holds for every row."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_train.recovery.outside import CANCEL, NODE_FAILURE, PREEMPTION, REQUEUE
from hpc_train.recovery.policy import WORDS, Decision, Evidence, Limits, Past, decide, delay_s
from hpc_train.run.marks import CODE_OF_CLASS
from tests.run.records import mark

LIMITS = Limits(max_failures=3, max_attempts=50, num_nodes=2, num_ranks=4)
ENDED = Evidence(
    attempt=5,
    is_done=False,
    is_cancelled=False,
    launcher_code=143,  # what srun says for nearly everything
    marks=(),
    silent=(),
    start_step=100,
    last_commit=100,
    past=(),
    num_started=4,
)
PROGRESS: dict[str, Any] = {"last_commit": 200}


def past(failure: str, *, moved: bool = False, cause: str | None = None, node: str = "") -> Past:
    """An earlier attempt."""
    signature = f"{failure}/1/{failure if cause is None else cause}"
    return Past(failure, signature, moved, node)


def end_of(failure: str, **changes: Any) -> dict[str, Any]:
    """The evidence of one rank's mark."""
    return {"marks": (mark(failure, **changes),)}


CLASSES = sorted({*CODE_OF_CLASS, "program", "killed", "crash", "terminated", "peer_lost", "out_of_memory", "timeout"})
HANGING = (mark("hang", 0), mark("hang", 1))
TERMINATED = {"marks": (mark("terminated", 0), mark("terminated", 1))}
SEEN_AT_N0 = {"seen_to_end": frozenset({0, 1})}
PREEMPTED = {**TERMINATED, "ended_by": PREEMPTION, "stop_reason": PREEMPTION}


@pytest.mark.parametrize(
    ("word", "failure", "seconds"),
    [
        ("again", "crash", 30),
        ("again", "timeout", 30),
        ("again-elsewhere", "hang", 30),
        ("again", "stopped", 0),  # it was asked to stop
        ("again", "preempted", 0),
        ("hold", "no_space", 0),  # whoever lets it go on does not want to wait
        ("stop", "program", 0),
        ("done", "done", 0),
    ],
)
def test_only_an_attempt_after_a_failure_waits(word: str, failure: str, seconds: int) -> None:
    assert delay_s(Decision(word, failure, ""), replace(LIMITS, backoff_s=30)) == seconds


@pytest.mark.parametrize(
    ("evidence", "limits", "word", "failure"),
    [
        # 0: done, whatever else is there
        ({"is_done": True}, {}, "done", "done"),
        ({"is_done": True, "is_cancelled": True, **end_of("crash")}, {}, "done", "done"),
        # cancelled by its user
        ({"is_cancelled": True, **end_of("stopped"), **PROGRESS}, {}, "stop", "cancelled"),
        ({"ended_by": CANCEL, **end_of("stopped"), **PROGRESS}, {}, "stop", "cancelled"),
        # preempted before a new checkpoint: nobody's failure, however often; only max_attempts ends it
        ({**TERMINATED, "ended_by": PREEMPTION, "stop_reason": PREEMPTION}, {}, "again", "preempted"),
        ({**PREEMPTED, "past": [past("preempted")] * 9}, {"max_failures": 0}, "again", "preempted"),
        ({**PREEMPTED, "attempt": 49}, {}, "hold", "preempted"),
        ({**PREEMPTED}, {"can_continue": False}, "stop", "preempted"),
        ({**end_of("killed"), "past": [past("preempted")] * 9}, {}, "again", "killed"),
        # saved in the time of grace: preempted too
        ({**end_of("stopped", code=75), "ended_by": PREEMPTION, **PROGRESS}, {}, "again", "preempted"),
        # what its SIGTERM does within: a data worker dies, and the program raises that, at once and every time
        ({**end_of("program"), "ended_by": PREEMPTION}, {}, "again", "preempted"),
        ({**end_of("program"), "ended_by": REQUEUE, "past": [past("program")] * 9}, {}, "again", "preempted"),
        ({**end_of("crash"), "ended_by": PREEMPTION, "past": [past("crash")] * 9}, {}, "again", "preempted"),
        ({**end_of("killed"), "ended_by": PREEMPTION, "past": [past("killed")] * 9}, {}, "again", "preempted"),
        ({**end_of("program"), "ended_by": PREEMPTION, "attempt": 49}, {}, "hold", "preempted"),
        # everything was killed at once: no node is to blame
        ({**PREEMPTED, "marks": (), "silent": [(n, f"n{n // 2}") for n in range(3)]}, {}, "again", "preempted"),
        # what only a person can mend is not undone by it
        ({**end_of("config"), "ended_by": PREEMPTION, "stop_reason": PREEMPTION}, {}, "stop", "config"),
        ({**end_of("usage"), "ended_by": PREEMPTION}, {}, "stop", "usage"),
        ({**end_of("data"), "ended_by": PREEMPTION}, {}, "stop", "data"),
        ({**end_of("no_space"), "ended_by": PREEMPTION}, {}, "hold", "no_space"),
        ({**end_of("out_of_memory"), "ended_by": PREEMPTION}, {}, "hold", "out_of_memory"),
        ({**TERMINATED, "ended_by": PREEMPTION, "stop_reason": "wall time", **PROGRESS}, {}, "again", "preempted"),
        ({**TERMINATED, "ended_by": NODE_FAILURE, "stop_reason": NODE_FAILURE}, {}, "again", "node_fail"),
        # 75: saved on request; does not count as a failure
        ({**end_of("stopped"), **PROGRESS}, {}, "again", "stopped"),
        ({**end_of("stopped"), **PROGRESS, "past": [past("crash")] * 9}, {}, "again", "stopped"),
        ({**end_of("stopped")}, {}, "again", "stopped"),  # preempted before the first save
        ({**end_of("stopped"), "past": [past("stopped")] * 2}, {}, "hold", "stopped"),  # that would go on for ever
        ({**end_of("stopped"), "past": [past("stopped"), past("stopped", moved=True)]}, {}, "again", "stopped"),
        # 76: the machine is suspect: elsewhere, and it counts
        (end_of("infrastructure"), {}, "again-elsewhere", "infrastructure"),
        (end_of("hang"), {}, "again-elsewhere", "hang"),
        (end_of("hang", waits=True), {}, "again", "hang"),  # who waits is not who is stuck
        (end_of("infrastructure"), {"num_nodes": 1}, "again-elsewhere", "infrastructure"),
        (end_of("infrastructure"), {"num_nodes": 1, "can_move": False}, "again", "infrastructure"),  # no elsewhere
        (end_of("infrastructure", node="?"), {}, "again", "infrastructure"),
        (end_of("peer_lost"), {}, "again", "peer_lost"),  # who tells of a lost peer is not who was lost
        ({**end_of("infrastructure"), "past": [past("hang"), past("node_fail")]}, {}, "hold", "infrastructure"),
        ({**end_of("hang"), **PROGRESS, "past": [past("hang")] * 9}, {}, "again-elsewhere", "hang"),
        # superseded: the other attempt goes on
        ({**end_of("superseded"), **PROGRESS}, {}, "stop", "superseded"),
        # 78, 2, 65, 77, 93, 70: the same would happen again
        ({**end_of("config"), **PROGRESS}, {}, "stop", "config"),
        ({**end_of("launch"), **PROGRESS}, {}, "stop", "launch"),
        ({**end_of("usage"), **PROGRESS}, {}, "stop", "usage"),
        ({**end_of("data"), **PROGRESS}, {}, "stop", "data"),
        ({**end_of("permission"), **PROGRESS}, {}, "stop", "permission"),
        ({**end_of("forbidden"), **PROGRESS}, {}, "stop", "forbidden"),
        ({**end_of("bug"), **PROGRESS}, {}, "stop", "bug"),
        # 73, 74, memory: somebody must make room first; no spinning
        ({**end_of("no_space"), **PROGRESS}, {}, "hold", "no_space"),
        ({**end_of("io"), **PROGRESS}, {}, "hold", "io"),
        ({**end_of("out_of_memory"), **PROGRESS}, {}, "hold", "out_of_memory"),
        # 134, 139: once, or as long as checkpoints move on
        (end_of("crash"), {}, "again", "crash"),
        ({**end_of("crash"), "past": [past("crash")]}, {}, "stop", "crash"),
        ({**end_of("crash"), "past": [past("crash", cause="another")]}, {}, "again", "crash"),
        ({**end_of("crash"), **PROGRESS, "past": [past("crash")] * 9}, {}, "again", "crash"),
        ({**end_of("crash"), "past": [past("crash", moved=True)]}, {}, "again", "crash"),
        # twice on one node: elsewhere, instead of using up all retries there
        ({**end_of("crash"), "past": [past("crash", node="n0")]}, {}, "again-elsewhere", "crash"),
        ({**end_of("killed"), "past": [past("crash", node="n0")]}, {}, "again-elsewhere", "killed"),
        ({**end_of("killed"), "past": [past("killed", node="n9")]}, {}, "again", "killed"),
        ({**end_of("crash"), "past": [past("crash", node="n0")]}, {"num_nodes": 1}, "again-elsewhere", "crash"),
        ({**end_of("crash"), "past": [past("crash", node="n0")]}, {"can_move": False}, "stop", "crash"),
        ({**end_of("crash"), "past": [past("crash", node="n9")]}, {"num_nodes": 1}, "stop", "crash"),  # not the host's
        # 137 without a reason known
        (end_of("killed"), {}, "again", "killed"),
        ({**end_of("killed"), "past": [past("killed"), past("crash")]}, {}, "hold", "killed"),
        # 143 and a time limit: only if something was saved
        ({**TERMINATED, "stop_reason": "time limit"}, {}, "stop", "timeout"),
        ({**TERMINATED, "stop_reason": "time limit", **PROGRESS}, {}, "again", "timeout"),
        ({"stop_reason": "time limit", "silent": [(n, "n0") for n in range(4)]}, {}, "stop", "timeout"),
        ({**TERMINATED}, {}, "again", "terminated"),  # told to end, and nobody knows why
        # 1 and other codes of the program's own
        (end_of("program"), {}, "stop", "program"),
        ({**end_of("program"), **PROGRESS}, {}, "again", "program"),
        ({**end_of("program"), **PROGRESS, "past": [past("program")] * 9}, {}, "again", "program"),
        ({**end_of("program"), "start_step": None, "last_commit": 10}, {}, "again", "program"),
        ({**end_of("program"), "start_step": None, "last_commit": None}, {}, "stop", "program"),
        # unknown is a value
        ({"launcher_code": 1}, {}, "again", "unknown"),
        ({"launcher_code": 0}, {}, "again", "unknown"),  # code 0 without DONE is not success
        ({"launcher_code": 1, "past": [past("unknown")]}, {}, "again", "unknown"),
        # launchers lose codes, but one that stands for a class is not made up
        ({"launcher_code": 73}, {}, "hold", "no_space"),
        ({"launcher_code": 93}, {}, "stop", "forbidden"),
        # a rank that vanished, where others could speak
        ({"silent": [(3, "n1")]}, {}, "again-elsewhere", "node_fail"),
        ({**TERMINATED, "silent": [(2, "n1"), (3, "n1")]}, {}, "again-elsewhere", "node_fail"),
        ({**end_of("peer_lost"), "silent": [(3, "n1")]}, {}, "again-elsewhere", "node_fail"),
        ({**end_of("crash"), "silent": [(3, "n1")]}, {}, "again", "crash"),  # a cause is known
        # MPICH crashes in a collective where a peer's node went away: srun told of every end but those on that node
        ({**end_of("crash"), "silent": [(2, "n1"), (3, "n1")], **SEEN_AT_N0}, {}, "again-elsewhere", "node_fail"),
        ({**end_of("crash"), "silent": [(1, "n0"), (2, "n1")], **SEEN_AT_N0}, {}, "again-elsewhere", "node_fail"),
        ({**end_of("crash"), "silent": [(3, "n0")], **SEEN_AT_N0}, {}, "again", "crash"),  # a part of a node
        ({**end_of("crash"), "silent": [(3, "n1")], "ended": [(2, "n1")], **SEEN_AT_N0}, {}, "again", "crash"),
        ({**end_of("crash"), "silent": [(3, "n1")], "seen_to_end": frozenset({0, 3})}, {}, "again", "crash"),
        ({**end_of("no_space"), "silent": [(3, "n1")], **SEEN_AT_N0}, {}, "hold", "no_space"),  # its own word counts
        # srun saw its end: no node is gone, but its monitor was killed with it, and all others only followed
        ({**end_of("peer_lost"), "silent": [(3, "n1")], "seen_to_end": frozenset({3})}, {}, "again", "killed"),
        ({**TERMINATED, "silent": [(3, "n1")], "seen_to_end": frozenset({3})}, {}, "again", "killed"),
        (
            {**TERMINATED, "silent": [(2, "n1"), (3, "n1")], "seen_to_end": frozenset({2, 3})},
            {},
            "again",
            "terminated",  # too many to tell
        ),
        ({**end_of("hang", waits=True), "silent": [(3, "n1")]}, {}, "again-elsewhere", "hang"),  # it waited for rank 3
        ({"launcher_code": None}, {}, "again", "node_fail"),
        # all nodes gone at once: no node stands out
        ({"launcher_code": None, "silent": [(n, f"n{n // 2}") for n in range(4)]}, {}, "again", "node_fail"),
        ({"silent": [(n, f"n{n // 2}") for n in range(4)]}, {}, "again", "unknown"),
        # ranks that never started: a node without the environment
        ({**TERMINATED, "num_started": 2}, {}, "again", "infrastructure"),
        ({"num_started": 0, "launcher_code": 1}, {}, "again", "unknown"),
        # code 0 past MPI_Finalize: the launcher kills the others, who know nothing
        ({**TERMINATED, "abrupt": [(1, "n0")]}, {}, "stop", "program"),
        # one ended as if all were over, and the others lost it: nobody else failed
        ({**end_of("peer_lost"), "ended": [(1, "n0")]}, {}, "stop", "program"),
        ({**end_of("peer_lost"), "ended": [(1, "n0")], **PROGRESS}, {}, "again", "program"),
        ({**end_of("peer_lost"), "ended": [(1, "n0")], "silent": [(2, "n1")]}, {}, "again-elsewhere", "node_fail"),
        ({**end_of("peer_lost")}, {}, "again", "peer_lost"),
        # MPICH's launcher kills them before they can say so; but who vanished from another node may have lost that node
        ({"silent": [(0, "n0"), (2, "n1")], "abrupt": [(1, "n0")], "num_started": 3}, {}, "stop", "program"),
        ({"silent": [(2, "n1")], "abrupt": [(1, "n0")]}, {}, "again-elsewhere", "node_fail"),
        # limits
        ({**end_of("stopped"), **PROGRESS, "attempt": 49}, {}, "hold", "stopped"),
        ({**end_of("stopped"), **PROGRESS}, {"can_continue": False}, "stop", "stopped"),
        (end_of("killed"), {"max_failures": 0}, "hold", "killed"),
        (end_of("killed"), {"max_failures": 1}, "hold", "killed"),
        (end_of("killed"), {"max_failures": 2}, "again", "killed"),
    ],
)
def test_an_end_gets_its_word(evidence: dict[str, Any], limits: dict[str, Any], word: str, failure: str) -> None:
    decision = decide(replace(ENDED, **evidence), replace(LIMITS, **limits))
    assert (decision.word, decision.failure) == (word, failure)


@pytest.mark.parametrize(
    ("evidence", "exclude"),
    [
        (end_of("hang"), ("n0",)),
        ({**TERMINATED, "silent": [(2, "n1"), (3, "n1")]}, ("n1",)),
        # a hang: the node that did not even say so, unless one is known to be stuck
        ({"marks": HANGING, "silent": [(2, "n1"), (3, "n1")]}, ("n1",)),
        ({"marks": HANGING, "silent": [(2, "n0"), (3, "n1")]}, ("n1",)),  # rank 2 was only slow: its node spoke
        ({"marks": HANGING, "silent": [(2, "n0")]}, ("n0",)),  # a part of a node is no dead node
        ({**end_of("hang"), "silent": [(2, "n1"), (3, "n1")]}, ("n0",)),  # hardly anybody could speak
        ({**end_of("hang"), "silent": [(2, "n1")], "seen_to_end": frozenset({2})}, ("n1",)),
        ({**end_of("hang", stuck="was stopped"), "silent": [(2, "n1")]}, ("n0",)),
        # all nodes of the allocation: that says nothing about any of them
        ({**TERMINATED, "silent": [(1, "n0"), (3, "n1")]}, ()),
        ({"silent": [(2, "")]}, ()),
        (end_of("hang", waits=True), ()),
    ],
)
def test_the_suspect_nodes_are_excluded(evidence: dict[str, Any], exclude: tuple[str, ...]) -> None:
    assert decide(replace(ENDED, **evidence), LIMITS).exclude == exclude


@pytest.mark.parametrize(
    ("num_alone", "num_ranks", "is_told"), [(4, 4, True), (3, 4, False), (1, 1, False), (0, 0, False)]
)
def test_a_clean_end_tells_of_ranks_that_never_met(num_alone: int, num_ranks: int, is_told: bool) -> None:
    evidence = replace(ENDED, is_done=True, num_alone=num_alone)
    decision = decide(evidence, replace(LIMITS, num_ranks=num_ranks))
    assert decision.word == "done"
    assert (decision.reason != "all ranks ended cleanly") == is_told
    assert ("none met another: each of the 4 worked by itself" in decision.reason) == is_told


def test_a_lost_node_is_named_before_the_crash_that_it_caused() -> None:
    evidence = replace(ENDED, **end_of("crash"), silent=[(2, "n1"), (3, "n1")], seen_to_end=frozenset({0, 1}))
    decision = decide(evidence, LIMITS)
    assert (decision.rank, decision.node, decision.step, decision.exclude) == (2, "n1", 3, ("n1",))
    assert decision.reason.startswith("rank 2 and 1 more vanished without a word: node n1 failed, or everything on it")
    assert "; rank 1 then: crash; " in decision.reason


def test_a_decision_names_rank_node_step_phase_and_code() -> None:
    decision = decide(replace(ENDED, **end_of("no_space", code=73, phase="checkpoint write")), LIMITS)
    where = (decision.rank, decision.node, decision.step, decision.phase, decision.code)
    assert where == (1, "n0", 3, "checkpoint write", 73)
    assert decision.reason == "no_space; free space or raise the quota, then: hpc-train requeue RUN"


def test_a_failure_that_no_rank_stands_for_names_none() -> None:
    decision = decide(replace(ENDED, stop_reason="time limit"), LIMITS)
    assert (decision.rank, decision.node, decision.code) == (None, "", 143)


def test_two_ends_that_differ_in_numbers_alone_have_one_signature() -> None:
    one, two = (decide(replace(ENDED, **end_of("crash", cause=f"at 0x{n} on gpu {n}")), LIMITS) for n in (17, 42))
    assert one.signature == two.signature


def marks_of(names: list[str]) -> tuple[Any, ...]:
    """One mark a rank."""
    return tuple(mark(name, rank, code=CODE_OF_CLASS.get(name, 1)) for rank, name in enumerate(names))


CLASS_LISTS = st.lists(st.sampled_from(CLASSES), max_size=3)
EVIDENCE = st.builds(
    Evidence,
    attempt=st.integers(0, 60),
    is_done=st.booleans(),
    is_cancelled=st.booleans(),
    launcher_code=st.none() | st.sampled_from([0, 1, 75, 76, 137, 143]),
    marks=CLASS_LISTS.map(marks_of),
    silent=st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["n0", "n1", ""])), max_size=2),
    start_step=st.none() | st.integers(0, 5),
    last_commit=st.none() | st.integers(0, 5),
    past=st.lists(
        st.builds(Past, st.sampled_from(CLASSES), st.sampled_from(["a", "b"]), st.booleans(), st.just("n0")), max_size=6
    ),
    stop_reason=st.sampled_from(["", "time limit"]),
    ended_by=st.sampled_from(["", PREEMPTION, NODE_FAILURE, REQUEUE]),
    abrupt=st.just(()) | st.just(((1, "n0"),)),
    num_started=st.integers(0, 4),
    num_alone=st.integers(0, 4),
    seen_to_end=st.frozensets(st.integers(0, 3)),
)
LIMITS_ST = st.builds(
    Limits,
    max_failures=st.integers(0, 4),
    max_attempts=st.integers(1, 60),
    can_continue=st.booleans(),
    num_nodes=st.integers(1, 3),
    num_ranks=st.just(4),
    can_move=st.booleans(),
)


@given(EVIDENCE, LIMITS_ST)
def test_what_holds_for_every_decision(evidence: Evidence, limits: Limits) -> None:
    decision = decide(evidence, limits)
    assert decision.word in WORDS
    assert decision.word == "done" or decision.reason.startswith(f"{decision.cause}; ")
    assert (decision.word == "done") == evidence.is_done
    assert bool(decision.exclude) == (decision.word == "again-elsewhere")
    assert len(decision.exclude) < max(2, limits.num_nodes)
    assert limits.can_move or not decision.exclude
    if evidence.is_cancelled and not evidence.is_done:
        assert (decision.word, decision.code) == ("stop", 0)
    if decision.word.startswith("again"):
        assert limits.can_continue
        assert evidence.attempt + 1 < limits.max_attempts
    if decision.word in ("hold", "stop") and not evidence.is_cancelled:
        assert decision.code != 0


@given(EVIDENCE, LIMITS_ST)
def test_a_run_that_makes_progress_within_its_limits_goes_on(evidence: Evidence, limits: Limits) -> None:
    budget = replace(
        limits, can_continue=True, max_attempts=evidence.attempt + 2, max_failures=max(1, limits.max_failures)
    )
    moved = replace(evidence, is_cancelled=False, start_step=1, last_commit=2)
    decision = decide(moved, budget)
    final = {"usage", "data", "permission", "config", "launch", "forbidden", "bug", "superseded"}
    assert decision.word in ("again", "again-elsewhere", "done") or decision.failure in final | {
        "no_space",
        "io",
        "out_of_memory",
    }


@given(EVIDENCE, LIMITS_ST)
def test_deciding_is_deterministic(evidence: Evidence, limits: Limits) -> None:
    assert decide(evidence, limits) == decide(evidence, limits)


def test_a_failure_without_progress_ends_after_so_many_times() -> None:
    history: list[Past] = []
    words: list[str] = []
    while len(words) < 20 and (not words or words[-1].startswith("again")):
        decision: Decision = decide(replace(ENDED, **end_of("killed"), past=tuple(history)), LIMITS)
        words.append(decision.word)
        history.append(Past(decision.failure, decision.signature, decision.made_progress))
    assert words == ["again", "again", "hold"]


@pytest.mark.parametrize(
    ("cause", "said"),
    [
        ("DataError: /d: damaged: x", "hpc-train data verify DATASET names"),
        ("CheckpointError: /c: no checkpoint can be loaded", "hpc-train checkpoint verify RUN names"),
        ("exit code 65", "hpc-train data verify DATASET, hpc-train checkpoint verify RUN"),
    ],
)
def test_class_data_names_the_command_that_shows_the_damage(cause: str, said: str) -> None:
    decision = decide(replace(ENDED, **end_of("data", cause=cause)), LIMITS)
    assert (decision.word, said in decision.reason) == ("stop", True), decision.reason


def test_memory_is_asked_for_only_where_somebody_gives_it_out() -> None:
    evidence = replace(ENDED, **end_of("out_of_memory"))
    assert "--memory SIZE" in decide(evidence, LIMITS).reason
    here = decide(evidence, replace(LIMITS, can_move=False)).reason
    assert "--memory" not in here and "--ranks-per-node" in here
