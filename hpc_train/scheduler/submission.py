"""Turns a plan into a run directory and hands it to the scheduler; on any failure nothing stays behind.

Apart from planning, which only reads, and from the command, which only talks to the person.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hpc_train import __version__
from hpc_train.errors import SchedulerError, SpecError, from_os_error
from hpc_train.files import read_json, write_atomic, write_json
from hpc_train.job.loader import LoadedJob, job_to_json
from hpc_train.run.index import add_to_index
from hpc_train.run.journal import Journal
from hpc_train.run.layout import FORMAT, VERSION, RunDir, SubmissionDir
from hpc_train.run.reserve import keep_reserve
from hpc_train.scheduler.backend import Backend
from hpc_train.scheduler.environment import job_environment
from hpc_train.scheduler.kinds import make_backend
from hpc_train.scheduler.planning import plan_submission
from hpc_train.scheduler.remarks import remarks_on, warn_left_behind
from hpc_train.scheduler.script import Plan, launch_record, render_script
from hpc_train.site.loader import site_to_json
from hpc_train.site.spec import Site
from hpc_train.topology.placement import placement_to_json

__all__ = ["Request", "Submitted", "add_submission", "note_job", "read_request", "submit"]


@dataclass(frozen=True)
class Request:
    """How a submission was asked for: where each value came from, and the directory in which relative paths start.

    Attributes:  directory: None where an older version has not noted it.
    """

    origins: Mapping[str, str]
    directory: Path | None


@dataclass(frozen=True)
class Submitted:
    """A submission that the scheduler took."""

    run: RunDir
    job_id: str
    scheduler: str
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
        _write_run(plan, Request(loaded.origins, loaded.directory))
        _write_submission(plan)
        submitted = _hand_over(plan, environ)
    except BaseException as error:
        shutil.rmtree(plan.run.path, ignore_errors=True)
        _remove_empty(made)
        if isinstance(error, OSError):
            raise from_os_error(error, f"cannot write the run directory {plan.run.path}") from error
        raise
    return replace(submitted, warnings=(*submitted.warnings, *remarks_on(plan, environ)))


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


def _write_run(plan: Plan, request: Request) -> None:
    write_json(
        plan.run.record,
        {
            "format": FORMAT,
            "version": VERSION,
            "name": plan.run.name,
            "job_name": plan.job.name,
            "created": time.time(),
            "hpc_train": __version__,
            **_request_record(request),
        },
    )
    os.mkdir(plan.run.journal)
    os.mkdir(plan.submission.path)
    keep_reserve(plan.run, plan.placement.num_ranks)


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
    try:
        job_id = backend.submit(plan.run, plan.submission, passed)
    except SchedulerError as error:
        left = [] if error.transient else list(warn_left_behind(plan, environ))  # it may be what was missing
        if not left:
            raise
        raise SchedulerError("; ".join([str(error), *left])) from error
    try:
        warning = note_job(plan.run, plan.submission, plan.site, job_id, environ)
    except BaseException:  # a job that nobody could find again must not run
        _cancel_quietly(backend, job_id)
        raise
    return Submitted(plan.run, job_id, plan.site.scheduler.kind, (warning,) if warning else ())


def note_job(run: RunDir, submission: SubmissionDir, site: Site, job_id: str, environ: Mapping[str, str]) -> str | None:
    """Write down which job a submission is; returns a warning where the index of runs cannot be written.

    Raises: OSError.
    """
    record = {"job_id": job_id, "scheduler": site.scheduler.kind, "site": site.name, "time": time.time()}
    write_json(submission.submit, record)
    Journal(run, "login").append("submitted", submission=submission.number, job_id=job_id)
    return add_to_index(environ, run, job_id, site=site.name)


def _cancel_quietly(backend: Backend, job_id: str) -> None:
    with contextlib.suppress(SchedulerError):
        backend.cancel(job_id)


def add_submission(plan: Plan, request: Request, environ: Mapping[str, str]) -> Submitted:
    """Write a further submission of a run that exists, and submit it. The caller has claimed the run.

    Raises: as `submit`; the run is kept, and the new submission's records are removed.
    """
    try:
        os.mkdir(plan.submission.path)
    except FileExistsError as error:
        raise SpecError(f"another command lets run {plan.run.name} go on just now; see: hpc-train status") from error
    except OSError as error:
        raise from_os_error(error, f"cannot make {plan.submission.path}") from error
    is_asked = False  # of the scheduler
    try:
        keep_reserve(plan.run, plan.placement.num_ranks)  # a disk that is still full is told of now, not in the job
        write_json(plan.submission.origins, _request_record(request))
        _write_submission(plan)
        is_asked = True
        return _hand_over(plan, environ)
    except BaseException as error:
        is_refused = isinstance(error, SchedulerError) and not error.transient
        _withdraw(plan.submission, keeps_number=is_asked and not is_refused)
        if isinstance(error, OSError):
            raise from_os_error(error, f"cannot write {plan.submission.path}") from error
        raise


def read_request(run: RunDir, submission: SubmissionDir) -> Request:
    """How a submission was asked for. Raises: OSError, ValueError."""
    path = submission.origins if submission.origins.exists() else run.record
    record = read_json(path)
    try:
        origins = {str(key): str(origin) for key, origin in record.get("origins", {}).items()}
        directory = record.get("directory")
    except AttributeError as error:
        raise ValueError(f"{path}: the origins of the request are damaged") from error
    return Request(origins, Path(directory) if isinstance(directory, str) else None)


def _request_record(request: Request) -> dict[str, Any]:
    return {
        "origins": dict(request.origins),
        "directory": None if request.directory is None else str(request.directory),
    }


def _withdraw(submission: SubmissionDir, *, keeps_number: bool) -> None:
    """Remove a submission's records; its job, should there be one after all, ends at its start.

    Args:  keeps_number: that job may exist (a time-out, Ctrl-C): no later submission may have its number, or it would
    take that one's records for its own.
    """
    shutil.rmtree(submission.path, ignore_errors=True)
    if keeps_number:
        with contextlib.suppress(OSError):
            submission.path.mkdir()
