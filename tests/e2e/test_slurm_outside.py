"""Slurm's own commands act on a run beside hpc-train's: what they end stays ended, what they start again goes on."""

from __future__ import annotations

from pathlib import Path

from hpc_train.recovery.evidence import read_decision
from tests.e2e.lab import Lab, assert_resumed, lineage_of
from tests.support.cluster import SlurmCluster


def test_scontrol_requeue_goes_on_once_and_scancel_ends_for_good(
    cluster: SlurmCluster, slurm_lab: Lab, slurm_data: Path
) -> None:
    options = ("--ranks-per-node", "2", "--walltime", "10")
    run = slurm_lab.train(slurm_data, *options, steps=120, save_every=10, pause=0.05)
    job_id = slurm_lab.status(run)["job_id"]
    first = slurm_lab.wait_between_commits(run, after=10)
    assert cluster.run(["scontrol", "requeue", job_id]).returncode == 0
    second = slurm_lab.wait_between_commits(run, after=first + 20)
    assert cluster.run(["scancel", job_id]).returncode == 0

    slurm_lab.wait_state(run, "cancelled")
    requeued, cancelled = read_decision(run.attempt(0)), read_decision(run.attempt(1))
    assert requeued is not None and (requeued.failure, requeued.word) == ("preempted", "again")
    assert cancelled is not None and (cancelled.failure, cancelled.word) == ("cancelled", "stop")
    assert "does not requeue" not in run.submission(0).batch_log.read_text()
    assert "hpc-train requeue" in slurm_lab.hpc_train("why", run.path).stdout

    slurm_lab.wait_for("the job's end", run, lambda: slurm_lab.status(run)["job"]["raw"] == "CANCELLED", 30)
    asked = slurm_lab.hpc_train("requeue", run.path)
    assert asked.returncode == 0, asked.stderr
    slurm_lab.wait_state(run, "completed")
    assert_resumed(run, attempts=3)
    lineage = lineage_of(run)
    assert not lineage.missing and not lineage.doubled
    assert lineage.resumed[2] >= second
