"""`hpc-train cancel`: ends a run for good."""

from __future__ import annotations

import os

import click

from hpc_train.files import write_atomic
from hpc_train.run.index import find_run
from hpc_train.run.journal import Journal

__all__ = ["command"]


@click.command("cancel")
@click.argument("references", nargs=-1, required=True, metavar="RUN...")
def command(references: tuple[str, ...]) -> None:
    """End runs for good: their jobs are cancelled and no requeue starts them again."""
    from hpc_train.scheduler.backend import make_backend  # noqa: PLC0415
    from hpc_train.scheduler.view import view_run  # noqa: PLC0415

    for run in [find_run(reference, os.environ) for reference in references]:
        # The mark comes first: a requeue that races with this command finds it at its start.
        write_atomic(run.cancelled, "cancelled by its user\n")
        view = view_run(run)
        if view.state == "completed":
            run.cancelled.unlink()
            click.echo(f"{run.name} had completed")
            continue
        Journal(run, "login").append("cancelled", job_id=view.job_id)
        if view.job_id:
            make_backend(view.scheduler).cancel(view.job_id)
        click.echo(f"{run.name} cancelled; its checkpoints stay in {run.path}")
