"""`hpc-train submit`: a job file, or options and any command, to a queued run."""

from __future__ import annotations

import os
from typing import Any

import click

from hpc_train.errors import UsageError
from hpc_train.job.loader import load_job

__all__ = ["command"]

_OPTIONS: list[tuple[str, str, Any, str]] = [
    ("--name", "job.name", str, "Name of the run."),
    ("--site", "job.site", str, "Site file by name; `hpc-train site list` shows them."),
    ("--queue", "job.queue", str, "Queue (Slurm partition)."),
    ("--account", "job.account", str, "Project that pays."),
    ("--qos", "job.qos", str, "Quality of service."),
    ("--walltime", "job.walltime", str, "Time limit of one attempt: minutes, H:M:S or D-H."),
    ("--nodes", "job.nodes", int, "Nodes."),
    ("--ranks-per-node", "job.ranks_per_node", int, "Ranks on each node."),
    ("--gpus-per-rank", "job.gpus_per_rank", int, "GPUs for each rank."),
    ("--cpus-per-rank", "job.cpus_per_rank", int, "Cores for each rank."),
    ("--memory", "job.memory", str, "Memory of each node, e.g. 480G."),
    ("--exclude", "job.exclude", str, "Nodes not to use."),
    ("--run-root", "job.run_root", str, "Directory in which the run directory is made."),
    ("--venv", "env.venv", str, "Virtual environment of the program."),
    ("--rendezvous", "program.rendezvous", str, "torch: serve env:// programs; none: the program needs none."),
    ("--stop-lead", "recovery.stop_lead", str, "How long before the time limit to ask the program to stop."),
    ("--hang-timeout", "recovery.hang_timeout", str, "A step that takes longer is ended as hung."),
    ("--backoff", "recovery.backoff", str, "Wait before the next attempt after a failure."),
    ("--max-failures", "recovery.max_failures", int, "Failures in a row without a new checkpoint."),
]
_PROGRAM = "hpc_train.program"
_WHERE_COMMANDS_GO = "a command goes after `--`: hpc-train submit -- python train.py"


class _SubmitCommand(click.Command):
    """Takes the words after `--` away before click sees them: they are the program's, options and all."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if "--" in args:
            at = args.index("--")
            args, ctx.meta[_PROGRAM] = args[:at], args[at + 1 :]
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            if _PROGRAM in ctx.meta:
                raise
            # most likely the program's own: `submit python train.py --data DIR`
            raise click.UsageError(
                f"{error.format_message()} If it is for your program: {_WHERE_COMMANDS_GO}", ctx
            ) from error


def _with_options(function: Any) -> Any:
    for flag, dotted, kind, text in reversed(_OPTIONS):
        function = click.option(flag, dotted.replace(".", "__"), type=kind, default=None, help=text)(function)
    return function


@click.command("submit", cls=_SubmitCommand, options_metavar="[OPTIONS]")
@click.argument("job_files", nargs=-1, metavar="[JOB.TOML] [-- COMMAND ...]")
@click.option("--dry-run", is_flag=True, help="Print the batch script and submit nothing.")
@_with_options
@click.pass_context
def command(ctx: click.Context, /, job_files: tuple[str, ...], dry_run: bool, **options: Any) -> None:
    """Submit a job file, or any command with options.

    \b
    hpc-train submit job.toml --site slurm
    hpc-train submit --nodes 2 --ranks-per-node 2 -- python train.py --lr 1e-3

    Options win over the job file, and a command after `--` over the file's own.
    """
    flags = {name.replace("__", "."): value for name, value in options.items() if value is not None}
    program = ctx.meta.get(_PROGRAM, [])
    if program:
        flags["program.command"] = tuple(program)
    loaded = load_job(_job_file(job_files, program), flags, os.environ)
    if dry_run:
        from hpc_train.scheduler.planning import plan_submission  # jinja2 and more
        from hpc_train.scheduler.script import render_script

        # bytes: the script is UTF-8 whatever the terminal is
        click.echo(render_script(plan_submission(loaded)).encode(), nl=False)
        return
    from hpc_train.scheduler.submission import submit

    done = submit(loaded, os.environ)
    for warning in done.warnings:
        click.echo(f"hpc-train: warning: {warning}", err=True)
    name = done.run.name
    click.echo(f"run     {name}")
    click.echo(f"job     {done.job_id}")
    click.echo(f"in      {done.run.path}")
    click.echo(f"watch   hpc-train status {name}; hpc-train logs {name}; hpc-train why {name}")


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
