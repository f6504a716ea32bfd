"""Turns a plan into a run directory and hands it to the scheduler; on any failure nothing stays behind.

Apart from planning, which only reads, and from the command, which only talks to the person.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hpc_train import __version__
from hpc_train.errors import SchedulerError, SpecError, from_os_error
from hpc_train.files import read_json, read_text, write_atomic, write_json
from hpc_train.job.loader import LoadedJob, job_from_json, job_to_json
from hpc_train.run.index import add_to_index
from hpc_train.run.journal import Journal
from hpc_train.run.layout import FORMAT, VERSION, RunDir, SubmissionDir
from hpc_train.scheduler.backend import Backend
from hpc_train.scheduler.environment import job_environment
from hpc_train.scheduler.kinds import make_backend
from hpc_train.scheduler.planning import find_mpirun, plan_submission
from hpc_train.scheduler.script import Plan, launch_record, render_script
from hpc_train.site.loader import site_from_json, site_to_json
from hpc_train.site.spec import Site
from hpc_train.topology.placement import placement_from_json, placement_to_json

__all__ = ["Submitted", "resubmit", "submit"]


@dataclass(frozen=True)
class Submitted:
    """A submission that the scheduler took."""

    run: RunDir
    job_id: str
    warnings: tuple[str, ...]


def submit(loaded: LoadedJob, environ: Mapping[str, str]) -> Submitted:
    """Plan, write the run and submit it.

    Raises: SpecError, DataError, CannotCreateError, PermissionDeniedError, NoSpaceError, SchedulerError. The run's
    directory is removed then, with the parents that were made for it. A job that the scheduler has taken all the same,
    after a time-out that hid it, ends at its start: it does not find its directory.
    """
    plan = plan_submission(loaded)
    made = _make_run_directory(plan.run)
    try:
        _write_run(plan, loaded.origins)
        _write_submission(plan)
        submitted = _hand_over(plan, environ)
    except BaseException as error:
        shutil.rmtree(plan.run.path, ignore_errors=True)
        _remove_empty(made)
        if isinstance(error, OSError):
            raise from_os_error(error, f"cannot write the run directory {plan.run.path}") from error
        raise
    unverified = _warn_unverified(plan.site)
    return Submitted(plan.run, submitted.job_id, (*submitted.warnings, *unverified))


def _make_run_directory(run: RunDir) -> list[Path]:
    """Make it, for its user alone; returns the parents that had to be made, outermost first."""
    missing: list[Path] = []
    try:
        for parent in run.path.parents:
            if parent.exists():
                break
            missing.insert(0, parent)
        for _ in range(3):  # a submit that failed beside this one may just have removed the empty parent
            with contextlib.suppress(FileNotFoundError):
                run.path.parent.mkdir(parents=True, exist_ok=True)
                os.mkdir(run.path, 0o700)
                return missing
        os.mkdir(run.path, 0o700)
    except OSError as error:
        _remove_empty(missing)
        doing = f"cannot make the run directory {run.path} (--run-root or [job].run_root chooses another place)"
        raise from_os_error(error, doing) from error
    return missing


def _remove_empty(directories: list[Path]) -> None:
    for directory in reversed(directories):
        with contextlib.suppress(OSError):  # another run lies in it by now
            directory.rmdir()


def _warn_unverified(site: Site) -> tuple[str, ...]:
    if site.status.verified:
        return ()
    return (f"site {site.name!r} is unverified: nobody has noted that jobs ran through its file (hpc-train site show)",)


def _write_run(plan: Plan, origins: Mapping[str, str]) -> None:
    write_json(
        plan.run.record,
        {
            "format": FORMAT,
            "version": VERSION,
            "name": plan.run.name,
            "job_name": plan.job.name,
            "created": time.time(),
            "hpc_train": __version__,
            "origins": dict(origins),
        },
    )
    os.mkdir(plan.run.journal)
    os.mkdir(plan.submission.path)


def _write_submission(plan: Plan) -> None:
    submission = plan.submission
    write_atomic(submission.job, job_to_json(plan.job))
    write_atomic(submission.site, site_to_json(plan.site))
    write_atomic(submission.placement, placement_to_json(plan.placement))
    write_atomic(submission.script, render_script(plan), mode=0o700)
    write_json(submission.launch, launch_record(plan))  # last: the script starts only where it is


def _hand_over(plan: Plan, environ: Mapping[str, str]) -> Submitted:
    backend = make_backend(plan.site.scheduler.kind)
    passed = job_environment(environ, plan.job.env.pass_names)
    job_id = backend.submit(plan.run, plan.submission, passed)
    record = {"job_id": job_id, "scheduler": plan.site.scheduler.kind, "site": plan.site.name, "time": time.time()}
    try:
        write_json(plan.submission.submit, record)
        Journal(plan.run, "login").append("submitted", submission=plan.submission.number, job_id=job_id)
    except BaseException:  # a job that nobody could find again must not run
        _cancel_quietly(backend, job_id)
        raise
    warning = add_to_index(environ, plan.run, job_id)
    return Submitted(plan.run, job_id, (warning,) if warning else ())


def _cancel_quietly(backend: Backend, job_id: str) -> None:
    with contextlib.suppress(SchedulerError):
        backend.cancel(job_id)


def resubmit(run: RunDir, environ: Mapping[str, str]) -> Submitted:
    """A new submission of the same run with the records of its last one.

    Raises: as `submit`; the run is kept, and the new submission's records are removed.
    """
    plan = _plan_again(run)
    try:
        os.mkdir(plan.submission.path)
    except FileExistsError as error:
        raise SpecError(f"run {run.name} is being requeued by another command; see: hpc-train status") from error
    except OSError as error:
        raise from_os_error(error, f"cannot make {plan.submission.path}") from error
    try:
        _write_submission(plan)
        return _hand_over(plan, environ)
    except BaseException as error:
        _withdraw(plan.submission, error)
        if isinstance(error, OSError):
            raise from_os_error(error, f"cannot write {plan.submission.path}") from error
        raise


def _plan_again(run: RunDir) -> Plan:
    submissions = run.submissions()
    before = next((each for each in reversed(submissions) if each.launch.exists()), None)
    if before is None:
        raise SpecError(f"run {run.name} was never submitted as a whole; submit it anew and remove {run.path}")
    launch = read_json(before.launch)
    site = site_from_json(read_text(before.site), str(before.site))
    return Plan(
        job=job_from_json(read_text(before.job), str(before.job)),
        site=site,
        placement=placement_from_json(read_text(before.placement), str(before.placement)),
        run=run,
        submission=run.submission(submissions[-1].number + 1),
        python=launch["python"],
        mpirun=find_mpirun(launch["python"]) if site.launch.launcher == "mpirun" else "",
        workdir=launch["workdir"],
    )


def _withdraw(submission: SubmissionDir, error: BaseException) -> None:
    shutil.rmtree(submission.path, ignore_errors=True)
    if isinstance(error, SchedulerError) and error.transient:
        # The scheduler may have taken the job: its number stays taken, and without records that job ends at once.
        with contextlib.suppress(OSError):
            submission.path.mkdir()
