"""`hpc-train requeue`: lets a run go on that was held, stopped, cancelled or that failed."""

from __future__ import annotations

import os

import click

from hpc_train.cli.options import echo_warnings
from hpc_train.run.index import find_run

__all__ = ["command"]


@click.command("requeue")
@click.argument("reference", metavar="RUN")
def command(reference: str) -> None:
    """Let a run go on from its newest checkpoint, with a fresh budget of failures.

    Where its checkpoints are gone it begins anew, or goes on from an older one; a warning says so.
    """
    from hpc_train.run.journal import read_journal
    from hpc_train.run.kept import warn_of_loss
    from hpc_train.scheduler.continuation import requeue

    run = find_run(reference, os.environ)
    job_id = requeue(run, os.environ)
    click.echo(f"{run.name} goes on as job {job_id}")
    if warning := warn_of_loss(run, read_journal(run, without=("step",))):
        echo_warnings([warning])
