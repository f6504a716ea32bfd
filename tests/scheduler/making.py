"""What the tests of scheduler and cli are made of: requests, plans, run directories, and programs that stand in."""

from __future__ import annotations

import json
import os
import shlex
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hpc_train.files import write_json
from hpc_train.job.loader import LoadedJob, load_job
from hpc_train.run.layout import FORMAT, VERSION, AttemptDir, RunDir, SubmissionDir
from hpc_train.scheduler.mpi import MpiChoice
from hpc_train.scheduler.script import Plan
from hpc_train.topology.placement import plan_placement


def load(
    directory: Path, text: str, *, site: str = "", flags: Mapping[str, Any] | None = None, home: Path | None = None
) -> LoadedJob:
    """The request of a job file with this text; `site`: text of a site file called `here`, used then."""
    directory.mkdir(parents=True, exist_ok=True)
    job = directory / "job.toml"
    job.write_text(text)
    job.chmod(0o644)
    environ = {"HOME": str(home or directory), "HPC_TRAIN_SITES": str(directory / "sites")}
    if site:
        (directory / "sites").mkdir(exist_ok=True)
        (directory / "sites" / "here.toml").write_text(site)
        (directory / "sites" / "here.toml").chmod(0o644)
    return load_job(
        job, {"job.site": "here", **(flags or {})} if site else dict(flags or {}), environ, directory=directory
    )


def plan_of(
    loaded: LoadedJob, run: RunDir, *, python: str, mpirun: str = "/opt/env/bin/mpirun", flavour: str = "openmpi"
) -> Plan:
    """A plan with names of our own choosing, so that it is the same each time."""
    placement = plan_placement(loaded.spec, loaded.site.site, origins=loaded.origins)
    workdir = str(loaded.workdir)
    site = loaded.site.site
    mpi = MpiChoice(flavour, site.launch.mpi, mpirun if site.launch.launcher == "mpirun" else "")
    return Plan(loaded.spec, site, placement, run, run.submission(0), python, mpi, workdir)


def launch_of(**changes: Any) -> dict[str, Any]:
    """A launch record of one rank on this machine; times in seconds."""
    record = {
        "format": "hpc-train-launch", "version": 1, "command": ["true"], "python": "python", "workdir": "/",
        "rendezvous": "none", "interfaces": [], "launcher": "mpirun", "mpi": "mpirun", "num_ranks": 1,
        "ranks_per_node": 1, "cpus_per_rank": 1, "environment": {}, "hang_timeout_s": 60, "max_failures": 3,
        "max_attempts": 5, "can_continue": True, "backoff_s": 0, "walltime_s": None, "stop_lead_s": 1,
        "kill_wait_s": 0.5,
    }  # fmt: skip
    return {**record, **changes}


def make_run(
    path: Path, *, job_name: str = "train", script: str = "", launch: Mapping[str, Any] | None = None
) -> RunDir:
    """A run directory with one submission, as submit leaves it before it asks the scheduler."""
    run = RunDir(path)
    run.journal.mkdir(parents=True)
    run.submission(0).path.mkdir()
    record = {"format": FORMAT, "version": VERSION, "name": run.name, "job_name": job_name, "created": time.time()}
    run.record.write_text(json.dumps(record))
    run.submission(0).script.write_text(script)
    run.submission(0).launch.write_text(json.dumps(launch_of(**(launch or {}))))
    return run


def note_submitted(submission: SubmissionDir, job_id: str, *, scheduler: str = "slurm", site: str = "slurm") -> None:
    """The submit record, as it is once the scheduler took the job."""
    submission.submit.write_text(json.dumps({"job_id": job_id, "scheduler": scheduler, "site": site, "time": 0.0}))


def make_attempt(run: RunDir, number: int = 0, **decision: Any) -> AttemptDir:
    """An attempt; with keywords, one that was decided so."""
    attempt = run.attempt(number)
    for directory in (attempt.exits, attempt.ready, attempt.finished, attempt.logs):
        directory.mkdir(parents=True)
    if decision:
        record = {"word": "stop", "failure": "program", "reason": "it failed", "exclude": [], **decision}
        write_json(attempt.decision, record, durable=False)  # in one piece: somebody may follow the run
    return attempt


def write_program(directory: Path, name: str, text: str) -> Path:
    """A program in bash that stands in for one that is not here."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / name
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)
    return path


def recorded(path: Path) -> list[str]:
    """The lines that stand-ins have written so far."""
    return path.read_text().splitlines() if path.exists() else []


def log_call(path: Path) -> str:
    """The line of a stand-in that notes how it was called."""
    return f"printf '%s\\n' \"${{0##*/}} $*\" >>{shlex.quote(str(path))}"


def wait_for(condition: Callable[[], Any], what: str, *, timeout_s: float = 60.0) -> Any:
    """Poll until the condition gives something true; AssertionError if it does not in time."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}"
        time.sleep(0.02)
    return value


def is_running(pid: int) -> bool:
    """Whether a process is there and not a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def bare_environment(*directories: Path, **variables: str) -> dict[str, str]:
    """An environment of the stand-ins in these directories and the system's own programs, and nothing else."""
    path = os.pathsep.join([*map(str, directories), "/usr/bin", "/bin"])
    return {"PATH": path, "LC_ALL": "C.UTF-8", **variables}
