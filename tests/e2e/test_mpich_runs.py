"""MPICH in the job's environment, through the whole chain: crash, stop and resume, bit-equal to undisturbed.

One run takes all disturbances one after the other: what differs from Open MPI is how ranks start and die, not how many
kinds of runs there are.
"""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from hpc_train.files import read_json
from hpc_train.launch.processes import find_ranks
from hpc_train.recovery.evidence import read_decision
from hpc_train.run.layout import RunDir
from hpc_train.run.marks import read_marks
from hpc_train.scheduler.local.record import read_record
from tests.e2e.lab import Lab, assert_resumed, assert_same_run
from tests.support.cluster import SlurmCluster
from tests.support.ranks import MPICH

COUNTING = Path(__file__).with_name("counting.py")
STEPS, SAVE_EVERY, PAUSE = 90, 10, 0.1
SHAPE = ("--nodes", "2", "--ranks-per-node", "2", "--walltime", "20")
LOCAL_STEPS = 60
LOCAL = ("--ranks-per-node", "4", "--backoff", "1s")


def kill_rank(lab: Lab, run: RunDir, rank: int) -> None:
    """SIGKILL to the program of a rank."""

    def find() -> list[int]:
        return [found.program for found in find_ranks(run.path) if found.rank == rank]

    os.kill(lab.wait_for(f"rank {rank}", run, find, 30)[0], signal.SIGKILL)


def warn(run: RunDir) -> None:
    """The warning before the wall time, to the batch script alone, as the supervisor gives it."""
    record = read_record(run.submission(0))
    assert record is not None
    (script,) = Path(f"/proc/{record.pid}/task/{record.pid}/children").read_text().split()
    os.kill(int(script), signal.SIGUSR2)


def launch_of(run: RunDir) -> tuple[str, str]:
    """Flavour and protocol in the launch record."""
    record = read_json(run.submission(0).launch)
    return record["mpi_flavour"], record["mpi"]


def reasons(run: RunDir, attempts: int) -> list[str]:
    """The classes of the first attempts' ends."""
    decisions = [read_decision(run.attempt(number)) for number in range(attempts)]
    return [decision.failure if decision is not None else "?" for decision in decisions]


@pytest.mark.usefixtures("whole_cluster")
def test_under_srun_a_run_outlives_a_warning_a_killed_rank_and_a_crashed_node(
    cluster: SlurmCluster, slurm_lab: Lab, slurm_data: Path
) -> None:
    lab = replace(slurm_lab, python=MPICH.python)
    reference = lab.train(slurm_data, *SHAPE, steps=STEPS, save_every=SAVE_EVERY)
    run = lab.train(slurm_data, *SHAPE, steps=STEPS, save_every=SAVE_EVERY, pause=PAUSE)
    assert launch_of(run) == ("mpich", "pmi2")
    job_id = lab.status(run)["job_id"]

    lab.wait_between_commits(run, after=SAVE_EVERY)
    assert cluster.run(["scancel", "--batch", "--signal=USR2", job_id]).returncode == 0
    lab.wait_decided(run, 0)
    lab.wait_between_commits(run, after=4 * SAVE_EVERY, attempt=1)
    kill_rank(lab, run, 1)
    lab.wait_decided(run, 1)
    lab.wait_between_commits(run, after=6 * SAVE_EVERY, attempt=2)
    victim = (run.attempt(2).ready / "3").read_text().strip()
    cluster.kill(victim)

    assert lab.wait_end(run, timeout=300) == "done", lab.logs(run)
    assert lab.wait_end(reference) == "done", lab.logs(reference)
    assert_resumed(run, attempts=4)
    assert_same_run(run, reference, slurm_data)
    stopped, killed, crashed = reasons(run, 3)
    assert (stopped, killed) == ("stopped", "killed")
    assert crashed in ("node_fail", "peer_lost")
    assert victim not in {(run.attempt(3).ready / str(rank)).read_text().strip() for rank in range(4)}
    assert {mark.failure for mark in read_marks(run.attempt(0))} <= {"stopped", "terminated"}


def test_hydra_inside_a_slurm_job_starts_ranks_on_all_nodes_and_tells_which_one_died(slurm_lab: Lab) -> None:
    sites = slurm_lab.directory / "sites"
    sites.mkdir(exist_ok=True)
    (sites / "hydra.toml").write_text('extends = "slurm-cluster"\n[launch]\nlauncher = "mpirun"\nmpi = "mpirun"\n')
    environ = {**slurm_lab.environ, "HPC_TRAIN_SITES": str(sites)}
    lab = replace(slurm_lab, site="hydra", environ=environ, python=MPICH.python)
    options = ("--nodes", "2", "--ranks-per-node", "2", "--rendezvous", "none")
    run = lab.submit(*options, "--", "python", COUNTING, "100", "10", "0.05")
    lab.wait_between_commits(run, after=10)
    nodes = [(run.attempt(0).ready / str(rank)).read_text().strip() for rank in range(4)]
    assert nodes[0] == nodes[1] != nodes[2] == nodes[3]  # in blocks, as everything else here takes them to be
    kill_rank(lab, run, 3)

    assert lab.wait_end(run) == "done", lab.logs(run)
    assert_resumed(run, attempts=2)
    decision = read_decision(run.attempt(0))
    assert decision is not None
    assert (decision.failure, decision.rank, decision.node) == ("killed", 3, nodes[3])
    assert "the sum is [5050.0, 5050.0, 5050.0, 5050.0]" in lab.logs(run)


def test_under_hydra_a_run_outlives_a_warning_and_a_killed_rank(local_lab: Lab, local_data: Path) -> None:
    lab = replace(local_lab, python=MPICH.python)
    reference = lab.train(local_data, *LOCAL, steps=LOCAL_STEPS, save_every=SAVE_EVERY)
    run = lab.train(local_data, *LOCAL, steps=LOCAL_STEPS, save_every=SAVE_EVERY, pause=PAUSE)
    assert launch_of(run) == ("mpich", "mpirun")

    lab.wait_between_commits(run, after=SAVE_EVERY)
    warn(run)
    lab.wait_between_commits(run, after=3 * SAVE_EVERY, attempt=1)
    kill_rank(lab, run, 2)

    assert lab.wait_end(run, timeout=240) == "done", lab.logs(run)
    assert lab.wait_end(reference) == "done", lab.logs(reference)
    assert_resumed(run, attempts=3)
    assert_same_run(run, reference, local_data)
    assert reasons(run, 2) == ["stopped", "killed"]
    assert [mark.failure for mark in read_marks(run.attempt(0))] == ["stopped"] * 4
