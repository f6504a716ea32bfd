"""`hpc-train cancel`: ends a run for good."""

from __future__ import annotations

import contextlib
import os
import sys

import click

from hpc_train.errors import HpcTrainError, SchedulerError, SpecError, from_os_error
from hpc_train.files import write_atomic
from hpc_train.run.copied import original_of
from hpc_train.run.index import find_run
from hpc_train.run.journal import Journal
from hpc_train.run.layout import RunDir
from hpc_train.run.ownership import revoke_ownership
from hpc_train.run.turn import hold_turn

__all__ = ["command"]

MAX_ROUNDS = 5


@click.command("cancel")
@click.argument("references", nargs=-1, required=True, metavar="RUN...")
def command(references: tuple[str, ...]) -> None:
    """End runs for good: their jobs are cancelled and no requeue starts them again."""
    failed: HpcTrainError | None = None
    for run in [find_run(reference, os.environ) for reference in references]:
        try:
            click.echo(_cancel(run))
        except HpcTrainError as error:  # the others are cancelled all the same
            if failed is not None:
                click.echo(f"hpc-train: error: {failed}", err=True)
            failed = error
    if failed is not None:
        raise failed


def _cancel(run: RunDir) -> str:
    """Cancel one run; what to say of it. Raises: HpcTrainError."""
    was_cancelled = run.cancelled.exists()
    if original := original_of(run):
        raise SpecError(
            f"{run.path} is a copy, and its job is that of {original}; to end that: hpc-train cancel {original}"
        )
    # The mark comes first, before a requeue that is under way is waited for: whatever starts now finds it.
    unmarked = _mark(run)
    for _ in range(MAX_ROUNDS):
        with hold_turn(run):
            if not run.cancelled.exists():  # a requeue had just begun
                unmarked, was_cancelled = _mark(run), False
            told = _cancel_jobs(run, was_cancelled)
            unmarked = unmarked or _revoke(run)
        if told is None:
            return f"{run.name} had completed; nothing to cancel"
        # Without locks (hold_turn) a requeue can have come in between: then there is a new job, and no mark.
        if run.cancelled.exists() or unmarked is not None:
            break
    else:
        raise SchedulerError(f"{run.name} was started again by another command each time; cancel it once more")
    if unmarked is not None:
        doing = f"the job of {run.name} was cancelled, but {run.path} cannot be marked as cancelled: it may start again"
        raise from_os_error(unmarked, doing) from unmarked
    return told


def _cancel_jobs(run: RunDir, was_cancelled: bool) -> str | None:
    """Cancel every job of a marked run, and see them gone; None where it had completed. Raises: SchedulerError."""
    from hpc_train.scheduler.view import view_runs

    view = view_runs([run], max_age_s=0)[0]
    if not view.job.is_answer:  # a second question would only take its time too
        _revoke(run)  # what still runs ends by itself where it can see the run directory
        raise _may_still_run(run, view.job_id, view.job.reason)
    if view.state == "completed":
        run.cancelled.unlink(missing_ok=True)
        return None
    if not was_cancelled:
        with contextlib.suppress(OSError):  # a full disk must not keep the job alive
            Journal(run, "login").append("cancelled", job_id=view.job_id)
    if view.job.is_live and sys.stderr.isatty():
        click.echo(f"waiting for job {view.job_id_shown} to end", err=True)
    try:
        for kind, job_ids in _ask_job_ids(run).items():
            _cancel_of_kind(run, kind, job_ids)
    except SchedulerError:
        _revoke(run)
        raise
    if was_cancelled:
        return f"{run.name} was cancelled already"
    had = {"": "cancelled", "held": "was held, and is cancelled"}
    told = had.get(view.ended_before_cancel, f"had ended already ({view.ended_before_cancel}), and is cancelled")
    kept = "it has no checkpoint; its logs stay" if view.last_commit is None else "its checkpoints stay"
    return f"{run.name} {told}; {kept} in {run.path}"


def _ask_job_ids(run: RunDir) -> dict[str, list[str]]:
    from hpc_train.scheduler.continuation import find_job_ids

    try:
        return find_job_ids(run)
    except SchedulerError as error:
        raise _may_still_run(run, "(not noted)", str(error)) from error


def _cancel_of_kind(run: RunDir, kind: str, job_ids: list[str]) -> None:
    """Cancel the newest job, of the earlier ones those that still live, and then what the queue still holds of the run.

    A job that was to go on after another may be in the queue before anybody could note it.
    """
    from hpc_train.scheduler.kinds import make_backend

    backend = make_backend(kind)
    newest, *earlier = dict.fromkeys(job_ids)
    if earlier:
        with contextlib.suppress(SchedulerError):  # then the cancel below says it
            states = backend.states(earlier)
            earlier = [job_id for job_id in earlier if states[job_id].is_live or states[job_id].state == "held"]
    job_id = newest
    try:
        for job_id in (newest, *earlier):
            backend.cancel(job_id)
        for job_id in backend.jobs_of(run):
            backend.cancel(job_id)
    except SchedulerError as error:
        raise _may_still_run(run, job_id, str(error)) from error


def _revoke(run: RunDir) -> OSError | None:
    """Take a marked run away from its attempt, which may live on where the scheduler does not reach it."""
    if not run.cancelled.exists():  # it had completed, or a requeue came in between
        return None
    try:
        revoke_ownership(run)
    except OSError as error:
        return error
    return None


def _may_still_run(run: RunDir, job_id: str, why: str) -> SchedulerError:
    message = f"{run.name} does not start again, but its job {job_id} may still run: {why}; cancel it once more later"
    return SchedulerError(message, transient=True)


def _mark(run: RunDir) -> OSError | None:
    """Mark a run as cancelled; the error of a disk that takes no mark. Raises: PermissionDeniedError."""
    try:
        write_atomic(run.cancelled, "cancelled by its user\n")
    except PermissionError as error:
        raise from_os_error(error, f"cannot mark {run.path} as cancelled") from error
    except OSError:
        try:
            run.cancelled.touch()  # an empty file has room where a quota is used up
        except OSError as error:
            return error
    return None
