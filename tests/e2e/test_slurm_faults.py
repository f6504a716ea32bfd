"""Every kind of fault on one of four ranks under srun: the step ends in bounded time, with the right word for it.

The program and the table are those of the fault matrix under mpirun; here real Slurm starts, kills and requeues.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from hpc_train.recovery.evidence import read_decision
from hpc_train.recovery.policy import Decision
from hpc_train.run.layout import RunDir
from tests.e2e.lab import Lab
from tests.launch.test_fault_matrix import FAULTS, KILL_WAIT_S, PROGRAM, REACTION_S, WAITED_S

KINDS = (
    "exception", "sys.exit 3", "sys.exit 0", "SIGKILL", "SIGSEGV", "import", "exit before MPI", "kill before MPI",
    "phase", "SIGSTOP",
)  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """An ended case: its decision, seconds between the fault and the decision, and the batch shell's log."""

    decision: Decision
    after_s: float
    batch_log: str


@pytest.fixture(scope="module")
def outcomes(slurm_lab: Lab) -> dict[str, Outcome]:
    """All cases, two at a time: most of their time is waiting."""

    def run(kind: str) -> Outcome:
        options = ["--nodes", "2", "--ranks-per-node", "2", "--rendezvous", "none", "--max-failures", "0"]
        if FAULTS[kind].hang_timeout_s < 600:
            options += ["--hang-timeout", f"{FAULTS[kind].hang_timeout_s:g}s"]
        submitted = slurm_lab.submit(*options, "--name", kind, "--", "python", str(PROGRAM), kind)
        decision = slurm_lab.wait_for(
            f"the decision on {kind}", submitted, lambda: read_decision(submitted.attempt(0)), timeout=90
        )
        fault = (submitted.path / "event").stat().st_mtime
        return Outcome(decision, submitted.attempt(0).decision.stat().st_mtime - fault, batch_log(slurm_lab, submitted))

    with ThreadPoolExecutor(2) as pool:
        return dict(zip(KINDS, pool.map(run, KINDS), strict=True))


def batch_log(lab: Lab, run: RunDir) -> str:
    """The batch log once the decision's line stands in it."""

    def read() -> str:
        log = run.submission(0).batch_log
        text = log.read_text(errors="replace") if log.exists() else ""
        return text if "hpc-train: attempt 0:" in text else ""

    return str(lab.wait_for("the decision in the batch log", run, read, timeout=20))


@pytest.mark.parametrize("kind", KINDS)
def test_a_fault_ends_the_step_in_bounded_time(kind: str, outcomes: dict[str, Outcome]) -> None:
    assert outcomes[kind].after_s < KILL_WAIT_S + REACTION_S + WAITED_S.get(kind, 0)


@pytest.mark.parametrize("kind", KINDS)
def test_class_rank_host_and_step_are_right(kind: str, outcomes: dict[str, Outcome]) -> None:
    decision, fault = outcomes[kind].decision, FAULTS[kind]
    assert (decision.failure, decision.code, decision.rank) == (fault.failure, fault.code, 1), decision
    assert decision.step == fault.step
    assert decision.node.startswith("n")
    assert fault.cause in decision.reason


@pytest.mark.parametrize("kind", KINDS)
def test_one_line_of_the_batch_log_names_the_first_failing_rank(kind: str, outcomes: dict[str, Outcome]) -> None:
    lines = [line for line in outcomes[kind].batch_log.splitlines() if line.startswith("hpc-train: attempt")]
    assert len(lines) == 1
    assert "rank 1 on n" in lines[0]


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
