"""Every kind of fault on one of four ranks under srun: the step ends in bounded time, with the right word for it.

The program and the table are those of the fault matrix under mpirun; here real Slurm starts, kills and requeues.
"""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from hpc_train.launch.processes import find_ranks
from hpc_train.recovery.evidence import read_decision
from hpc_train.recovery.policy import Decision
from hpc_train.run.journal import read_journal
from hpc_train.run.layout import RunDir
from hpc_train.run.marks import read_marks
from tests.e2e.lab import Lab
from tests.launch.test_fault_matrix import FAULTS, KILL_WAIT_S, PROGRAM, REACTION_S, WAITED_S, Case
from tests.support.cluster import wait_for
from tests.support.ranks import MPICH, OPENMPI

KINDS = (
    "exception", "sys.exit 3", "sys.exit 0", "SIGKILL", "SIGSEGV", "import", "exit before MPI", "kill before MPI",
    "phase", "SIGSTOP",
)  # fmt: skip
# MPICH comes by Slurm's other process manager, which does not mind where a process goes past MPI_Finalize.
MPICH_KINDS = ("exception", "sys.exit 0", "SIGKILL", "kill before MPI")
CASES: list[Case] = [*((OPENMPI, kind) for kind in KINDS), *((MPICH, kind) for kind in MPICH_KINDS)]
every_case = pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0].name}-{case[1]}")


@dataclass(frozen=True)
class Outcome:
    """An ended case: its decision, seconds between fault and decision, the batch shell's log, who left a mark."""

    decision: Decision
    after_s: float
    batch_log: str
    told: frozenset[int] = frozenset()


@pytest.fixture(scope="module")
def outcomes(slurm_lab: Lab) -> dict[Case, Outcome]:
    """All cases, two at a time: most of their time is waiting."""

    def run(case: Case) -> Outcome:
        mpi, kind = case
        lab = replace(slurm_lab, python=mpi.python)
        options = ["--nodes", "2", "--ranks-per-node", "2", "--rendezvous", "none", "--max-failures", "0"]
        if FAULTS[kind].hang_timeout_s < 600:
            options += ["--hang-timeout", f"{FAULTS[kind].hang_timeout_s:g}s"]
        submitted = lab.submit(*options, "--name", kind, "--", "python", str(PROGRAM), kind)
        decision = lab.wait_for(
            f"the decision on {kind}", submitted, lambda: read_decision(submitted.attempt(0)), timeout=90
        )
        fault = (submitted.path / "event").stat().st_mtime
        after_s = submitted.attempt(0).decision.stat().st_mtime - fault
        told = frozenset(mark.writer for mark in read_marks(submitted.attempt(0)))
        return Outcome(decision, after_s, batch_log(lab, submitted), told)

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(CASES, pool.map(run, CASES), strict=True))


def batch_log(lab: Lab, run: RunDir) -> str:
    """The batch log once the decision's line stands in it."""

    def read() -> str:
        log = run.submission(0).batch_log
        text = log.read_text(errors="replace") if log.exists() else ""
        return text if "hpc-train: attempt 0:" in text else ""

    return str(lab.wait_for("the decision in the batch log", run, read, timeout=20))


@every_case
def test_a_fault_ends_the_step_in_bounded_time(case: Case, outcomes: dict[Case, Outcome]) -> None:
    assert outcomes[case].after_s < KILL_WAIT_S + REACTION_S + WAITED_S.get(case[1], 0)


@every_case
def test_class_rank_host_and_step_are_right(case: Case, outcomes: dict[Case, Outcome]) -> None:
    decision, fault = outcomes[case].decision, FAULTS[case[1]]
    assert (decision.failure, decision.code, decision.rank) == (fault.failure, fault.code, 1), decision
    assert decision.step == fault.step
    assert decision.node.startswith("n")
    assert fault.cause in decision.reason


@every_case
def test_one_line_of_the_batch_log_names_the_first_failing_rank(case: Case, outcomes: dict[Case, Outcome]) -> None:
    lines = [line for line in outcomes[case].batch_log.splitlines() if line.startswith("hpc-train: attempt")]
    assert len(lines) == 1
    assert "rank 1 on n" in lines[0]


@pytest.mark.parametrize("kind", ["SIGKILL", "SIGSEGV"])
def test_where_a_rank_is_killed_every_other_has_its_say(kind: str, outcomes: dict[Case, Outcome]) -> None:
    # Open MPI's abort on the others waits; else Slurm's PMIx kills all monitors about 15 ms after the rank's death.
    assert outcomes[OPENMPI, kind].told == {0, 1, 2, 3}


# Who is killed from outside, all at once: of rank 2, alone on a host with rank 3 and no batch shell.
VICTIMS = {"slurmstepd": ("stepd",), "rank and monitor": ("program", "monitor"), "monitor": ("monitor",)}
# Slurm's PMIx may kill all other monitors before they can say whom they miss; then nobody is named, and no wrong one.
CLASSES = {
    "slurmstepd": {"infrastructure", "node_fail", "peer_lost", "unknown"},
    "rank and monitor": {"killed", "peer_lost", "unknown"},
    "monitor": {"killed", "peer_lost", "unknown"},
}


@dataclass(frozen=True)
class Killed:
    """A run on whose host `node` somebody was killed from outside."""

    run: RunDir
    node: str
    outcome: Outcome


def kill_from_outside(run: RunDir, victims: tuple[str, ...]) -> None:
    (rank,) = (found for found in find_ranks(run.path) if found.rank == 2)
    parent = int(Path(f"/proc/{rank.monitor}/stat").read_text().rpartition(")")[2].split()[1])
    pids = {"program": rank.program, "monitor": rank.monitor, "stepd": parent}
    (run.path / "event").touch()
    for victim in victims:
        os.kill(pids[victim], signal.SIGKILL)


def has_stepped(run: RunDir) -> bool:
    return any(event.event == "step" for event in read_journal(run))


@pytest.fixture(scope="module")
def killed(slurm_lab: Lab) -> dict[str, Killed]:
    """All cases at once: what a program cannot do to itself."""

    def one(kind: str) -> Killed:
        options = ("--nodes", "2", "--ranks-per-node", "2", "--rendezvous", "none", "--max-failures", "0")
        run = slurm_lab.submit(*options, "--name", kind, "--", "python", str(PROGRAM), "steps on")
        slurm_lab.wait_for("a step", run, lambda: has_stepped(run), timeout=60)
        kill_from_outside(run, VICTIMS[kind])
        first = run.attempt(0)
        decision = slurm_lab.wait_for(f"the decision on {kind}", run, lambda: read_decision(first), timeout=90)
        after_s = first.decision.stat().st_mtime - (run.path / "event").stat().st_mtime
        node = (first.ready / "2").read_text().strip()
        return Killed(run, node, Outcome(decision, after_s, batch_log(slurm_lab, run)))

    with ThreadPoolExecutor(3) as pool:
        return dict(zip(VICTIMS, pool.map(one, VICTIMS), strict=True))


@pytest.mark.parametrize("kind", VICTIMS)
def test_a_kill_from_outside_ends_the_step_in_bounded_time_and_blames_no_other_host(
    killed: dict[str, Killed], kind: str
) -> None:
    case = killed[kind]
    decision = case.outcome.decision
    assert case.outcome.after_s < KILL_WAIT_S + REACTION_S
    assert decision.failure in CLASSES[kind], decision
    if decision.failure not in ("peer_lost", "unknown"):  # the first tells of another rank, the second of none
        assert decision.node == case.node, decision


@pytest.mark.parametrize("kind", VICTIMS)
def test_nothing_lives_on_after_a_kill_from_outside(killed: dict[str, Killed], kind: str) -> None:
    wait_for("the end of every rank", lambda: not find_ranks(killed[kind].run.path), timeout=20)


def test_a_run_is_held_after_its_budget_and_goes_on_when_asked(slurm_lab: Lab) -> None:
    check = 'test -e "$HPC_TRAIN_RUN_DIR/mended" || kill -KILL $$'
    run = slurm_lab.submit("--rendezvous", "none", "--max-failures", "0", "--", "bash", "-c", check)
    assert slurm_lab.wait_end(run) == "hold"
    slurm_lab.wait_state(run, "held")
    why = slurm_lab.hpc_train("why", run.path)
    assert "killed" in why.stdout and "rank 0" in why.stdout and "hpc-train requeue" in why.stdout

    (run.path / "mended").touch()
    asked = slurm_lab.hpc_train("requeue", run.path)
    assert asked.returncode == 0, asked.stderr
    slurm_lab.wait_state(run, "completed")
