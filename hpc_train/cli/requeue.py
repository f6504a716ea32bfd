"""`hpc-train requeue`: lets a run go on that was held, stopped, cancelled or that failed."""

from __future__ import annotations

import os

import click

from hpc_train.errors import SpecError
from hpc_train.run.index import find_run
from hpc_train.run.journal import Journal

__all__ = ["command"]


@click.command("requeue")
@click.argument("reference", metavar="RUN")
def command(reference: str) -> None:
    """Let a run go on from its newest checkpoint, with a fresh budget of failures."""
    from hpc_train.scheduler.backend import make_backend  # noqa: PLC0415
    from hpc_train.scheduler.submission import resubmit  # noqa: PLC0415
    from hpc_train.scheduler.view import view_run  # noqa: PLC0415

    run = find_run(reference, os.environ)
    view = view_run(run)
    if view.state == "completed":
        raise SpecError(f"run {run.name} has completed; there is nothing left to do")
    if view.job.is_live:
        raise SpecError(f"run {run.name} is {view.state} (job {view.job_id}); it goes on by itself")
    attempts = run.attempts()
    Journal(run, "login").append("requeue_asked", after_attempt=attempts[-1].number if attempts else -1)
    run.cancelled.unlink(missing_ok=True)
    if view.job_id and make_backend(view.scheduler).requeue(view.job_id, view.job):
        click.echo(f"{run.name} goes on as job {view.job_id}")
        return
    submitted = resubmit(run, run.submissions()[-1], os.environ)
    click.echo(f"{run.name} goes on as job {submitted.job_id}")
