"""`hpc-train status`: where runs stand, once or again and again."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import click

from hpc_train.cli.table import fit_lines, header, rows
from hpc_train.cli.text import one_line
from hpc_train.errors import SpecError, UsageError
from hpc_train.files import read_json
from hpc_train.run.index import find_run, open_run, read_index
from hpc_train.run.layout import RunDir

if TYPE_CHECKING:
    from rich.console import Console

    from hpc_train.run.newest import JournalTail
    from hpc_train.scheduler.view import RunView

__all__ = ["command"]

MAX_RUNS = 20
INTERVAL_S, MIN_INTERVAL_S, MAX_INTERVAL_S = 5.0, 0.5, 3600.0
_NUMBER = re.compile(r"\d+(\.\d*)?|\.\d+")

Show = Callable[[Sequence["RunView"]], None]


@click.command("status")
@click.argument("references", nargs=-1, metavar="[RUN]...")
@click.option("--json", "as_json", is_flag=True, help="Print a list of objects (format hpc-train-status, version 1).")
@click.option(
    "--watch",
    is_flag=False,
    flag_value=f"{INTERVAL_S:g}",
    metavar="[SECONDS]",
    help="Show them again every 5 (or SECONDS) seconds, until all have ended. Ctrl-C ends the watching, no run.",
)
@click.option("--fresh", is_flag=True, help="Ask the scheduler anew, instead of taking an answer of the last 10 s.")
def command(references: tuple[str, ...], as_json: bool, watch: str | None, fresh: bool) -> None:
    """Show runs: by name, directory or job id; without any, your newest ones."""
    from hpc_train.scheduler.view import CACHED_S, view_runs

    max_age_s = 0.0 if fresh else CACHED_S
    if watch is not None:
        if not _NUMBER.fullmatch(watch):  # `status --watch RUN`
            _check_run(watch)
            references, watch = (watch, *references), f"{INTERVAL_S:g}"
        _watch(references, _interval(watch), max_age_s, as_json=as_json)
        return
    runs, missing = _runs_and_missing(references)
    views = view_runs(runs, max_age_s=max_age_s)
    if as_json:
        click.echo(json.dumps([view.to_json() for view in views], indent=1, allow_nan=False))
    elif not views and not missing:
        click.echo("no runs yet; start one with: hpc-train submit")
    elif sys.stdout.isatty():
        _print_on_terminal(views)
    else:
        _print_plain(views)
    for error in missing[1:] if references else missing:
        click.echo(f"hpc-train: left out: {one_line(str(error))}", err=True)
    if references and missing:
        raise missing[0]


def _runs(references: Sequence[str]) -> list[RunDir]:
    return _runs_and_missing(references)[0]


def _runs_and_missing(references: Sequence[str]) -> tuple[list[RunDir], list[SpecError]]:
    """The runs that are meant, and why others are not shown. Raises: SpecError if none of those named can be."""
    runs: list[RunDir] = []
    missing: list[SpecError] = []
    for reference in references:
        try:
            runs.append(find_run(reference, os.environ))
        except SpecError as error:
            missing.append(error)
    if references:
        if not runs:
            raise missing[0]
        return runs, missing
    for path in dict.fromkeys(entry.path for entry in reversed(read_index(os.environ))):
        try:
            runs.append(open_run(path))
        except SpecError as error:
            if _is_damaged(path / "run.json"):  # else it is gone, or of another version
                missing.append(error)
        if len(runs) == MAX_RUNS:
            break
    return runs, missing


def _is_damaged(record: Path) -> bool:
    try:
        read_json(record)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError):
        return True
    return False


def _check_run(word: str) -> None:
    """Refuse a word after --watch that is no run. Raises: SpecError; UsageError where the word is a number."""
    try:
        find_run(word, os.environ)
    except SpecError as error:
        try:
            float(word)  # as nan, 1e400
        except ValueError:
            raise error from None
        allowed = f"{MIN_INTERVAL_S:g} to {MAX_INTERVAL_S:g}"
        raise UsageError(f"--watch {word}: neither {allowed} seconds, as 5 or 0.5, nor a run") from error


def _interval(text: str) -> float:
    seconds = float(text)
    if not MIN_INTERVAL_S <= seconds <= MAX_INTERVAL_S:
        raise UsageError(
            f"--watch {text}: give {MIN_INTERVAL_S:g} to {MAX_INTERVAL_S:g} seconds; "
            f"if {text} is a job, write: hpc-train status {text} --watch"
        )
    return seconds


def _watch(references: Sequence[str], interval_s: float, max_age_s: float, *, as_json: bool) -> None:
    """Show the runs until all of them have ended, or the person has seen enough."""
    from hpc_train.scheduler.view import view_runs

    tails: dict[RunDir, JournalTail] = {}
    for error in _runs_and_missing(references)[1]:
        click.echo(f"hpc-train: left out: {one_line(str(error))}", err=True)
    try:
        with _lines_of_json() if as_json else _live() if sys.stdout.isatty() else _plain() as show:
            while True:
                views = view_runs(_runs(references), max_age_s=max_age_s, tails=tails)
                if all(view.is_over for view in views):  # ask once more: a shared answer may be from before a requeue
                    views = view_runs([view.run for view in views], max_age_s=0, tails=tails)
                show(views)
                if all(view.is_over for view in views):
                    return
                time.sleep(interval_s)
    except KeyboardInterrupt:
        _leave("no longer watching; the runs go on")


def _leave(words: str) -> NoReturn:
    click.echo(f"hpc-train: {words}", err=True)
    click.get_current_context().exit(130)


@contextmanager
def _lines_of_json() -> Iterator[Show]:
    yield lambda views: click.echo(json.dumps([view.to_json() for view in views], allow_nan=False))


@contextmanager
def _plain() -> Iterator[Show]:
    def show(views: Sequence[RunView]) -> None:
        click.echo(time.strftime("%Y-%m-%d %H:%M:%S"))
        _print_plain(views)
        sys.stdout.flush()

    yield show


@contextmanager
def _live() -> Iterator[Show]:
    """One table that changes in its place."""
    from rich.live import Live
    from rich.text import Text

    console = _console()
    with Live(console=console, auto_refresh=False, vertical_overflow="ellipsis") as live:

        def show(views: Sequence[RunView]) -> None:
            lines = fit_lines([header(), *rows(views)], console.width)
            text = Text("\n").join(Text(line, style="" if n else "bold", no_wrap=True) for n, line in enumerate(lines))
            live.update(Text("\n").join([text, Text(time.strftime("%H:%M:%S"), style="dim")]), refresh=True)

        yield show


def _print_plain(views: Sequence[RunView]) -> None:
    for row in (header(), *rows(views)):
        click.echo("\t".join(row))


def _print_on_terminal(views: Sequence[RunView]) -> None:
    from rich.text import Text

    console = _console()
    for number, line in enumerate(fit_lines([header(), *rows(views)], console.width)):
        # no markup: a reason may hold "[recovery]"; soft wrap: lines are as long as they are
        console.print(Text(line, style="" if number else "bold"), soft_wrap=True)


def _console() -> Console:
    from rich.console import Console  # only for a terminal

    return Console(no_color="NO_COLOR" in os.environ or None)
