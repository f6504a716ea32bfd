"""`hpc-train clean`: gives back the disk that ended runs take, and says how much runs take."""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from hpc_train.cli.text import align, human_duration
from hpc_train.errors import HpcTrainError, SpecError, UsageError, from_os_error
from hpc_train.quantities import format_bytes, parse_duration
from hpc_train.run.disk import DiskUse, find_half_removed, measure_disk, remove_run, remove_traces, remove_tree
from hpc_train.run.index import find_run, open_run, read_index, tidy_index
from hpc_train.run.layout import RunDir, find_run_format
from hpc_train.run.turn import hold_turn

if TYPE_CHECKING:
    from hpc_train.scheduler.view import RunView

__all__ = ["command"]

TURN_WAIT_S = 3.0
_ENDED = ("completed", "failed", "cancelled", "timeout", "out_of_memory", "node_fail", "preempted")


@dataclass(frozen=True)
class _Choice:
    """A run that may be removed, and what it takes."""

    run: RunDir
    state: str
    idle_s: float
    use: DiskUse


@click.command("clean")
@click.argument("references", nargs=-1, metavar="[RUN]...")
@click.option("--older", default=None, metavar="DURATION", help="All ended runs that nothing touched for so long: 30d.")
@click.option("--keep-checkpoints", is_flag=True, help="Remove logs, marks and journal only.")
@click.option(
    "--list", "only_list", is_flag=True, help="Show what runs take on disk, the largest first; remove nothing."
)
@click.option("--dry-run", is_flag=True, help="Show what would be removed.")
@click.option("--yes", "-y", is_flag=True, help="Do not ask.")
def command(
    references: tuple[str, ...], older: str | None, keep_checkpoints: bool, only_list: bool, **flags: bool
) -> None:
    """Remove the directories of ended runs, after showing their size and asking. A run that may be alive is left alone.

    Without RUN and --older: finish removals that were interrupted, and drop vanished runs from the index.
    """
    idle_s = 0 if older is None else parse_duration(older)
    named = [find_run(reference, os.environ) for reference in references]
    runs = list(dict.fromkeys(named if references else _all_runs() if older is not None or only_list else []))
    if only_list:
        _list(runs)
        return
    chosen, refused = _choose(runs, idle_s, is_named=bool(references))
    roots = {entry.path.parent for entry in read_index(os.environ)} | {run.path.parent for run in named}
    halves = find_half_removed(sorted(roots))
    for line in refused:
        click.echo(line, err=True)
    if chosen or halves:
        _show(chosen, halves)
        if flags["dry_run"]:
            return
        if not flags["yes"]:
            _ask(len(chosen), keep_checkpoints)
        refused += _remove(chosen, halves, keep_checkpoints)
    num_dropped = 0 if flags["dry_run"] else tidy_index(os.environ)
    if not (chosen or halves or refused or num_dropped):
        click.echo("nothing to remove")
    if refused:
        raise SpecError(f"{len(refused)} of what was to go is still there: see above")


def _all_runs() -> list[RunDir]:
    paths = dict.fromkeys(entry.path for entry in read_index(os.environ))
    return [open_run(path) for path in paths if find_run_format(path) is None and path.stat().st_uid == os.geteuid()]


def _choose(runs: Sequence[RunDir], idle_s: float, *, is_named: bool) -> tuple[list[_Choice], list[str]]:
    """Those that may go, and for each other that was named why not."""
    from hpc_train.scheduler.view import view_runs

    chosen, refused = [], []
    for view in view_runs(runs, max_age_s=0):
        reason = _why_not(view)
        idle = time.time() - _last_touched(view.run)
        if reason is None and idle >= idle_s:
            chosen.append(_Choice(view.run, view.state, idle, measure_disk(view.run)))
        elif is_named:
            refused.append(f"{view.run.name} stays: {reason or f'it was used {human_duration(idle)} ago'}")
    return chosen, refused


def _why_not(view: RunView) -> str | None:
    """Why a run must stay, None if it has ended."""
    name, host = view.run.name, socket.gethostname()
    if view.job.is_live:
        return f"its job {view.job_id_shown} is {view.job.state}"
    if not view.job.is_answer:
        return f"its scheduler does not answer: {view.job.reason}"
    if view.scheduler == "local" and view.job.state == "unknown" and view.job.nodes not in ("", host):
        return f"it ran on {view.job.nodes}, and only that machine knows whether it still does"
    if view.state in _ENDED and view.job.state != "held":
        return None
    if view.job.state == "held" or view.state == "held":
        return f"it is held and can go on; to give it up: hpc-train cancel {name}"
    return f"nobody knows whether it has ended ({view.reason}); if you do: hpc-train cancel {name}"


def _last_touched(run: RunDir) -> float:
    """When something last happened in a run."""
    places = [run.path, run.record, run.cancelled, run.checkpoints, *run.journal.glob("*.jsonl")]
    places += [each for attempt in run.attempts()[-1:] for each in (attempt.path, attempt.decision)]
    times = [0.0]
    for place in places:
        with contextlib.suppress(OSError):
            times.append(os.lstat(place).st_mtime)
    return max(times)


def _show(chosen: Sequence[_Choice], halves: Sequence[Path]) -> None:
    table = [_row(each.run.name, each.state, each.idle_s, each.use) for each in chosen]
    for half in halves:
        table.append(_row(half.name, "removal interrupted", None, measure_disk(RunDir(half))))
    _print([_HEADER, *table])


_HEADER = ["run", "state", "last used", "checkpoints", "logs", "journal", "total", "files"]


def _row(name: str, state: str, idle_s: float | None, use: DiskUse) -> list[str]:
    sizes = [format_bytes(size) for size in (use.checkpoints, use.logs, use.journal, use.total)]
    return [name, state, "-" if idle_s is None else human_duration(idle_s), *sizes, str(use.num_files)]


def _print(table: list[list[str]]) -> None:
    for line in align(table) if sys.stdout.isatty() else map("\t".join, table):
        click.echo(line)


def _list(runs: Sequence[RunDir]) -> None:
    from hpc_train.scheduler.view import view_runs

    measured = [(view, measure_disk(view.run)) for view in view_runs(runs)]
    measured.sort(key=lambda pair: -pair[1].total)
    now = time.time()
    _print([_HEADER, *(_row(v.run.name, v.state, now - _last_touched(v.run), use) for v, use in measured)])
    click.echo(f"{len(measured)} runs, {format_bytes(sum(use.total for _, use in measured))}", err=True)


def _ask(num_runs: int, keep_checkpoints: bool) -> None:
    if not sys.stdin.isatty():
        raise UsageError("nobody is here to be asked; look with --dry-run, then give --yes")
    what = "everything but checkpoints and records of" if keep_checkpoints else "for good:"
    click.confirm(f"Remove {what} {num_runs} runs, and what earlier removals left?", abort=True)


def _remove(chosen: Sequence[_Choice], halves: Sequence[Path], keep_checkpoints: bool) -> list[str]:
    """Remove them; why some are still there."""
    failed = []
    for half in halves:
        try:
            remove_tree(half)
        except OSError as error:
            failed.append(f"{half} stays: {error.strerror or error}")
    for each in chosen:
        try:
            _remove_one(each.run, keep_checkpoints)
        except HpcTrainError as error:
            failed.append(f"{each.run.name} stays: {error}")
        else:
            click.echo(f"{each.run.name} {_left(each.run) if keep_checkpoints else 'removed'}")
    for line in failed:
        click.echo(line, err=True)
    return failed


def _left(run: RunDir) -> str:
    """What a run has left whose traces were removed."""
    try:
        has_checkpoints = any(run.checkpoints.iterdir())
    except OSError:
        has_checkpoints = False
    return f"has its {'checkpoints and ' if has_checkpoints else ''}records only"


def _remove_one(run: RunDir, keep_checkpoints: bool) -> None:
    """Look once more, with no other command at work, then remove. Raises: HpcTrainError."""
    from hpc_train.scheduler.view import view_run

    with hold_turn(run, wait_s=TURN_WAIT_S) as is_held:
        if not is_held:
            raise SpecError("another command is at work on it")
        reason = _why_not(view_run(run)) or _other_job(run)
        if reason is not None:
            raise SpecError(reason)
        try:
            remove_traces(run) if keep_checkpoints else remove_run(run)
        except OSError as error:
            raise from_os_error(error, f"cannot remove {error.filename or run.path}") from error


def _other_job(run: RunDir) -> str | None:
    """Why a run must stay for a job that is not its newest, or that nobody noted. Raises: SchedulerError, SiteError."""
    from hpc_train.scheduler.continuation import find_job_ids
    from hpc_train.scheduler.kinds import make_backend

    for kind, job_ids in find_job_ids(run).items():
        backend = make_backend(kind)
        for job_id, job in backend.states(job_ids).items():
            if job.is_live or job.state == "held":
                return f"its earlier job {job_id} is {job.state}"
        for job_id in backend.jobs_of(run):
            return f"its job {job_id}, which is in no record, is in the queue; first: hpc-train cancel {run.name}"
    return None
