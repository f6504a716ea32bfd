"""How little hpc-train asks of a real controller, and how soon it says that there is none."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hpc_train.run.layout import RunDir
from tests.e2e.lab import Lab
from tests.support.cluster import SlurmCluster

NUM_PROCESSES = 50
COUNTING = '#!/bin/bash\necho asked >>"${0%%/*}/asked"\nexec %s "$@"\n'


def test_fifty_status_at_once_are_one_squeue(cluster: SlurmCluster, slurm_lab: Lab, job_dir: Path) -> None:
    run = slurm_lab.submit("--rendezvous", "none", "--", "python", "-c", "pass")
    squeue = job_dir / "squeue"
    squeue.write_text(COUNTING % shutil.which("squeue"))
    squeue.chmod(0o755)
    environ = {
        **slurm_lab.environ, "PATH": f"{job_dir}:{cluster.env['PATH']}", "XDG_CACHE_HOME": str(job_dir / "cache")
    }  # fmt: skip
    command = shlex.join([sys.executable, "-m", "hpc_train", "status", "--json", str(run.path)])
    script = f"for n in $(seq {NUM_PROCESSES}); do {command} >out.$n & done; wait"
    done = cluster.run(["bash", "-c", script], cwd=job_dir, env=environ, timeout=200)
    assert (done.returncode, done.stderr) == (0, "")
    shown = [(job_dir / f"out.{number}").read_text() for number in range(1, NUM_PROCESSES + 1)]
    assert all('"state": "' in text and '"state": "unknown"' not in text for text in shown)
    # A machine that is so busy that the last one starts ten seconds after the first asks twice, and may.
    assert len((job_dir / "asked").read_text().splitlines()) <= 6
    slurm_lab.wait_end(run)


@contextmanager
def stopped_controller(cluster: SlurmCluster) -> Iterator[None]:
    """A controller that is there and does not answer."""
    (pid,) = [pid for pid in map(int, filter(str.isdecimal, os.listdir("/proc"))) if is_controller(pid, cluster)]
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def is_controller(pid: int, cluster: SlurmCluster) -> bool:
    try:
        process = Path("/proc", str(pid))
        is_named = process.joinpath("comm").read_text().strip() == "slurmctld"
        return is_named and str(cluster.dir).encode() + b"/" in process.joinpath("environ").read_bytes()
    except OSError:
        return False


def test_a_controller_that_does_not_answer_is_said_within_15_seconds(cluster: SlurmCluster, slurm_lab: Lab) -> None:
    run = slurm_lab.submit("--rendezvous", "none", "--", "python", "-c", "pass")
    slurm_lab.wait_end(run)
    runs_before = sorted((slurm_lab.directory / "runs").iterdir())
    started = time.monotonic()
    slurm_lab.hpc_train("status", "--fresh", run.path)
    usual_s = time.monotonic() - started  # more than half a second, of a busy machine several
    with stopped_controller(cluster):
        for words, code, said in (
            (["submit", "--site", slurm_lab.site, "--", "python", "-c", "pass"], 69, "no Slurm controller answers"),
            (["cancel", run.path], 69, "may still run"),
            (["status", "--fresh", run.path], 0, "completed"),  # the run itself knows
        ):
            started = time.monotonic()
            done = slurm_lab.hpc_train(*words)
            assert time.monotonic() - started < 15 + usual_s, words
            assert done.returncode == code and said in done.stdout + done.stderr, (words, done)
    assert sorted((slurm_lab.directory / "runs").iterdir()) == runs_before
    slurm_lab.wait_for("the controller answers again", run, lambda: is_known(slurm_lab, run), 60)


def is_known(lab: Lab, run: RunDir) -> bool:
    return bool(lab.status(run)["job"]["raw"])
