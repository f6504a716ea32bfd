"""`hpc-train submit`: a job file, or options and any command, to a queued run."""

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
from hpc_train.job.loader import load_job
from hpc_train.job.spec import JobSpec
from hpc_train.quantities import divisors, format_counts

__all__ = ["command"]

_WHERE_COMMANDS_GO = "a command goes after `--`: hpc-train submit -- python train.py"


@click.command("submit", cls=RequestCommand, options_metavar="[OPTIONS]")
@click.argument("job_files", nargs=-1, metavar="[JOB.TOML] [-- COMMAND ...]")
@click.option("--dry-run", is_flag=True, help="Print the batch script and submit nothing.")
@with_options()
@click.pass_context
def command(ctx: click.Context, /, job_files: tuple[str, ...], dry_run: bool, **options: Any) -> None:
    """Submit a job file, or any command with options.

    \b
    hpc-train submit job.toml --site slurm
    hpc-train submit --nodes 2 --ranks-per-node 2 -- python train.py --lr 1e-3

    Options win over the job file, and a command after `--` over the file's own.
    """
    program = program_of(ctx) or []
    flags = given(options, program)
    loaded = load_job(_job_file(job_files, program), flags, os.environ)
    if dry_run:
        from hpc_train.scheduler.planning import plan_submission  # jinja2 and more

        echo_script(plan_submission(loaded))
        return
    from hpc_train.scheduler.submission import submit

    done = submit(loaded, os.environ)
    echo_warnings(done.warnings)
    name = done.run.name
    click.echo(f"run     {name}")
    click.echo(f"job     {done.job_id}")
    click.echo(f"in      {done.run.path}")
    click.echo(f"asks    {describe_request(loaded.spec.job)}")
    if loaded.spec.data.global_batch is not None:
        click.echo(f"ranks   {_sizes(loaded.spec)}")
    click.echo(f"watch   hpc-train status {name}; hpc-train logs -f {name}; hpc-train why {name}")


def _sizes(spec: JobSpec) -> str:
    batch = spec.data.global_batch or 1
    num_ranks = spec.job.nodes * spec.job.ranks_per_node
    return f"{num_ranks}; global batch {batch} can go on with {format_counts(divisors(batch))}"


def _job_file(words: tuple[str, ...], program: list[str]) -> str | None:
    """The one job file. Words that look like a command are told where commands go."""
    if not words:
        if not program:
            raise UsageError("give a job file, or a command after `--`; see: hpc-train submit --help")
        return None
    if len(words) > 1 or not _may_be_job_file(words[0]):
        remedy = f"one job file is allowed, and {_WHERE_COMMANDS_GO}"
        raise UsageError(f"{' '.join(words)[:200]!r} is no job file; {remedy}")
    return words[0]


def _may_be_job_file(word: str) -> bool:
    is_program = word.endswith(".py") or os.access(word, os.X_OK)
    return word.endswith(".toml") or (os.path.isfile(word) and not is_program)
