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
    ("--max-failures", "recovery.max_failures", int, "Failures in a row without a new checkpoint."),
]


def _with_options(function: Any) -> Any:
    for flag, dotted, kind, text in reversed(_OPTIONS):
        function = click.option(flag, dotted.replace(".", "__"), type=kind, default=None, help=text)(function)
    return function


@click.command("submit", context_settings={"ignore_unknown_options": False})
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="[JOB.TOML] [-- COMMAND ...]")
@click.option("--dry-run", is_flag=True, help="Print the batch script and submit nothing.")
@_with_options
@click.pass_context
def command(ctx: click.Context, words: tuple[str, ...], dry_run: bool, **options: Any) -> None:
    """Submit a job file, or any command with options.

    \b
    hpc-train submit job.toml --site slurm
    hpc-train submit --nodes 2 --ranks-per-node 2 -- python train.py --lr 1e-3
    """
    flags = {name.replace("__", "."): value for name, value in options.items() if value is not None}
    job_file, program = _split(words)
    if program:
        flags["program.command"] = tuple(program)
    if job_file is None and not program:
        raise UsageError("give a job file, or a command after `--`; see: hpc-train submit --help")
    loaded = load_job(job_file, flags, os.environ)

    from hpc_train.scheduler.submission import plan_submission, submit  # noqa: PLC0415 - jinja2 and msgspec records

    if dry_run:
        from hpc_train.scheduler.script import render_script  # noqa: PLC0415

        click.echo(render_script(plan_submission(loaded)), nl=False)
        return
    done = submit(loaded, os.environ)
    for warning in done.warnings:
        click.echo(f"hpc-train: warning: {warning}", err=True)
    click.echo(f"run     {done.run.name}")
    click.echo(f"job     {done.job_id}")
    click.echo(f"in      {done.run.path}")
    click.echo(f"watch   hpc-train status {done.run.name} · hpc-train logs {done.run.name} · hpc-train why {done.run.name}")


def _split(words: tuple[str, ...]) -> tuple[str | None, list[str]]:
    """Job file and command: a first word that ends in .toml, or that is a file and stands alone, is a job file."""
    if words and (words[0].endswith(".toml") or (len(words) == 1 and os.path.isfile(words[0]))):
        return words[0], list(words[1:])
    return None, list(words)
