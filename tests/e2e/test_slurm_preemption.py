"""An urgent job takes a training's nodes, in each way that Slurm has: nothing saved is lost, and it goes on once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from hpc_train.recovery.evidence import read_decision
from hpc_train.recovery.policy import Decision
from hpc_train.run.journal import read_journal
from hpc_train.run.layout import RunDir
from tests.e2e.lab import Lab, assert_resumed, assert_same_run, steps_of
from tests.support.cluster import NUM_NODES, SlurmCluster

STEPS, SAVE_EVERY, PAUSE = 60, 15, 0.15
SHAPE = ("--nodes", "2", "--ranks-per-node", "2", "--walltime", "10")


@dataclass(frozen=True)
class Way:
    """How a queue's jobs are preempted, and what must come of it.

    Attributes:  is_saved: the ranks were asked to stop, and no step is lost.   is_requeued: the same job goes on.
    """

    queue: str
    is_saved: bool
    is_requeued: bool


WAYS = (
    Way("spare-requeue", is_saved=False, is_requeued=True),
    Way("spare-requeue-grace", is_saved=True, is_requeued=True),
    Way("spare-cancel", is_saved=False, is_requeued=False),
    Way("spare-cancel-grace", is_saved=True, is_requeued=False),
)


@dataclass(frozen=True)
class Case:
    """A preempted run that has gone on to its end, and when the urgent job was there and could start."""

    way: Way
    run: RunDir
    decision: Decision
    waited_s: float

    @property
    def starts(self) -> list[tuple[str, str]]:
        """Job id and restart count of each attempt."""
        started = [event.fields for event in read_journal(self.run) if event.event == "attempt_started"]
        return [(fields["job_id"], fields["restart_count"]) for fields in started]


@pytest.fixture(scope="module")
def undisturbed(slurm_lab: Lab, slurm_data: Path) -> RunDir:
    """One run to its end, against which the others are held."""
    run = slurm_lab.walk(slurm_data, *SHAPE, steps=STEPS, save_every=SAVE_EVERY)
    assert slurm_lab.wait_end(run) == "done", slurm_lab.logs(run)
    return run


@pytest.fixture(scope="module", params=WAYS, ids=lambda way: way.queue)
def case(request: pytest.FixtureRequest, cluster: SlurmCluster, slurm_lab: Lab, slurm_data: Path) -> Iterator[Case]:
    """A run that was preempted between two commits, with no failure allowed."""
    way: Way = request.param
    options = (*SHAPE, "--queue", way.queue, "--max-failures", "0")
    run = slurm_lab.walk(slurm_data, *options, steps=STEPS, save_every=SAVE_EVERY, pause=PAUSE)
    slurm_lab.wait_between_commits(run, after=SAVE_EVERY)
    urgent = ["--partition=urgent", f"--nodes={NUM_NODES}", "--exclusive", "--time=2"]
    began = time.monotonic()
    done = cluster.run(["srun", *urgent, "--mpi=none", "true"], timeout=90)
    waited_s = time.monotonic() - began
    assert done.returncode == 0, done.stderr
    assert slurm_lab.wait_end(run, timeout=120) == "done", slurm_lab.logs(run)
    slurm_lab.wait_state(run, "completed")
    decision = read_decision(run.attempt(0))
    assert decision is not None
    yield Case(way, run, decision, waited_s)
    listing = cluster.run(["squeue", "--noheader", "--format=%i|%k"]).stdout
    assert run.name not in listing, "a job of the run was left behind"


def test_a_preempted_run_ends_where_one_that_was_left_alone_ends(
    case: Case, slurm_data: Path, undisturbed: RunDir
) -> None:
    lineage = assert_same_run(case.run, undisturbed, slurm_data)
    assert (lineage.num_recomputed == 0) == case.way.is_saved


def test_it_goes_on_exactly_once_and_by_the_right_job(case: Case) -> None:
    assert_resumed(case.run, attempts=2)
    (first, count), (second, later_count) = case.starts
    assert (first == second, count, later_count) == (case.way.is_requeued, "0", "1" if case.way.is_requeued else "0")


def test_it_counts_as_preempted_and_not_as_a_failure(case: Case) -> None:
    assert (case.decision.failure, case.decision.word) == ("preempted", "again"), case.decision


def test_ranks_with_a_time_of_grace_save_and_give_the_nodes_back_early(case: Case) -> None:
    commits = [event for event in read_journal(case.run) if event.event == "commit" and event.attempt == 0]
    if not case.way.is_saved:
        assert [event.fields["step"] % SAVE_EVERY for event in commits] == [0] * len(commits)
        return
    assert "preemption, saved at step" in case.decision.reason
    assert (
        commits[-1].fields["step"]
        == steps_of([event for event in read_journal(case.run) if event.attempt == 0], "step")[-1]
    )
    assert case.waited_s < 20, "the nodes were kept to the end of the time of grace"
