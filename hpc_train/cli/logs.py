"""`hpc-train logs`: what the ranks and the batch shell printed."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import click

from hpc_train.errors import SpecError
from hpc_train.run.index import find_run
from hpc_train.run.layout import RunDir

__all__ = ["command"]


@click.command("logs")
@click.argument("reference", metavar="RUN")
@click.option("--attempt", type=int, default=None, help="Number of the attempt; default: the newest.")
@click.option("--all", "all_attempts", is_flag=True, help="All attempts, oldest first.")
@click.option("--batch", is_flag=True, help="Only the batch shell's log (decisions, Slurm's own words).")
@click.option("--paths", is_flag=True, help="Print the files' names instead of their content.")
def command(reference: str, attempt: int | None, all_attempts: bool, batch: bool, paths: bool) -> None:
    """Print a run's logs: of its newest attempt, one file a node, then the batch shell's."""
    run = find_run(reference, os.environ)
    files = [] if batch else _rank_logs(run, attempt, all_attempts)
    files += [submission.batch_log for submission in run.submissions() if submission.batch_log.is_file()]
    if not files:
        click.echo(f"run {run.name} has no logs yet; see: hpc-train why {run.name}", err=True)
    for file in files:
        if paths:
            click.echo(str(file))
            continue
        if len(files) > 1:
            click.echo(f"==> {file.relative_to(run.path)} <==")
        _copy(file)


def _copy(file: Path) -> None:
    """The bytes as they are: a program's colours are its own."""
    sys.stdout.flush()
    with open(file, "rb") as source:
        shutil.copyfileobj(source, sys.stdout.buffer, 1 << 20)
    sys.stdout.buffer.flush()


def _rank_logs(run: RunDir, attempt: int | None, all_attempts: bool) -> list[Path]:
    attempts = run.attempts()
    if attempt is not None:
        attempts = [a for a in attempts if a.number == attempt]
        if not attempts:
            raise SpecError(f"run {run.name} has no attempt {attempt}; it has {len(run.attempts())}, numbered from 0")
    elif not all_attempts:
        attempts = attempts[-1:]
    return [path for a in attempts if a.logs.is_dir() for path in sorted(a.logs.iterdir()) if path.is_file()]
