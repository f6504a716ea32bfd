"""`hpc-train status`: where runs stand."""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING

import click

from hpc_train.cli.text import one_line
from hpc_train.run.index import find_run, open_run, read_index
from hpc_train.run.layout import RunDir, find_run_format

if TYPE_CHECKING:
    from hpc_train.scheduler.view import RunView

__all__ = ["command"]

MAX_RUNS = 20


@click.command("status")
@click.argument("references", nargs=-1, metavar="[RUN]...")
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects (format hpc-train-status, version 1).")
def command(references: tuple[str, ...], as_json: bool) -> None:
    """Show runs: by name, directory or job id; without any, your newest ones."""
    from hpc_train.scheduler.view import view_runs

    runs = [find_run(reference, os.environ) for reference in references] if references else _newest()
    views = view_runs(runs)
    if as_json:
        click.echo(json.dumps([view.to_json() for view in views], indent=1, allow_nan=False))
        return
    if not views:
        click.echo("no runs yet; start one with: hpc-train submit")
        return
    header = ["run", "job", "site", "state", "attempts", "step", "saved", "loss", "reason"]
    _print_table(header, [[one_line(cell) for cell in _row(view)] for view in views])


def _newest() -> list[RunDir]:
    paths = list(dict.fromkeys(path for _, path, _ in reversed(read_index(os.environ))))
    found = (open_run(path) for path in paths if find_run_format(path) is None)
    return [run for run, _ in zip(found, range(MAX_RUNS), strict=False)]


def _row(view: RunView) -> list[str]:
    step = "-" if view.step is None else f"{view.step}/{view.total_steps}" if view.total_steps else str(view.step)
    saved = "-" if view.last_commit is None else str(view.last_commit)
    loss = "-" if view.loss is None else f"{view.loss:.4f}"
    site = view.site or "-"
    return [view.run.name, view.job_id_shown, site, view.state, str(view.attempts), step, saved, loss, view.reason]


def _print_table(header: list[str], rows: list[list[str]]) -> None:
    if not sys.stdout.isatty():
        for row in (header, *rows):
            click.echo("\t".join(row))
        return
    from rich.console import Console  # only for a terminal
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, header_style="bold")
    for name in header:
        table.add_column(name, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))  # no markup: a reason may hold "[recovery]"
    Console(no_color="NO_COLOR" in os.environ or None).print(table)
