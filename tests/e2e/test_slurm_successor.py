"""Where requeue is forbidden a run goes on in job after job: the same run, the same result, never two jobs at once."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from hpc_train.files import read_json
from hpc_train.recovery.evidence import read_decision
from hpc_train.run.jobs import read_jobs
from hpc_train.run.journal import read_journal
from hpc_train.run.layout import RunDir
from tests.e2e.lab import Lab, assert_resumed, assert_same_run, steps_of
from tests.support.cluster import SlurmCluster, wait_for

STEPS, SAVE_EVERY, PAUSE = 60, 15, 0.1
SHAPE = ("--nodes", "2", "--ranks-per-node", "2")
COUNTING = str(Path(__file__).with_name("counting.py"))


@pytest.fixture(scope="module")
def lab(slurm_lab: Lab) -> Lab:
    """The cluster as a site that forbids requeue."""
    return with_site(slurm_lab, "no-requeue", 'extends = "slurm-cluster"\ncontinuation = "successor"\n')


def with_site(lab: Lab, name: str, text: str) -> Lab:
    """The lab with a site file of the test's own."""
    sites = lab.directory / "sites"
    sites.mkdir(exist_ok=True)
    (sites / f"{name}.toml").write_text(text)
    return dataclasses.replace(lab, site=name, environ={**lab.environ, "HPC_TRAIN_SITES": str(sites)})


@pytest.fixture(scope="module")
def undisturbed(lab: Lab, slurm_data: Path) -> RunDir:
    """One run to its end, against which the others are held."""
    run = lab.walk(slurm_data, *SHAPE, "--walltime", "10", steps=STEPS, save_every=SAVE_EVERY)
    assert lab.wait_end(run) == "done", lab.logs(run)
    lab.wait_state(run, "completed")
    return run


def queued(cluster: SlurmCluster, run: RunDir) -> list[str]:
    """Ids of the jobs that Slurm has for this run and that have not ended."""
    listing = cluster.run(["squeue", "--noheader", "--format=%i|%k"]).stdout.splitlines()
    return [line.split("|")[0] for line in listing if f"hpc-train:{run.name}/" in line]


def wait_none_queued(cluster: SlurmCluster, lab: Lab, run: RunDir) -> None:
    """The job that waits is withdrawn a moment after the decision."""
    lab.wait_for("an end of all jobs", run, lambda: not queued(cluster, run), 30)


def wait_one_queued(cluster: SlurmCluster, lab: Lab, run: RunDir) -> list[str]:
    """The one job that is left once Slurm has cleared up after the others, which it lists until then."""
    return list(lab.wait_for("one job", run, lambda: len(ids := queued(cluster, run)) == 1 and ids, 60))


def has_stepped(run: RunDir, attempt: int) -> bool:
    return any(event.event == "step" and event.attempt == attempt for event in read_journal(run))


def jobs_of_attempts(run: RunDir) -> list[str]:
    """The job that each attempt ran in."""
    return [event.fields["job_id"] for event in read_journal(run) if event.event == "attempt_started"]


def test_a_finished_run_leaves_no_job_behind(cluster: SlurmCluster, lab: Lab, undisturbed: RunDir) -> None:
    (first, second) = read_jobs(undisturbed)
    assert (first.withdrawn, second.withdrawn, second.attempt) == (False, True, 0)
    assert queued(cluster, undisturbed) == []
    assert lab.status(undisturbed)["job_id"] == first.job_id
    assert jobs_of_attempts(undisturbed) == [first.job_id]


def test_segments_that_a_warning_ends_end_where_one_long_run_ends(
    cluster: SlurmCluster, lab: Lab, slurm_data: Path, undisturbed: RunDir
) -> None:
    # The warning as Slurm sends it, without the minutes of a time limit: test_slurm_runs.py waits for a real one.
    run = lab.walk(slurm_data, *SHAPE, "--walltime", "10", steps=STEPS, save_every=1000, pause=0.4)
    for attempt in range(3):
        lab.wait_for(f"steps of attempt {attempt}", run, partial(has_stepped, run, attempt), 60)
        job = jobs_of_attempts(run)[attempt]
        assert cluster.run(["scancel", "--batch", "--signal=USR2", job]).returncode == 0
    assert lab.wait_end(run, timeout=200) == "done", lab.logs(run)
    lineage = assert_same_run(run, undisturbed, slurm_data)
    assert_resumed(run, attempts=4)
    assert lineage.num_recomputed == 0, "a stop with a save must not cost a step"
    jobs = jobs_of_attempts(run)
    assert len(set(jobs)) == len(lineage.resumed) and jobs == sorted(jobs, key=int)
    found = [
        json.loads(lab.hpc_train("status", "--json", job).stdout)[0]["run"] for job in (jobs[0], jobs[1], jobs[-1])
    ]
    assert found == [run.name] * 3, "each job id leads to the run"
    wait_none_queued(cluster, lab, run)


@pytest.mark.usefixtures("whole_cluster")
@pytest.mark.parametrize("is_batch_host", [True, False])
def test_a_crashed_node_costs_steps_but_changes_nothing(
    cluster: SlurmCluster, lab: Lab, slurm_data: Path, undisturbed: RunDir, is_batch_host: bool
) -> None:
    options = (*SHAPE, "--walltime", "10")
    run = lab.walk(slurm_data, *options, steps=STEPS, save_every=SAVE_EVERY, pause=PAUSE)
    lab.wait_between_commits(run, after=SAVE_EVERY)
    batch_host = read_json(run.attempt(0).started)["host"]
    nodes = {(run.attempt(0).ready / str(rank)).read_text().strip() for rank in range(4)}
    victim = batch_host if is_batch_host else (nodes - {batch_host}).pop()
    cluster.kill(victim, noticed=True)

    assert lab.wait_end(run, timeout=120) == "done", lab.logs(run)
    assert_resumed(run, attempts=2)
    assert assert_same_run(run, undisturbed, slurm_data).num_recomputed > 0
    decision = read_decision(run.attempt(0))
    assert decision is not None and decision.failure in ("node_fail", "peer_lost"), decision
    first, second = jobs_of_attempts(run)
    assert first != second
    wait_none_queued(cluster, lab, run)


def test_a_user_ends_a_run_by_scancel_and_lets_it_go_on(cluster: SlurmCluster, lab: Lab) -> None:
    # So many steps that it still runs when all has been asked; the next attempt hurries.
    program = ("python", COUNTING, "400", "10", "0.05", "brief")
    run = lab.submit("--ranks-per-node", "2", "--rendezvous", "none", "--", *program)
    commit = lab.wait_between_commits(run, after=10)
    job, waiting = lab.wait_for("the waiting job", run, lambda: len(ids := queued(cluster, run)) == 2 and ids, 60)
    refused = lab.hpc_train("requeue", run.path)
    assert refused.returncode == 78 and "is running; it goes on by itself" in refused.stderr
    assert cluster.run(["scancel", min(job, waiting, key=int)]).returncode == 0

    lab.wait_state(run, "cancelled")
    wait_none_queued(cluster, lab, run)
    decision = read_decision(run.attempt(0))
    assert decision is not None and (decision.failure, decision.word) == ("cancelled", "stop")

    asked = lab.hpc_train("requeue", run.path)
    assert asked.returncode == 0, asked.stderr
    lab.wait_state(run, "completed")
    assert assert_resumed(run, attempts=2).resumed[1] >= commit
    assert jobs_of_attempts(run)[1] not in (job, waiting)


def test_a_job_that_was_cancelled_while_its_shell_was_stuck_is_not_followed_by_another(
    cluster: SlurmCluster, lab: Lab
) -> None:
    run = lab.submit("--rendezvous", "none", "--", "sleep", "300")
    lab.wait_for("the waiting job", run, lambda: len(queued(cluster, run)) == 2, 30)
    job = jobs_of_attempts(run)[0]
    shell = batch_shell(cluster, job)
    os.kill(shell, signal.SIGSTOP)
    assert cluster.run(["scancel", job]).returncode == 0
    keep_stopped(shell)

    decision = lab.wait_for("the decision", run, lambda: read_decision(run.attempt(0)), 60)
    assert (decision.failure, decision.word) == ("cancelled", "stop")
    wait_none_queued(cluster, lab, run)
    assert "not started again" in run.submission(0).batch_log.read_text(), "the shell has decided after all"
    assert len(run.attempts()) == 1
    assert lab.status(run)["state"] == "cancelled"


def keep_stopped(pid: int) -> None:
    """Slurm wakes the processes that it ends, and kills them after KillWait: until then this one does nothing."""
    with contextlib.suppress(ProcessLookupError):
        while True:
            os.kill(pid, signal.SIGSTOP)
            time.sleep(0.002)


def batch_shell(cluster: SlurmCluster, job: str) -> int:
    """PID of the shell that runs a job's script; another cluster beside this one may have a job of that number."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes()
        except OSError:
            continue
        if f"{cluster.dir}/".encode() in words and f"/job{int(job):05d}/slurm_script".encode() in words:
            return int(path.parent.name)
    raise AssertionError(f"job {job} runs nowhere")


def test_cancel_ends_the_job_and_the_one_that_waits(cluster: SlurmCluster, lab: Lab) -> None:
    run = lab.submit("--rendezvous", "none", "--", "sleep", "300")
    lab.wait_for("the waiting job", run, lambda: len(queued(cluster, run)) == 2, 30)
    assert lab.status(run)["state"] == "running"
    assert lab.hpc_train("cancel", run.path).returncode == 0
    wait_none_queued(cluster, lab, run)
    lab.wait_state(run, "cancelled")
    assert len(run.attempts()) == 1


def test_a_held_run_waits_as_a_held_job_until_it_is_asked_to_go_on(cluster: SlurmCluster, lab: Lab) -> None:
    check = 'test -e "$HPC_TRAIN_RUN_DIR/mended" || kill -KILL $$'
    run = lab.submit("--rendezvous", "none", "--max-failures", "0", "--", "bash", "-c", check)
    assert lab.wait_end(run) == "hold"
    lab.wait_state(run, "held")
    (waiting,) = wait_one_queued(cluster, lab, run)
    (run.path / "mended").touch()
    asked = lab.hpc_train("requeue", run.path)
    assert asked.returncode == 0 and f"goes on as job {waiting}" in asked.stdout, asked.stderr
    lab.wait_state(run, "completed")
    assert jobs_of_attempts(run)[1] == waiting


def test_a_held_run_that_is_resumed_goes_on_in_the_jobs_of_its_new_submission(cluster: SlurmCluster, lab: Lab) -> None:
    program = ("--", "python", COUNTING)
    options = ("--ranks-per-node", "2", "--max-failures", "0", "--rendezvous", "none")
    run = lab.submit(*options, *program, "100", "10", "0.05", "stops")
    commit = lab.wait_between_commits(run, after=10)
    first = jobs_of_attempts(run)[0]
    assert cluster.run(["scancel", "--signal=KILL", f"{first}.0"]).returncode == 0
    lab.wait_state(run, "held")
    (held,) = wait_one_queued(cluster, lab, run)

    asked = lab.hpc_train("resume", run.path, "--ranks-per-node", "4", *program, "120", "10", "0.1", "stops")
    assert asked.returncode == 0, asked.stderr
    lab.wait_for("steps at the new size", run, partial(has_stepped, run, 1), 60)
    lab.wait_for("the job that waits", run, lambda: len(queued(cluster, run)) == 2, 30)
    assert held not in queued(cluster, run), "the job of the older submission could start nothing any more"
    assert cluster.run(["scancel", "--batch", "--signal=USR2", jobs_of_attempts(run)[1]]).returncode == 0

    assert lab.wait_end(run) == "done", lab.logs(run)
    assert assert_resumed(run, attempts=3).resumed[1] >= commit
    wait_none_queued(cluster, lab, run)
    events = read_journal(run)
    assert [event.fields["submission"] for event in events if event.event == "attempt_started"] == [0, 1, 1]
    assert [event.fields["num_ranks"] for event in events if event.event == "progress"] == [2, 4, 4]
    assert len({held, *jobs_of_attempts(run)}) == 4
    assert "the sum is [7260.0, 7260.0, 7260.0, 7260.0]" in lab.logs(run)


def test_an_administrators_requeue_leaves_one_job_that_goes_on(cluster: SlurmCluster, lab: Lab) -> None:
    run = lab.submit(
        "--ranks-per-node", "2", "--rendezvous", "none", "--", "python", COUNTING, "200", "10", "0.05", "stops"
    )
    lab.wait_between_commits(run, after=10)
    job = jobs_of_attempts(run)[0]
    refused = as_administrator(cluster, "scontrol", "requeue", job)
    assert refused.returncode != 0 and "disabled" in refused.stderr, "the job asked for --no-requeue"
    assert as_administrator(cluster, "scontrol", "update", f"jobid={job}", "Requeue=1").returncode == 0
    assert as_administrator(cluster, "scontrol", "requeue", job).returncode == 0
    lab.wait_for("steps after it", run, partial(has_stepped, run, 1), 60)
    lab.wait_for("the second registration", run, lambda: any(each.attempt == 1 for each in read_jobs(run)), 30)
    (waiting,) = set(queued(cluster, run)) - {job}
    assert cluster.run(["scancel", "--batch", "--signal=USR2", job]).returncode == 0

    assert lab.wait_end(run) == "done", lab.logs(run)
    assert_resumed(run, attempts=3)
    assert jobs_of_attempts(run) == [job, job, waiting]
    wait_none_queued(cluster, lab, run)


def as_administrator(cluster: SlurmCluster, *argv: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(argv, env=cluster.env, timeout=30, capture_output=True, text=True)


def test_the_next_job_avoids_a_node_that_hung(cluster: SlurmCluster, lab: Lab) -> None:
    options = ("--nodes", "2", "--hang-timeout", "6s", "--rendezvous", "none")
    run = lab.submit(*options, "--", "python", COUNTING, "5", "2", "0", "hang")
    assert lab.wait_end(run, timeout=120) == "done", lab.logs(run)
    first = read_decision(run.attempt(0))
    assert first is not None and (first.failure, first.word) == ("hang", "again-elsewhere")
    used = {(run.attempt(1).ready / str(rank)).read_text().strip() for rank in range(2)}
    assert first.node not in used
    assert len(set(jobs_of_attempts(run))) == 2


def test_a_job_that_may_not_be_requeued_after_all_goes_on_in_a_new_one(cluster: SlurmCluster, slurm_lab: Lab) -> None:
    program = ("python", COUNTING, "200", "10", "0.05", "stops", "brief")
    run = slurm_lab.submit("--rendezvous", "none", "--", *program)
    slurm_lab.wait_between_commits(run, after=10)
    job = jobs_of_attempts(run)[0]
    assert len(read_jobs(run)) == 1, "a site that requeues needs no second job"
    assert cluster.run(["scontrol", "update", f"jobid={job}", "Requeue=0"]).returncode == 0
    assert cluster.run(["scancel", "--batch", "--signal=USR2", job]).returncode == 0

    assert slurm_lab.wait_end(run) == "done", slurm_lab.logs(run)
    assert_resumed(run, attempts=2)
    assert len(set(jobs_of_attempts(run))) == 2
    assert "presently disabled" in run.submission(0).batch_log.read_text()
    assert steps_of(read_journal(run), "commit")[-1] == 200


@dataclasses.dataclass(frozen=True)
class JobLimit:
    """How many jobs a user of the cluster may have in the queue."""

    cluster: SlurmCluster

    def set(self, number: int) -> None:
        """-1 takes the limit away."""
        argv = ["sacctmgr", "--immediate", "modify", "user", self.cluster.user, "set", f"MaxSubmitJobs={number}"]
        subprocess.run(argv, env=self.cluster.env, check=True, timeout=30, stdout=subprocess.DEVNULL)

    def used(self) -> int:
        """What Slurm counts; it shows it only beside a limit, and may count jobs for ever that are long gone."""
        argv = ["scontrol", "show", "assoc_mgr", f"users={self.cluster.user}", "flags=assoc"]
        shown = subprocess.run(argv, env=self.cluster.env, check=True, timeout=30, capture_output=True, text=True)
        found = re.search(r"MaxSubmitJobs=\d+\((\d+)\)", shown.stdout)
        assert found is not None, shown.stdout
        return int(found[1])


@pytest.fixture
def one_job_a_user(cluster: SlurmCluster) -> Iterator[Callable[[], bool]]:
    """The site allows each user one job in the queue; gives a question: is there room for one?"""
    limit = JobLimit(cluster)
    limit.set(1000)
    listing = ["squeue", "--noheader", f"--user={cluster.user}"]

    def is_empty() -> bool:
        # Jobs that other tests left held would count, and the shell of one that ends may still submit another.
        cluster.run(["scancel", f"--user={cluster.user}"])
        counts = set()
        for _ in range(4):
            time.sleep(1.0)
            done = cluster.run(listing)
            if done.returncode != 0 or done.stdout.strip():
                return False
            counts.add(limit.used())
        return len(counts) == 1

    wait_for("no job of the user is left", is_empty, timeout=90)
    gone = limit.used()
    limit.set(gone + 1)
    yield lambda: limit.used() == gone
    limit.set(-1)


def test_where_a_second_job_is_refused_the_run_says_so_and_goes_on_from_the_login_node(
    cluster: SlurmCluster, lab: Lab, one_job_a_user: Callable[[], bool]
) -> None:
    cluster.wait_idle()
    run = lab.submit("--rendezvous", "none", "--", "python", COUNTING, "200", "10", "0.05", "stops", "brief")
    lab.wait_between_commits(run, after=10)
    job = jobs_of_attempts(run)[0]
    assert cluster.run(["scancel", "--batch", "--signal=USR2", job]).returncode == 0
    lab.wait_state(run, "failed")
    log = run.submission(0).batch_log.read_text()
    assert "AssocMaxSubmitJobLimit" in log and "it is tried again at the end of this attempt" in log
    assert f"go on with: hpc-train requeue {run.name}" in log
    assert cluster.run(["scontrol", "show", "job", job]).stdout.count("ExitCode=75:0") == 1
    assert f"hpc-train requeue {run.name}" in lab.hpc_train("why", run.path).stdout.splitlines()[-1]

    # As long as Slurm clears up after the ended job, that one still counts for the limit.
    wait_for("no job of the user is left", one_job_a_user, timeout=60)
    asked = lab.hpc_train("requeue", run.path)
    assert asked.returncode == 0, asked.stderr
    lab.wait_state(run, "completed")
    assert_resumed(run, attempts=2)
