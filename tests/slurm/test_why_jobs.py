"""`hpc-train why` of jobs that hpc-train never submitted, on a real Slurm: as user, with nothing but a job id."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.cluster import SlurmCluster, wait_for

PROGRAM = "import os, time\nif os.environ['SLURM_PROCID'] == '1':\n    {}['labels']\ntime.sleep(60)\n"


def submit(cluster: SlurmCluster, directory: Path, body: str, *options: str) -> str:
    """Submit a script as people do; returns the job id."""
    (directory / "job.sh").write_text(f"#!/bin/bash\n{body}\n")
    done = cluster.run(["sbatch", "--parsable", *options, "job.sh"], cwd=directory)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def ended(cluster: SlurmCluster, *job_ids: str) -> None:
    """Wait until the accounting knows of the end."""

    def state() -> bool:
        argv = ["sacct", "-nXP", "-o", "State", "-j", ",".join(job_ids)]
        words = cluster.run(argv).stdout.split("\n")
        return len(words) > len(job_ids) and not {"PENDING", "RUNNING", "REQUEUED"} & set(words)

    wait_for(f"the end of {job_ids}", state, timeout=120)


def why(cluster: SlurmCluster, directory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the command as the user."""
    environ = {"XDG_STATE_HOME": str(directory / "state")}
    done = cluster.run([sys.executable, "-m", "hpc_train", "why", *words], cwd=directory, env=environ)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    return done


def record(cluster: SlurmCluster, directory: Path, *words: str) -> dict[str, Any]:
    """The JSON that the command prints."""
    found: dict[str, Any] = json.loads(why(cluster, directory, *words, "--json").stdout)
    return found


CASES: list[tuple[str, Sequence[str], str, str]] = [
    # a script, options of sbatch, and the class and pattern
    ("srun -N2 -n2 --label --kill-on-bad-exit=0 --wait=1 python3 -u prog.py", ["-N2"], "program", "python-exception"),
    ("module load cuda\nfalse", [], "config", "command-not-found"),
    ("python3 nothere.py", [], "config", "file-missing"),
    ("python3 -c 'import os; os.kill(os.getpid(), 11)'", [], "crash", "segmentation-fault"),
    ("srun -N9 hostname", [], "config", "step-too-large"),
    ("srun --mpi=nonsense hostname", [], "launch", "wrong-mpi"),
    ("exit 42", [], "program", ""),
    ("true", ["--output=/nonexistent/x"], "config", ""),
]


def test_jobs_that_failed(cluster: SlurmCluster, job_dir: Path) -> None:
    (job_dir / "prog.py").write_text(PROGRAM)
    jobs = [submit(cluster, job_dir, body, *options) for body, options, _, _ in CASES]
    ended(cluster, *jobs)
    for job_id, (body, _, failure, pattern) in zip(jobs, CASES):
        found = record(cluster, job_dir, job_id)
        assert (found["diagnosis"]["class"], found["diagnosis"]["pattern"] or "") == (failure, pattern), (body, found)
        assert found["job"]["state"] == "FAILED" and found["job"]["user"] == cluster.user
        assert found["next"] and found["diagnosis"]["evidence"]
    # the whole story of the first: which rank, of what, where it stands
    first = record(cluster, job_dir, jobs[0])
    assert first["diagnosis"]["rank"] == 1
    assert first["diagnosis"]["evidence"][0].endswith("KeyError: 'labels'")
    assert first["diagnosis"]["evidence"][0].startswith(f"slurm-{jobs[0]}.out:")
    lines = why(cluster, job_dir, jobs[0]).stdout.splitlines()
    assert lines[0].startswith(f"job       {jobs[0]}, user {cluster.user}, queue main")
    assert lines[-1].startswith("next      ") and len(lines) <= 24


@pytest.mark.parametrize(
    ("options", "word", "who"),
    [
        (["--hold"], "you hold it", "you"),
        (["--begin=now+1hour"], "may not start yet", "wait"),
        (["--nodelist=n1", "--mem=4000M", "--exclusive", "--begin=now+1day"], "may not start yet", "wait"),
    ],
)
def test_jobs_that_wait(cluster: SlurmCluster, job_dir: Path, options: list[str], word: str, who: str) -> None:
    job_id = submit(cluster, job_dir, "true", *options)
    wait_for("a reason", lambda: "None" not in cluster.run(["squeue", "-ho%r", f"-j{job_id}"]).stdout, timeout=60)
    found = record(cluster, job_dir, job_id)
    cluster.run(["scancel", job_id])
    assert (found["diagnosis"]["class"], found["diagnosis"]["who"]) == ("waiting", who), found
    assert word in found["diagnosis"]["what"] and job_id in found["next"]


def test_a_running_a_cancelled_and_a_timed_out_job(cluster: SlurmCluster, job_dir: Path) -> None:
    job_id = submit(cluster, job_dir, "sleep 100", "--time=5")
    wait_for("it runs", lambda: "RUNNING" in cluster.run(["squeue", "-ho%T", f"-j{job_id}"]).stdout, timeout=60)
    found = record(cluster, job_dir, job_id)
    assert (found["diagnosis"]["class"], found["job"]["limit_s"]) == ("running", 300)
    cluster.run(["scancel", job_id])
    ended(cluster, job_id)
    found = record(cluster, job_dir, job_id)
    assert found["diagnosis"]["class"] == "cancelled"
    assert cluster.user in found["diagnosis"]["what"]


def test_a_script_that_hides_its_step_s_failure_and_an_array(cluster: SlurmCluster, job_dir: Path) -> None:
    hidden = submit(cluster, job_dir, "srun -n1 bash -c 'exit 7'\ntrue")
    array = submit(cluster, job_dir, "exit $SLURM_ARRAY_TASK_ID", "--array=0-2")
    ended(cluster, hidden)
    ended(cluster, *[f"{array}_{task}" for task in range(3)])
    found = record(cluster, job_dir, hidden)
    assert found["job"]["state"] == "COMPLETED" and found["diagnosis"]["class"] == "program"
    assert f"its step {hidden}.0 did not" in found["diagnosis"]["what"]
    found = record(cluster, job_dir, array)
    assert found["job"]["array_tasks"] == {"COMPLETED": 1, "FAILED": 2}
    assert found["job"]["id"] in (f"{array}_1", f"{array}_2") and found["job"]["exit_code"] in (1, 2)


def test_a_requeued_job_with_an_appended_log(cluster: SlurmCluster, job_dir: Path) -> None:
    body = (
        "if [ ${SLURM_RESTART_COUNT:-0} = 0 ]; then\n"
        '  echo "OSError: [Errno 28] No space left on device"; scontrol requeue $SLURM_JOB_ID; sleep 60\n'
        "fi\necho step 1; echo step 2; echo step 3\nmodule load x\nfalse"
    )
    job_id = submit(cluster, job_dir, body, "--open-mode=append", "--requeue")
    log = job_dir / f"slurm-{job_id}.out"
    wait_for("its second start", lambda: log.exists() and "module" in log.read_text(), timeout=60)
    ended(cluster, job_id)
    found = record(cluster, job_dir, job_id)
    assert found["diagnosis"]["pattern"] == "command-not-found", log.read_text()
    assert found["job"]["earlier_starts"], found["job"]


def test_a_job_that_never_was(cluster: SlurmCluster, job_dir: Path) -> None:
    found = record(cluster, job_dir, "99999999")
    assert found["diagnosis"]["class"] == "unknown" and found["job"]["state"] is None


def test_jobs_that_never_started_blame_no_program(cluster: SlurmCluster, job_dir: Path) -> None:
    cancelled = submit(cluster, job_dir, "true", "--hold")
    cluster.run(["scancel", cancelled])
    fails = submit(cluster, job_dir, "false")
    after = submit(cluster, job_dir, "true", f"--dependency=afterok:{fails}", "--kill-on-invalid-dep=yes")
    ended(cluster, cancelled, fails, after)
    found = record(cluster, job_dir, cancelled)["diagnosis"]
    assert (found["class"], found["who"]) == ("cancelled", "you")
    assert "before it started" in found["what"] and cluster.user in found["what"]
    found = record(cluster, job_dir, after)
    assert (found["diagnosis"]["class"], found["diagnosis"]["who"]) == ("config", "you"), found
    assert "it never started: the job that it waits for ended" in found["diagnosis"]["what"]
