"""`hpc-train checkpoint`: which checkpoints there are, what is in them, and whether they are whole.

Apart from the checkpoint room, which works without a command line; neither torch nor numpy is imported here.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpc_train.cli.text import one_line
from hpc_train.errors import CheckpointError, SpecError, from_os_error
from hpc_train.run.index import find_run, open_run
from hpc_train.run.newest import JournalTail

if TYPE_CHECKING:
    from hpc_train.checkpoint.catalogue import Entry
    from hpc_train.checkpoint.inspect import Content, PlainValue, StoredTensor
    from hpc_train.run.layout import RunDir

__all__ = ["command"]

DAMAGED = 65
MAX_VALUE = 200  # characters of one value


@click.group("checkpoint")
def command() -> None:
    """List checkpoints, look into one, or verify every byte."""


@command.command("list")
@click.argument("path", type=click.Path(path_type=Path), metavar="ROOT_OR_RUN")
@click.option("--json", "as_json", is_flag=True, help="Print one object (format hpc-train-checkpoint-list, version 1).")
def list_command(path: Path, as_json: bool) -> None:
    """List the checkpoints of a root or a run (its directory, name or job id), oldest first.

    Reads COMMIT files, and looks whether the index is there: `verify` tells whether the data is whole.
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
    """The path itself if it is there, else the directory of the run with this name or job id.

    Raises: CheckpointError for a run without checkpoints of ours.
    """
    if os.path.lexists(path / "run.json"):
        return _with_checkpoints(open_run(path))
    if os.path.lexists(path):
        return path
    try:
        return _with_checkpoints(find_run(str(path), os.environ))
    except SpecError as cause:
        raise CheckpointError(f"{path}: no such directory, and as a run: {cause}") from cause


def _with_checkpoints(run: RunDir) -> Path:
    """The directory of a run that has a root of ours. Raises: CheckpointError with what its journal knows instead."""
    if os.path.lexists(run.checkpoints):
        return run.path
    from hpc_train.checkpoint.names import parse_step
    from hpc_train.run.kept import describe_gone

    try:
        commit = JournalTail(run).read().commit
    except OSError as error:
        raise from_os_error(error, f"cannot read the journal of run {run.name}") from error
    if commit is None:
        raise CheckpointError(f"run {run.name} has committed no checkpoint so far; see: hpc-train status {run.name}")
    if gone := describe_gone(run, [commit]):
        raise CheckpointError(gone)
    place = Path(run.path, str(commit.fields.get("path", "")))  # relative where the run's directory holds it
    newest = f"its newest commit, step {commit.fields.get('step')}, is {place}"
    if parse_step(place.name) is not None:
        raise CheckpointError(f"run {run.name} saves elsewhere: {newest}; give its directory: {place.parent}")
    raise CheckpointError(
        f"run {run.name} has no checkpoints of hpc-train's own: {newest}, saved by the program's own means; "
        "listing, inspecting and verifying is for our own checkpoints (hpc_train.Checkpointer)"
    )


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


@command.command("inspect")
@click.argument("path", type=click.Path(path_type=Path), metavar="DIR_OR_ROOT_OR_RUN")
@click.option("--step", type=click.IntRange(0), help="Of a root or run: this step  [default: the newest].")
@click.option("--filter", "patterns", multiple=True, help="Only names with this text or shell pattern in them.")
@click.option("--rank", type=click.IntRange(0), help="Show the state that this rank had for itself, too.")
@click.option("--json", "as_json", is_flag=True, help="Print one object (format hpc-train-checkpoint, version 1).")
def inspect_command(path: Path, step: int | None, patterns: tuple[str, ...], rank: int | None, as_json: bool) -> None:
    """Show what is in a checkpoint: who saved it and when, its parts, tensors and plain values.

    Reads COMMIT and index only: `verify` tells whether the tensors are whole.
    """
    from hpc_train.checkpoint.inspect import find_checkpoint, inspect_checkpoint

    content = inspect_checkpoint(find_checkpoint(_found(path), step), patterns=patterns, rank=rank)
    if as_json:
        record = {"format": "hpc-train-checkpoint", "version": 1, **content.as_json()}
        click.echo(json.dumps(record, indent=1, allow_nan=False))
        return
    for line in _described(content, rank):
        click.echo(one_line(line))


def _described(content: Content, rank: int | None) -> list[str]:
    commit = content.commit
    by = f" by run {commit.run}, attempt {commit.attempt}," if commit.run else ""
    ranks = "1 rank" if commit.world_size == 1 else f"{commit.world_size} ranks"
    lines = [
        f"checkpoint {content.path}",
        f"step       {commit.step}, saved {_utc(commit.created)} UTC{by} on {ranks} (writer {commit.writer})",
        f"size       {commit.num_bytes:,} bytes, {len(commit.file_nbytes)} data file(s) and the index",
    ]
    for name, (num_tensors, nbytes, num_values) in content.parts.items():
        lines.append(f"part       {name}: {num_tensors} tensors of {nbytes:,} bytes, {num_values} plain values")
    if content.ranks:
        sizes = content.ranks.values()
        lines.append(f"per rank   {len(sizes)} ranks, {min(sizes):,} to {max(sizes):,} bytes each")
    lines += [_tensor_line("tensor", tensor) for tensor in content.tensors]
    lines += [_value_line("value", value) for value in content.plain]
    lines += [_tensor_line(f"rank {rank}", tensor) for tensor in content.rank_tensors]
    return lines + [_value_line(f"rank {rank}", value) for value in content.rank_values]


def _tensor_line(label: str, tensor: StoredTensor) -> str:
    boxes = f" in {tensor.num_boxes} boxes" if tensor.num_boxes > 1 else ""
    tied = f"; tied: {', '.join(tensor.also)}" if tensor.also else ""
    return f"{label:<10} {tensor.name}: {tensor.dtype} {list(tensor.shape)}, {tensor.nbytes:,} bytes{boxes}{tied}"


def _value_line(label: str, value: PlainValue) -> str:
    shown = repr(value.value)
    shown = shown if len(shown) <= MAX_VALUE else f"{shown[:MAX_VALUE]}…"
    return f"{label:<10} {value.path} = {shown} ({value.kind})"


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
    from hpc_train.checkpoint.verify import check_root, verify_tree

    found = _found(path)
    verdicts = verify_tree(found)
    warnings = check_root(found)
    if as_json:
        checkpoints = [verdict.as_json() for verdict in verdicts]
        record = {"format": "hpc-train-checkpoint-verify", "version": 1, "checkpoints": checkpoints}
        click.echo(json.dumps({**record, "warnings": warnings}, indent=1))
    else:
        for warning in (*warnings, *(each for verdict in verdicts for each in verdict.warnings)):
            click.echo(f"warning: {warning}", err=True)
        for verdict in verdicts:
            click.echo(f"{verdict.path}: {'whole' if verdict.is_good else 'DAMAGED'}, {verdict.num_bytes:,} bytes")
            for problem in verdict.problems:
                click.echo(f"  {problem}")
    if not all(verdict.is_good for verdict in verdicts):
        ctx.exit(DAMAGED)
