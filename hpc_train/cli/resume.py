"""`hpc-train resume`: a run goes on as a new submission, at another size, with other limits or another command."""

from __future__ import annotations

import os
from typing import Any

import click

from hpc_train.cli.options import (
    RequestCommand,
    describe_request,
    echo_script,
    echo_warnings,
    given,
    program_of,
    with_options,
)
from hpc_train.errors import UsageError
from hpc_train.run.index import find_run

__all__ = ["command"]

_OF_THE_RUN = ("--name", "--run-root")  # which it keeps


@click.command("resume", cls=RequestCommand, options_metavar="[OPTIONS]")
@click.argument("reference", metavar="RUN [-- COMMAND ...]")
@click.option(
    "--dry-run", is_flag=True, help="Print the batch script, and on standard error what changes; submit nothing."
)
@with_options(without=_OF_THE_RUN)
@click.pass_context
def command(ctx: click.Context, /, reference: str, dry_run: bool, **options: Any) -> None:
    """Let a run go on as a new submission, with what is given here; the rest stays as it was.

    \b
    hpc-train resume RUN --nodes 2 --walltime 12:00:00
    hpc-train resume RUN -- python train.py --steps 20000

    From its newest checkpoint, after any end: held, failed, cancelled, timed out, lost, or finished.
    """
    from hpc_train.scheduler.continuation import preview, resume

    program = program_of(ctx)
    if program == []:
        raise UsageError("there is no command after `--`; without `--` the run keeps its command")
    flags = given(options, program)
    run = find_run(reference, os.environ)
    if dry_run:
        plan, changes = preview(run, flags, os.environ)
        for change in changes or ("nothing",):
            click.echo(f"hpc-train: changed {change}", err=True)  # the output is the script alone
        echo_script(plan)
        return
    done = resume(run, flags, os.environ)
    echo_warnings(done.warnings)
    click.echo(f"run     {run.name}")
    click.echo(f"job     {done.submitted.job_id}")
    click.echo(f"in      {run.path}")
    click.echo(f"asks    {describe_request(done.job)}")
    for change in done.changes:
        click.echo(f"changed {change}")
    click.echo(f"watch   hpc-train status {run.name}; hpc-train logs -f {run.name}; hpc-train why {run.name}")
