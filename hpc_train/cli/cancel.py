"""`hpc-train cancel`: ends a run for good."""

from __future__ import annotations

import contextlib
import os

import click

from hpc_train.errors import HpcTrainError, SchedulerError, from_os_error
from hpc_train.files import write_atomic
from hpc_train.run.index import find_run
from hpc_train.run.journal import Journal
from hpc_train.run.layout import RunDir

__all__ = ["command"]


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
    from hpc_train.scheduler.kinds import make_backend
    from hpc_train.scheduler.view import view_runs

    was_cancelled = run.cancelled.exists()
    # The mark comes first: a requeue that races with this command finds it at its start.
    unmarked = _mark(run)
    view = view_runs([run])[0]
    if view.state == "completed":
        run.cancelled.unlink(missing_ok=True)
        return f"{run.name} had completed; nothing to cancel"
    if not was_cancelled:
        with contextlib.suppress(OSError):  # a full disk must not keep the job alive
            Journal(run, "login").append("cancelled", job_id=view.job_id)
    if view.job_id:
        try:
            make_backend(view.scheduler).cancel(view.job_id)
        except SchedulerError as error:
            message = f"{run.name} does not start again, but its job {view.job_id} may still run: {error}"
            raise SchedulerError(message, transient=error.transient) from error
    if unmarked is not None:
        doing = f"the job of {run.name} was cancelled, but {run.path} cannot be marked as cancelled: it may start again"
        raise from_os_error(unmarked, doing) from unmarked
    if was_cancelled:
        return f"{run.name} was cancelled already"
    return f"{run.name} cancelled; its checkpoints stay in {run.path}"


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
