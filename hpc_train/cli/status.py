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
NARROW = 120  # columns of a terminal; below, the run name and the reason need the room of the others
MIN_REASON = 8


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
    from rich.text import Text

    console = Console(no_color="NO_COLOR" in os.environ or None)
    for number, line in enumerate(_lines([header, *rows], console.width)):
        # no markup: a reason may hold "[recovery]"; soft wrap: lines are as long as they are
        console.print(Text(line, style="" if number else "bold"), soft_wrap=True)


def _lines(rows: list[list[str]], width: int) -> list[str]:
    """Rows in columns; the last one is cut to the terminal's width. A run's name is whole, whatever the width."""
    from rich.cells import cell_len, set_cell_size  # a letter may be two cells wide

    if width < NARROW:
        rows = [[row[0], *row[3:]] for row in rows]  # without job and site
    sizes = [max(map(cell_len, column)) for column in zip(*rows, strict=True)][:-1]
    room = max(width - sum(sizes) - 2 * len(sizes), MIN_REASON)
    lines = []
    for *cells, last in rows:
        shown = last if cell_len(last) <= room else set_cell_size(last, room - 1).rstrip() + "…"
        padded = [set_cell_size(cell, size) for cell, size in zip(cells, sizes, strict=True)]
        lines.append("  ".join([*padded, shown]).rstrip())
    return lines
