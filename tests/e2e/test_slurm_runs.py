"""Crash, stop and resume on a real Slurm of eight hosts: 8 ranks on 4 hosts, dropout on, bit-equal to undisturbed."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from hpc_train.launch.processes import find_ranks
from hpc_train.recovery.evidence import read_decision
from hpc_train.run.journal import read_journal
from hpc_train.run.layout import RunDir
from hpc_train.run.marks import read_marks
from tests.e2e.lab import FOUR_NODES, SAVE_EVERY, STEPS, Lab, assert_resumed, assert_same_run
from tests.support.cluster import SlurmCluster

PAUSE = 0.05
SHAPE = FOUR_NODES
pytestmark = pytest.mark.usefixtures("whole_cluster")


def test_a_crashed_node_costs_steps_but_changes_nothing(
    cluster: SlurmCluster, slurm_lab: Lab, slurm_data: Path, undisturbed: RunDir
) -> None:
    run = slurm_lab.train(slurm_data, *SHAPE, "--walltime", "10", steps=STEPS, save_every=SAVE_EVERY, pause=PAUSE)
    slurm_lab.wait_between_commits(run, after=SAVE_EVERY)
    victim = (run.attempt(0).ready / "5").read_text().strip()
    cluster.kill(victim)

    assert slurm_lab.wait_end(run, timeout=180) == "done", slurm_lab.logs(run)
    assert_resumed(run, attempts=2)
    lineage = assert_same_run(run, undisturbed, slurm_data)
    assert lineage.num_recomputed > 0
    decision = read_decision(run.attempt(0))
    assert decision is not None and decision.failure in ("node_fail", "peer_lost"), decision
    used = {(run.attempt(1).ready / str(rank)).read_text().strip() for rank in range(8)}
    assert victim not in used


@pytest.fixture(scope="module")
def warned(cluster: SlurmCluster, slurm_lab: Lab, slurm_data: Path, undisturbed: RunDir) -> RunDir:
    """A run that meets its time limit, started early: it mostly waits for Slurm, on the half of the hosts left free."""
    cluster.wait_idle()
    # Slurm may send the warning up to a minute early; the pause makes one segment too short for all steps.
    options = (*SHAPE, "--walltime", "2", "--stop-lead", "60s")
    return slurm_lab.train(slurm_data, *options, steps=STEPS, save_every=1000, pause=1.2)


@pytest.mark.usefixtures("warned")
def test_a_killed_rank_costs_steps_but_changes_nothing(slurm_lab: Lab, slurm_data: Path, undisturbed: RunDir) -> None:
    run = slurm_lab.train(slurm_data, *SHAPE, "--walltime", "10", steps=STEPS, save_every=SAVE_EVERY, pause=PAUSE)
    slurm_lab.wait_between_commits(run, after=SAVE_EVERY)
    victim = next(found for found in find_ranks(run.path) if found.rank == 3)
    os.kill(victim.program, signal.SIGKILL)

    assert slurm_lab.wait_end(run, timeout=180) == "done", slurm_lab.logs(run)
    assert_resumed(run, attempts=2)
    lineage = assert_same_run(run, undisturbed, slurm_data)
    assert lineage.num_recomputed > 0
    decision = read_decision(run.attempt(0))
    assert decision is not None and (decision.failure, decision.rank) == ("killed", 3)


def test_the_wall_time_warning_saves_and_the_run_goes_on(
    warned: RunDir, slurm_lab: Lab, slurm_data: Path, undisturbed: RunDir
) -> None:
    run = warned
    assert slurm_lab.wait_end(run, timeout=300) == "done", slurm_lab.logs(run)
    lineage = assert_same_run(run, undisturbed, slurm_data)
    assert len(lineage.resumed) >= 2
    assert_resumed(run, attempts=len(lineage.resumed))
    assert lineage.num_recomputed == 0, "a stop with a save must not cost a step"
    marks = {mark.failure for mark in read_marks(run.attempt(0))}
    assert "stopped" in marks and marks <= {"stopped", "terminated"}
    decision = read_decision(run.attempt(0))
    assert decision is not None and (decision.failure, decision.code, decision.word) == ("stopped", 75, "again")
    assert any(event.event == "commit" and event.attempt == 0 for event in read_journal(run))
