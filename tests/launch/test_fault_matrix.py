"""Every kind of fault on one of three real MPI ranks: the step ends in bounded time, with the right word for it.

All cases run before the first test looks at one, a few at a time, because most of their time is waiting.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.launch.attempts import Ended, make_run, run_attempt

pytestmark = pytest.mark.mpi

PROGRAM = Path(__file__).with_name("matrix_program.py")
KILL_WAIT_S, REACTION_S = 5, 10


@dataclass(frozen=True)
class Fault:
    """What is expected of a fault on rank 1: class, word of the decision, its code, and a part of the cause."""

    failure: str
    word: str
    code: int
    cause: str
    step: int | None = 3
    hang_timeout_s: float = 600


FAULTS = {
    "exception": Fault("program", "stop", 1, "ValueError: boom"),
    "sys.exit 3": Fault("program", "stop", 3, "the program left with sys.exit(3)"),
    # code 0, but the others wait for ever: nobody but the waiting ranks can tell
    "sys.exit 0": Fault("program", "stop", 1, "rank 1 ended with code 0 while others waited for it in world.barrier"),
    "os._exit 0": Fault("program", "stop", 1, "left with code 0 by os._exit", step=None),
    "os._exit 93": Fault("forbidden", "stop", 93, "the program left with code 93"),
    "SIGKILL": Fault("killed", "again", 137, "ended by SIGKILL"),
    "SIGSEGV": Fault("crash", "again", 139, "ended by SIGSEGV"),
    "import": Fault("program", "stop", 1, "ModuleNotFoundError: No module named 'no_such_module_here'", step=None),
    "exit before MPI": Fault("program", "stop", 5, "the program left with sys.exit(5)", step=None),
    "kill before MPI": Fault("killed", "again", 137, "ended by SIGKILL", step=None),
    "thread": Fault("program", "stop", 1, "thread 'loader' ended with ZeroDivisionError: division by zero"),
    "MemoryError": Fault("out_of_memory", "hold", 1, "MemoryError"),
    "ENOSPC": Fault("no_space", "hold", 73, "OSError: [Errno 28] No space left on device"),
    "phase": Fault("hang", "again", 76, "s in load (limit 2 s); main thread in time.sleep"),
    "no progress": Fault("hang", "again", 76, "no progress for", hang_timeout_s=3),
    # the stopped rank is named, not one of those that wait for it
    "SIGSTOP": Fault("hang", "again", 76, "no progress for", hang_timeout_s=3),
}
# Seconds after the fault that belong to the case: the limits that it runs into.
WAITED_S = {"phase": 2, "no progress": 3, "SIGSTOP": 3}


@dataclass(frozen=True)
class Outcome:
    """An ended case and when it ended, relative to its fault [s]."""

    ended: Ended
    after_s: float


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    root = tmp_path_factory.mktemp("matrix")

    def run(kind: str) -> Outcome:
        command = ["python", str(PROGRAM), kind]
        limit = FAULTS[kind].hang_timeout_s
        ended = run_attempt(make_run(root / kind.replace(" ", "-"), command, hang_timeout_s=limit))
        return Outcome(ended, time.time() - os.stat(ended.run.path / "event").st_mtime)

    with ThreadPoolExecutor(4) as pool:
        return dict(zip(FAULTS, pool.map(run, FAULTS), strict=True))


@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_ends_the_step_in_bounded_time(kind: str, outcomes: dict[str, Outcome]) -> None:
    assert outcomes[kind].after_s < KILL_WAIT_S + REACTION_S + WAITED_S.get(kind, 0)


@pytest.mark.parametrize("kind", FAULTS)
def test_a_fault_gets_its_class_and_the_right_word(kind: str, outcomes: dict[str, Outcome]) -> None:
    decision, fault = outcomes[kind].ended.decision, FAULTS[kind]
    assert (decision.failure, decision.word, decision.code) == (fault.failure, fault.word, fault.code)
    assert fault.cause in decision.reason


@pytest.mark.parametrize("kind", FAULTS)
def test_the_first_failing_rank_is_named_with_host_and_step(kind: str, outcomes: dict[str, Outcome]) -> None:
    decision = outcomes[kind].ended.decision
    assert (decision.rank, decision.node, decision.step) == (1, os.uname().nodename, FAULTS[kind].step)


@pytest.mark.parametrize("kind", FAULTS)
def test_one_line_names_the_failure_and_no_other_rank(kind: str, outcomes: dict[str, Outcome]) -> None:
    ended = outcomes[kind].ended
    named = [line for line in ended.log.splitlines() if line.startswith("hpc-train: rank ")]
    assert len(ended.batch_log.splitlines()) == 1
    assert "rank 1 on " in ended.batch_log
    assert all(line.startswith("hpc-train: rank 1 on ") for line in named)


@pytest.mark.parametrize("kind", FAULTS)
def test_every_rank_has_its_say_and_nobody_is_done(kind: str, outcomes: dict[str, Outcome]) -> None:
    ended = outcomes[kind].ended
    told = {mark.writer for mark in ended.marks} | {int(path.name) for path in ended.attempt.finished.iterdir()}
    started = {0, 1, 2} if FAULTS[kind].step else {1}  # where rank 1 fails at once, the others may be killed unstarted
    assert started <= told
    assert not ended.attempt.done.exists()


def test_the_decision_stands_in_the_journal(outcomes: dict[str, Outcome]) -> None:
    for kind, outcome in outcomes.items():
        decided = [event.fields for event in outcome.ended.events if event.event == "decision"]
        assert [fields["failure"] for fields in decided] == [FAULTS[kind].failure]


def test_the_waiting_ranks_know_where_they_wait(outcomes: dict[str, Outcome]) -> None:
    waiting = [mark.writer for mark in outcomes["no progress"].ended.marks if mark.waits]
    assert waiting == [0, 2]


def test_a_stopped_process_is_said_to_be_stopped(outcomes: dict[str, Outcome]) -> None:
    assert "its process is stopped by a signal" in outcomes["SIGSTOP"].ended.decision.reason
