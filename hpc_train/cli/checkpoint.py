"""`hpc-train checkpoint`: which checkpoints there are, and whether they are whole.

Apart from the checkpoint room, which works without a command line; neither torch nor numpy is imported here.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpc_train.errors import CheckpointError, SpecError
from hpc_train.run.index import find_run

if TYPE_CHECKING:
    from hpc_train.checkpoint.catalogue import Entry

__all__ = ["command"]

DAMAGED = 65


@click.group("checkpoint")
def command() -> None:
    """List checkpoints, or verify every byte of them."""


@command.command("list")
@click.argument("path", type=click.Path(path_type=Path), metavar="ROOT_OR_RUN")
@click.option("--json", "as_json", is_flag=True, help="Print one object (format hpc-train-checkpoint-list, version 1).")
def list_command(path: Path, as_json: bool) -> None:
    """List the checkpoints of a root or a run (its directory, name or job id), oldest first.

    Reads COMMIT files only: `verify` tells whether the data is whole.
    """
    from hpc_train.checkpoint.catalogue import find_root, list_checkpoints

    root = find_root(_found(path))
    entries = list_checkpoints(root)
    if as_json:
        checkpoints = [entry.as_json() for entry in entries]
        record = {"format": "hpc-train-checkpoint-list", "version": 1, "root": str(root), "checkpoints": checkpoints}
        click.echo(json.dumps(record, indent=1))
        return
    if not entries:
        click.echo(f"{root}: no checkpoints")
        return
    click.echo(f"{'step':>12}  {'status':<11}  {'bytes':>16}  {'ranks':>6}  {'saved (UTC)':<19}  directory")
    for entry in entries:
        click.echo(_line(entry))


def _found(path: Path) -> Path:
    """The path itself if it is there, else the directory of the run with this name or job id."""
    if os.path.lexists(path):
        return path
    try:
        return find_run(str(path), os.environ).path
    except SpecError as cause:
        raise CheckpointError(f"{path}: no such directory, and as a run: {cause}") from cause


def _line(entry: Entry) -> str:
    step = "-" if entry.step is None else str(entry.step)
    size = "-" if entry.num_bytes is None else f"{entry.num_bytes:,}"
    ranks = "-" if entry.world_size is None else str(entry.world_size)
    saved = "-" if entry.created is None else _utc(entry.created)
    problem = f"  ({entry.problem})" if entry.problem else ""
    return f"{step:>12}  {entry.status:<11}  {size:>16}  {ranks:>6}  {saved:<19}  {entry.path.name}{problem}"


def _utc(seconds: int) -> str:
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(seconds))
    except (OverflowError, ValueError, OSError):  # from a file: may be any number
        return str(seconds)


@command.command("verify")
@click.argument("path", type=click.Path(path_type=Path), metavar="DIR_OR_ROOT_OR_RUN")
@click.option(
    "--json", "as_json", is_flag=True, help="Print one object (format hpc-train-checkpoint-verify, version 1)."
)
@click.pass_context
def verify_command(ctx: click.Context, path: Path, as_json: bool) -> None:
    """Read every byte of a checkpoint, or of all in a root or run, and compare checksums.

    Exit code 0 if all are whole, 65 if any is damaged or none is there; each damage is named by file, tensor and chunk.
    """
    from hpc_train.checkpoint.verify import verify_tree

    verdicts = verify_tree(_found(path))
    if as_json:
        checkpoints = [verdict.as_json() for verdict in verdicts]
        record = {"format": "hpc-train-checkpoint-verify", "version": 1, "checkpoints": checkpoints}
        click.echo(json.dumps(record, indent=1))
    else:
        for verdict in verdicts:
            click.echo(f"{verdict.path}: {'whole' if verdict.is_good else 'DAMAGED'}, {verdict.num_bytes:,} bytes")
            for problem in verdict.problems:
                click.echo(f"  {problem}")
    if not all(verdict.is_good for verdict in verdicts):
        ctx.exit(DAMAGED)
