"""Every kind of fault on one of three real MPI ranks: the step ends in bounded time, with the right word for it.

All cases run before the first test looks at one, a few at a time, because most of their time is waiting. Under MPICH
the kinds run that its launcher treats in its own way: it kills at once, monitors too, where a rank has gone past
MPI_Finalize, and goes on with the others where a rank ends before MPI_Init.
"""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.launch.attempts import Ended, make_run, run_attempt
from tests.support.ranks import MPICH, OPENMPI, Mpi

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
MPICH_KINDS = (
    "exception", "sys.exit 0", "os._exit 0", "os._exit 93", "SIGKILL", "import", "kill before MPI", "SIGSTOP",
)  # fmt: skip

Case = tuple[Mpi, str]
CASES: list[Case] = [*((OPENMPI, kind) for kind in FAULTS), *((MPICH, kind) for kind in MPICH_KINDS)]
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0].name}-{case[1]}")


@dataclass(frozen=True)
class Outcome:
    """An ended case and when it ended, relative to its fault [s]."""

    ended: Ended
    after_s: float


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[Case, Outcome]:
    root = tmp_path_factory.mktemp("matrix")

    def run(case: Case) -> Outcome:
        mpi, kind = case
        command = ["python", str(PROGRAM), kind]
        changes = {"hang_timeout_s": FAULTS[kind].hang_timeout_s, "python": mpi.python}
        ended = run_attempt(make_run(root / mpi.name / kind.replace(" ", "-"), command, **changes), mpi=mpi)
        return Outcome(ended, time.time() - os.stat(ended.run.path / "event").st_mtime)

    with ThreadPoolExecutor(4) as pool:
        return dict(zip(CASES, pool.map(run, CASES), strict=True))


@every_case
def test_a_fault_ends_the_step_in_bounded_time(case: Case, outcomes: dict[Case, Outcome]) -> None:
    assert outcomes[case].after_s < KILL_WAIT_S + REACTION_S + WAITED_S.get(case[1], 0)


@every_case
def test_a_fault_gets_its_class_and_the_right_word(case: Case, outcomes: dict[Case, Outcome]) -> None:
    decision, fault = outcomes[case].ended.decision, FAULTS[case[1]]
    assert (decision.failure, decision.word, decision.code) == (fault.failure, fault.word, fault.code)
    assert fault.cause in decision.reason


@every_case
def test_the_first_failing_rank_is_named_with_host_and_step(case: Case, outcomes: dict[Case, Outcome]) -> None:
    decision = outcomes[case].ended.decision
    assert (decision.rank, decision.node, decision.step) == (1, os.uname().nodename, FAULTS[case[1]].step)


@every_case
def test_one_line_names_the_failure_and_no_other_rank(case: Case, outcomes: dict[Case, Outcome]) -> None:
    ended = outcomes[case].ended
    named = [line for line in ended.log.splitlines() if line.startswith("hpc-train: rank ")]
    assert len(ended.batch_log.splitlines()) == 1
    assert "rank 1 on " in ended.batch_log
    assert all(line.startswith("hpc-train: rank 1 on ") for line in named)


@every_case
def test_the_failing_rank_has_its_say_and_nobody_is_done(case: Case, outcomes: dict[Case, Outcome]) -> None:
    ended = outcomes[case].ended
    told = {mark.writer for mark in ended.marks} | {int(path.name) for path in ended.attempt.finished.iterdir()}
    # Not of all ranks: where rank 1 fails at once, the others may be killed unstarted; MPICH's launcher leaves them no
    # time, and Open MPI's mpirun 0.25 s between SIGTERM and SIGKILL, which is not always enough on a busy machine.
    assert 1 in told and told <= {0, 1, 2}
    assert not ended.attempt.done.exists()


def test_the_decision_stands_in_the_journal(outcomes: dict[Case, Outcome]) -> None:
    for (_, kind), outcome in outcomes.items():
        decided = [event.fields for event in outcome.ended.events if event.event == "decision"]
        assert [fields["failure"] for fields in decided] == [FAULTS[kind].failure]


def test_the_waiting_ranks_know_where_they_wait(outcomes: dict[Case, Outcome]) -> None:
    waiting = [mark.writer for mark in outcomes[OPENMPI, "no progress"].ended.marks if mark.waits]
    assert waiting == [0, 2]


def test_a_stopped_process_is_said_to_be_stopped(outcomes: dict[Case, Outcome]) -> None:
    for mpi in (OPENMPI, MPICH):
        assert "its process is stopped by a signal" in outcomes[mpi, "SIGSTOP"].ended.decision.reason


def test_ranks_that_the_launcher_leaves_waiting_for_a_dead_one_end_themselves(outcomes: dict[Case, Outcome]) -> None:
    marks = {mark.writer: mark for mark in outcomes[MPICH, "kill before MPI"].ended.marks}
    assert marks[1].failure == "killed"
    others = [mark for rank, mark in marks.items() if rank != 1]
    assert others  # once the first of them has ended, the launcher kills the other
    for mark in others:
        assert (mark.failure, mark.phase) == ("peer_lost", "start of MPI")
        assert "rank 1 failed, and the launcher left this rank running" in mark.cause
