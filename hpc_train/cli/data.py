"""hpc-train data: make and check datasets.

Apart from the data room, which works without a command line; nothing heavy is imported before a command runs.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpc_train.cli.text import one_line

if TYPE_CHECKING:
    from hpc_train.data.inspect import Inspection, Sample
    from hpc_train.data.manifest import Field
    from hpc_train.data.verify import VerifyReport

__all__ = ["command"]

DAMAGED = 65
MAX_LINES = 200
MAX_SHOWN = 64  # numbers of one field


@click.group()
def command() -> None:
    """Make, look at and check datasets (HDF5 shards with a manifest)."""


@command.command()
@click.argument("out", type=click.Path(path_type=Path))
@click.argument("sources", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "--sequence", type=click.IntRange(1, 1 << 27), required=True, help="Bytes per sample; one more is stored."
)
@click.option("--block-samples", type=click.IntRange(1), help="Samples per block  [default: blocks of 64 KiB to 1 MiB]")
@click.option("--shard-samples", type=click.IntRange(1), help="Samples per file, whole blocks  [default: about 1 GiB]")
@click.option("--glob", "globs", multiple=True, default=("*",), show_default=True, help="Names to take in directories.")
@click.option("--force", is_flag=True, help="Replace a dataset in OUT.")
def pack(
    out: Path,
    sources: tuple[Path, ...],
    *,
    sequence: int,
    block_samples: int | None,
    shard_samples: int | None,
    globs: tuple[str, ...],
    force: bool,
) -> None:
    """Pack the bytes of SOURCES (files, or directories with all below them) into the dataset OUT.

    The files are joined in the order given, directories sorted by name. Each sample is --sequence bytes and the one
    that follows, so that input and target come from one row. A failure leaves nothing that looks like a dataset.
    """
    from hpc_train.data.pack import pack_bytes

    with _progress("packing") as on_progress:
        summary = pack_bytes(
            out,
            sources,
            sequence=sequence,
            block_samples=block_samples,
            shard_samples=shard_samples,
            globs=globs,
            force=force,
            on_progress=on_progress,
        )
    if summary.num_skipped:
        were = "file or directory was" if summary.num_skipped == 1 else "files or directories were"
        click.echo(f"warning: {summary.num_skipped} {were} skipped:", err=True)
        for line in summary.skipped:
            click.echo(f"  {line}", err=True)
    manifest = summary.manifest
    click.echo(
        f"packed {_counted(summary.num_files, 'file')}, {summary.num_bytes} bytes, into {out}: "
        f"{_counted(manifest.num_samples, 'sample')} in {_counted(manifest.num_blocks, 'block')} and "
        f"{_counted(len(manifest.shards), 'shard')}; "
        f"{summary.num_dropped_bytes} bytes at the end fill no sample"
    )
    click.echo(f"entropy of single bytes: {manifest.statistics['byte_entropy_nats']:.4f} nats")
    click.echo(f"next: hpc-train data verify {_quoted(out)}")


@command.command("inspect")
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--sample", "number", type=int, help="Decode this sample too, after checking its block.")
@click.option("--json", "as_json", is_flag=True, help="Print one object (format hpc-train-data-inspect, version 1).")
def inspect_command(directory: Path, number: int | None, as_json: bool) -> None:
    """Show what the dataset in DIRECTORY holds: fields, shapes, shards, blocks, where it came from.

    Reads the manifest only, and one block with --sample: `verify` tells whether the rest is whole.
    """
    from hpc_train.data.inspect import inspect_dataset, read_sample

    found = inspect_dataset(directory)
    sample = None if number is None else read_sample(found, number)
    if as_json:
        record: dict[str, Any] = {"format": "hpc-train-data-inspect", "version": 1, **found.as_json()}
        if sample is not None:
            record["sample"] = sample.as_json()
        click.echo(json.dumps(record, indent=1, allow_nan=False))
        return
    for line in [*_described(found), *(_decoded(found, sample) if sample is not None else [])]:
        click.echo(one_line(line))


def _described(found: Inspection) -> list[str]:
    manifest = found.manifest
    num_bytes = manifest.num_samples * manifest.sample_bytes
    lines = [
        f"dataset    {found.path}",
        f"hash       {manifest.hash}",
        f"samples    {manifest.num_samples:,} of {manifest.sample_bytes:,} bytes: {num_bytes:,} bytes",
        f"blocks     {manifest.num_blocks:,} of {manifest.block_samples:,} samples",
    ]
    lines += [f"field      {name}: {_kind(field)}" for name, field in manifest.fields.items()]
    for shard in manifest.shards[:MAX_LINES]:
        lines.append(f"shard      {shard.name}: {shard.num_samples:,} samples, {shard.size_bytes:,} bytes")
    if len(manifest.shards) > MAX_LINES:
        lines.append(f"           and {len(manifest.shards) - MAX_LINES} more shards; --json lists all")
    lines += [f"source     {key}: {value}" for key, value in manifest.provenance.items()]
    return lines + [f"statistic  {key}: {value}" for key, value in manifest.statistics.items()]


def _kind(field: Field) -> str:
    return f"{field.dtype} {list(field.shape)}" if field.shape else field.dtype


def _decoded(found: Inspection, sample: Sample) -> list[str]:
    lines = [f"sample     {sample.number}: {sample.shard}, block {sample.block}; its block matches its checksum"]
    for name, value in sample.values.items():
        flat = _flat(value)
        shown = " ".join(str(number) for number in flat[:MAX_SHOWN]) + (" …" if len(flat) > MAX_SHOWN else "")
        field = found.manifest.fields[name]
        lines.append(f"           {name}: {shown}")
        if field.dtype == "uint8" and len(field.shape) == 1:
            lines.append(f"           {name} as text: {bytes(flat[: 4 * MAX_SHOWN]).decode(errors='replace')!r}")
    return lines


def _flat(value: Any) -> list[Any]:
    return [each for item in value for each in _flat(item)] if isinstance(value, list) else [value]


@command.command()
@click.argument("directory", type=click.Path(path_type=Path))
@click.option("--json", "as_json", is_flag=True, help="Print the whole report as JSON.")
@click.pass_context
def verify(context: click.Context, directory: Path, as_json: bool) -> None:
    """Read the dataset in DIRECTORY and name all damage: exit code 0 if it is good, 65 if not."""
    from hpc_train.data.verify import verify_dataset

    with _progress("verifying") as on_progress:
        report = verify_dataset(directory, on_progress=on_progress)
    if as_json:
        click.echo(json.dumps(report.to_json(), indent=1, sort_keys=True))
    else:
        _print_report(report)
    context.exit(0 if report.is_good else DAMAGED)


def _print_report(report: VerifyReport) -> None:
    for warning in report.warnings[:MAX_LINES]:
        click.echo(f"warning: {warning}", err=True)
    for problem in report.problems[:MAX_LINES]:
        click.echo(f"damaged: {problem.message}")
    if len(report.problems) > MAX_LINES:
        click.echo(f"damaged: and {len(report.problems) - MAX_LINES} more; --json lists all")
    if report.is_good:
        click.echo(
            f"good: {report.path}: {_counted(report.num_samples, 'sample')} in "
            f"{_counted(report.num_blocks, 'block')} and {_counted(report.num_shards, 'shard')}, "
            f"{report.num_bytes} bytes, all as packed"
        )
    else:
        click.echo(
            f"damaged: {_counted(len(report.problems), 'problem')} in {report.path}; restore the files or pack again"
        )


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _quoted(path: Path) -> str:
    import shlex

    return shlex.quote(str(path))


@contextlib.contextmanager
def _progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on standard error for what takes over a second, on a terminal only."""
    if not sys.stderr.isatty():
        yield lambda _done, _total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    began = time.monotonic()
    columns: list[Any] = [what, BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()]
    with contextlib.ExitStack() as stack:
        bar = Progress(*columns, console=Console(stderr=True), transient=True)
        task = bar.add_task(what, total=None)
        is_shown = False

        def on_progress(done: int, total: int) -> None:
            nonlocal is_shown
            if not is_shown and time.monotonic() - began > 1:
                stack.enter_context(bar)
                is_shown = True
            bar.update(task, completed=done, total=total)

        yield on_progress
