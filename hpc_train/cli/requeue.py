"""`hpc-train requeue`: lets a run go on that was held, stopped, cancelled or that failed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from hpc_train.errors import SpecError
from hpc_train.files import write_atomic
from hpc_train.run.index import find_run
from hpc_train.run.journal import Journal
from hpc_train.run.layout import RunDir

if TYPE_CHECKING:
    from hpc_train.scheduler.view import RunView

__all__ = ["command"]


@click.command("requeue")
@click.argument("reference", metavar="RUN")
def command(reference: str) -> None:
    """Let a run go on from its newest checkpoint, with a fresh budget of failures."""
    from hpc_train.scheduler.view import view_run

    run = find_run(reference, os.environ)
    view = view_run(run)
    if view.state == "completed":
        raise SpecError(f"run {run.name} has completed; there is nothing left to do")
    if view.job.is_live:
        remedy = "ask again once it has ended" if view.job.state == "completing" else "it goes on by itself"
        raise SpecError(f"run {run.name}: its job {view.job_id} is {view.job.state}; {remedy}")
    attempts = run.attempts()
    was_cancelled = run.cancelled.exists()
    Journal(run, "login").append("requeue_asked", after_attempt=attempts[-1].number if attempts else -1)
    run.cancelled.unlink(missing_ok=True)  # before the start, which looks for it
    try:
        job_id = _start(run, view)
    except BaseException:
        if was_cancelled:
            write_atomic(run.cancelled, "cancelled by its user\n")
        raise
    click.echo(f"{run.name} goes on as job {job_id}")


def _start(run: RunDir, view: RunView) -> str:
    from hpc_train.scheduler.kinds import make_backend
    from hpc_train.scheduler.submission import resubmit

    if view.job_id and make_backend(view.scheduler).requeue(view.job_id, view.job):
        return view.job_id
    return resubmit(run, os.environ).job_id
