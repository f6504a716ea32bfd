"""What Slurm does beside hpc-train: its own commands act on a run, and a queue has only so many nodes."""

from __future__ import annotations

from pathlib import Path

from hpc_train.recovery.evidence import read_decision
from tests.e2e.lab import Lab, assert_resumed, lineage_of
from tests.support.cluster import NUM_NODES, SlurmCluster

COUNTING = str(Path(__file__).with_name("counting.py"))


def test_a_job_that_needs_every_node_of_its_queue_goes_on_after_a_hang(cluster: SlurmCluster, slurm_lab: Lab) -> None:
    cluster.wait_idle()
    # Longer than eight ranks on two cores may stand still for once without a hang.
    options = ("--nodes", str(NUM_NODES), "--hang-timeout", "8s", "--rendezvous", "none")
    run = slurm_lab.submit(*options, "--", "python", COUNTING, "5", "2", "0", "hang")
    assert slurm_lab.wait_end(run, timeout=180) == "done", slurm_lab.logs(run)
    # Not the first attempt's decision: eight ranks on two cores may fail before they count, in MPI's own start.
    decisions = [decision for each in run.attempts() if (decision := read_decision(each)) is not None]
    hangs = [decision for decision in decisions if decision.failure == "hang"]
    assert len(hangs) == 1, (decisions, slurm_lab.logs(run))
    hang = hangs[0]
    assert (hang.word, hang.rank) == ("again-elsewhere", 1)
    said = f"{hang.node} is not avoided: the job needs {NUM_NODES} hosts"
    assert said in run.submission(0).batch_log.read_text()


def test_scontrol_requeue_goes_on_once_and_scancel_ends_for_good(cluster: SlurmCluster, slurm_lab: Lab) -> None:
    options = ("--ranks-per-node", "2", "--rendezvous", "none")
    run = slurm_lab.submit(*options, "--", "python", COUNTING, "100", "10", "0.05")
    job_id = slurm_lab.status(run)["job_id"]
    first = slurm_lab.wait_between_commits(run, after=10)
    assert cluster.run(["scontrol", "requeue", job_id]).returncode == 0
    second = slurm_lab.wait_between_commits(run, after=first + 20, attempt=1)
    assert cluster.run(["scancel", job_id]).returncode == 0

    slurm_lab.wait_for("the job's end", run, lambda: slurm_lab.status(run)["job"]["raw"] == "CANCELLED", 60)
    assert slurm_lab.status(run)["state"] == "cancelled"
    requeued, cancelled = read_decision(run.attempt(0)), read_decision(run.attempt(1))
    assert requeued is not None and (requeued.failure, requeued.word) == ("preempted", "again")
    assert cancelled is not None and (cancelled.failure, cancelled.word) == ("cancelled", "stop")
    assert "does not requeue" not in run.submission(0).batch_log.read_text()
    assert "hpc-train requeue" in slurm_lab.hpc_train("why", run.path).stdout

    asked = slurm_lab.hpc_train("requeue", run.path)
    assert asked.returncode == 0, asked.stderr
    slurm_lab.wait_state(run, "completed")
    assert_resumed(run, attempts=3)
    lineage = lineage_of(run)
    assert not lineage.missing and not lineage.doubled
    assert lineage.resumed[2] >= second
    assert "the sum is [5050.0, 5050.0, 5050.0, 5050.0]" in slurm_lab.logs(run)
