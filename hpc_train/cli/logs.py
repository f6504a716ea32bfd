"""`hpc-train logs`: what the ranks and the batch shell printed, and what they go on to print."""

from __future__ import annotations

import os
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import click

from hpc_train.cli.follow import Follower, start_of_tail
from hpc_train.errors import SpecError, UsageError
from hpc_train.files import read_json, read_text
from hpc_train.recovery.evidence import read_decision, submission_of
from hpc_train.run.index import find_run
from hpc_train.run.layout import AttemptDir, RunDir

__all__ = ["command"]

POLL_S = 0.5
STATE_POLL_S = 10.0
HURRIED_POLL_S, HURRY_S = 2.0, 30.0  # after a decision that ends the run, until the scheduler has seen its job end
KEPT_S = 30.0
SHOWN_NODES = 10
LATE_S = 1.0  # for the last words of other nodes to come through a network file system


@dataclass(frozen=True)
class _Choice:
    """Which of a run's logs are asked for. attempt: None for the newest, and those that follow it."""

    attempt: int | None
    all_attempts: bool
    batch: bool
    node: str | None
    rank: int | None


@click.command("logs")
@click.argument("reference", metavar="RUN")
@click.option("--follow", "-f", is_flag=True, help="Go on with what is added, over later attempts, until the run ends.")
@click.option("--tail", "-n", type=click.IntRange(min=0), default=None, help="Only the last lines of each file.")
@click.option("--attempt", type=int, default=None, help="Number of the attempt; default: the newest.")
@click.option("--all", "all_attempts", is_flag=True, help="All attempts, oldest first.")
@click.option("--batch", is_flag=True, help="Only the batch shell's log (decisions, Slurm's own words).")
@click.option("--node", default=None, help="Only what ranks on this node printed.")
@click.option("--rank", type=click.IntRange(min=0), default=None, help="Only the log of the node on which it ran.")
@click.option("--paths", is_flag=True, help="Print the files' names instead of their content.")
def command(reference: str, follow: bool, tail: int | None, paths: bool, **chosen: bool | int | str | None) -> None:
    """Print a run's logs: of its newest attempt, one file a node, then the batch shell's."""
    choice = _Choice(**chosen)  # type: ignore[arg-type]  # click has checked the types
    _refuse_contradictions(choice, follow and paths)
    run = find_run(reference, os.environ)
    _refuse_the_unknown(run, choice, waits=follow)
    files = _files(run, choice)
    if follow:
        _follow(run, choice, tail)
        return
    if not files:
        click.echo(f"run {run.name} has no logs yet; see: hpc-train why {run.name}", err=True)
    for file in files:
        if paths:
            click.echo(str(file))
            continue
        if len(files) > 1:
            click.echo(f"==> {file.relative_to(run.path)} <==")
        _copy(file, tail)


def _refuse_contradictions(choice: _Choice, follows_paths: bool) -> None:
    if follows_paths:
        raise UsageError("--paths and --follow exclude each other: names do not grow")
    if choice.batch and (choice.node is not None or choice.rank is not None):
        raise UsageError("--batch is the log of the batch shell alone; leave out --node and --rank")
    if choice.attempt is not None and choice.all_attempts:
        raise UsageError("--attempt and --all exclude each other")


def _refuse_the_unknown(run: RunDir, choice: _Choice, *, waits: bool) -> None:
    """A rank that the run does not have, or a node on which nothing of it ran, is a slip, and not a log yet to come.

    Args:  waits: whether later attempts count too: they may run on other nodes.
    Raises: SpecError.
    """
    num_ranks = _num_ranks(run, choice)
    if choice.rank is not None and num_ranks and choice.rank >= num_ranks:
        there = "rank 0 alone" if num_ranks == 1 else f"ranks 0 to {num_ranks - 1}"
        raise SpecError(f"run {run.name} has no rank {choice.rank}; it has {there}")
    if choice.node is None or waits:
        return
    nodes = sorted({path.name.removesuffix(".log") for attempt in run.attempts() for path in _all_logs(attempt)})
    if nodes and choice.node.partition(".")[0] not in {node.partition(".")[0] for node in nodes}:
        listed = ", ".join(nodes[:SHOWN_NODES]) + (", …" if len(nodes) > SHOWN_NODES else "")
        raise SpecError(f"run {run.name} has no log of a node {choice.node!r}; it ran on {listed}")


def _num_ranks(run: RunDir, choice: _Choice) -> int:
    """Ranks of the attempts that are asked for; 0 where that is not known."""
    newest = run.newest_submission()
    numbers = [newest.number] if newest is not None else []
    attempts = _attempts(run, choice)
    if attempts:
        numbers = [submission_of(attempt, numbers[0] if numbers else 0) for attempt in attempts]
    counts = [0]
    for number in set(numbers):
        try:
            counts.append(int(read_json(run.submission(number).launch)["num_ranks"]))
        except (OSError, ValueError, KeyError, TypeError):
            return 0
    return max(counts)


def _files(run: RunDir, choice: _Choice) -> list[Path]:
    files = [] if choice.batch else _rank_logs(run, choice)
    if choice.node is None and choice.rank is None:
        files += [submission.batch_log for submission in run.submissions() if submission.batch_log.is_file()]
    return files


def _rank_logs(run: RunDir, choice: _Choice) -> list[Path]:
    return [path for attempt in _attempts(run, choice) for path in _logs_of(attempt, choice)]


def _attempts(run: RunDir, choice: _Choice) -> list[AttemptDir]:
    attempts = run.attempts()
    if choice.attempt is not None:
        attempts = [a for a in attempts if a.number == choice.attempt]
        if not attempts:
            message = f"run {run.name} has no attempt {choice.attempt}; it has {len(run.attempts())}, numbered from 0"
            raise SpecError(message)
    elif not choice.all_attempts:
        attempts = attempts[-1:]
    return attempts


def _all_logs(attempt: AttemptDir) -> list[Path]:
    return sorted(path for path in attempt.logs.iterdir() if path.is_file()) if attempt.logs.is_dir() else []


def _logs_of(attempt: AttemptDir, choice: _Choice) -> list[Path]:
    nodes = [choice.node] if choice.node is not None else []
    if choice.rank is not None:
        try:
            nodes.append(read_text(attempt.ready / str(choice.rank)).strip())
        except (OSError, ValueError):  # it has not started, or there is no such rank
            return []
    wanted = {node.partition(".")[0] for node in nodes}
    found = _all_logs(attempt)
    return [path for path in found if not wanted or wanted == {path.name.removesuffix(".log").partition(".")[0]}]


def _copy(file: Path, tail: int | None) -> None:
    """The bytes as they are: a program's colours are its own."""
    sys.stdout.flush()
    with open(file, "rb") as source:
        source.seek(0 if tail is None else start_of_tail(source, tail))
        shutil.copyfileobj(source, sys.stdout.buffer, 1 << 20)
    sys.stdout.buffer.flush()


def _follow(run: RunDir, choice: _Choice, tail: int | None) -> None:
    """Show what is there and what comes, until the run, or the one attempt that was asked for, has ended."""

    def files() -> list[tuple[str, Path]]:
        return [(str(file.relative_to(run.path)), file) for file in following(_files(run, choice))]

    following = _Growing()
    follower = Follower(
        files, sys.stdout.buffer, tail=tail, say=lambda text: click.echo(f"hpc-train: {text}", err=True)
    )
    has_ended = _Watch(run, choice.attempt).has_ended
    if not files():
        click.echo(f"hpc-train: run {run.name} has no logs yet; waiting for them", err=True)
    sys.stdout.flush()
    try:
        while not has_ended():
            if not follower.pump():
                time.sleep(POLL_S)
        time.sleep(LATE_S)
        follower.pump(is_last=True)
    except KeyboardInterrupt:
        sys.stdout.buffer.flush()
        click.echo("hpc-train: no longer following; the run goes on", err=True)
        click.get_current_context().exit(130)


class _Growing:
    """The files of now and those of a while ago: an attempt's last words can come after the next has begun."""

    def __init__(self) -> None:
        self._listed: dict[Path, float] = {}

    def __call__(self, files: list[Path]) -> list[Path]:
        now = time.monotonic()
        self._listed = {path: at for path, at in self._listed.items() if now - at < KEPT_S} | dict.fromkeys(files, now)
        return list(self._listed)


class _Watch:
    """Tells when there is nothing more to follow; asks the scheduler rarely, and more often after a last decision."""

    def __init__(self, run: RunDir, attempt: int | None) -> None:
        self._run, self._attempt = run, attempt
        self._next_look = self._hurries_until = 0.0
        self._decided = -1

    def has_ended(self) -> bool:
        """Whether the run has ended, or the attempt that was asked for."""
        if self._attempt is not None and read_decision(self._run.attempt(self._attempt)) is not None:
            return True
        now = time.monotonic()
        attempts = self._run.attempts()
        if attempts and attempts[-1].number > self._decided:
            decision = read_decision(attempts[-1])
            if decision is not None:
                self._decided = attempts[-1].number
                if not decision.word.startswith("again"):
                    self._next_look, self._hurries_until = 0.0, now + HURRY_S
        if now < self._next_look:
            return False
        age_s = HURRIED_POLL_S if now < self._hurries_until else STATE_POLL_S
        self._next_look = now + age_s
        return self._is_over(age_s) and self._is_over(0)  # a shared answer may be from before a requeue

    def _is_over(self, max_age_s: float) -> bool:
        from hpc_train.scheduler.view import view_runs

        return view_runs([self._run], max_age_s=max_age_s)[0].is_over
