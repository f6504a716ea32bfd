"""`hpc-train requeue`: lets a run go on that was held, stopped, cancelled or that failed."""

from __future__ import annotations

import os

import click

from hpc_train.run.index import find_run

__all__ = ["command"]


@click.command("requeue")
@click.argument("reference", metavar="RUN")
def command(reference: str) -> None:
    """Let a run go on from its newest checkpoint, with a fresh budget of failures."""
    from hpc_train.scheduler.continuation import requeue

    run = find_run(reference, os.environ)
    job_id = requeue(run, os.environ)
    click.echo(f"{run.name} goes on as job {job_id}")
