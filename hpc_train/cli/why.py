"""`hpc-train why`: why a run is not running, in a few plain lines."""

from __future__ import annotations

import dataclasses
import json
import os
from typing import TYPE_CHECKING

import click

from hpc_train.cli.text import one_line
from hpc_train.recovery.evidence import read_decision
from hpc_train.recovery.policy import Decision
from hpc_train.run.index import find_run
from hpc_train.run.layout import RunDir

if TYPE_CHECKING:
    from hpc_train.scheduler.view import RunView

__all__ = ["command"]

SHOWN_ATTEMPTS = 5


@click.command("why")
@click.argument("reference", metavar="RUN")
@click.option("--json", "as_json", is_flag=True, help="Print one object (format hpc-train-why, version 1).")
def command(reference: str, as_json: bool) -> None:
    """Say why a run waits, stopped or failed: class, first failing rank, host, step, last commit, what happens next."""
    from hpc_train.scheduler.view import view_runs

    run = find_run(reference, os.environ)
    view = view_runs([run])[0]
    decisions = [(attempt.number, read_decision(attempt)) for attempt in run.attempts()]
    if as_json:
        history = [{"attempt": n, **(dataclasses.asdict(d) if d else {"word": None})} for n, d in decisions]
        record = {
            "format": "hpc-train-why",
            "version": 1,
            "status": view.to_json(),
            "attempts": history,
            "next": _next(view),
        }
        click.echo(json.dumps(record, indent=1, allow_nan=False))
        return
    for line in [*_head(run, view), *_history(view, decisions), f"next      {_next(view)}"]:
        click.echo(one_line(line))


def _head(run: RunDir, view: RunView) -> list[str]:
    said = ": ".join(filter(None, [view.job.raw if view.scheduler != "local" else "", view.job.reason]))
    step = "none yet" if view.step is None else f"{view.step}" + (f" of {view.total_steps}" if view.total_steps else "")
    saved = "none" if view.last_commit is None else f"step {view.last_commit}"
    lines = [f"run       {run.name}", f"state     {view.state}" + (f" ({said})" if said else "")]
    if view.state == "unknown" and view.reason not in ("", view.job.reason):
        lines.append(f"          {view.reason}")
    return [*lines, f"step      {step}; last commit: {saved}; attempts: {view.attempts}"]


def _history(view: RunView, decisions: list[tuple[int, Decision | None]]) -> list[str]:
    lines = []
    for number, decision in decisions[-SHOWN_ATTEMPTS:]:
        if decision is not None:
            lines += _ended(number, decision)
        elif number == decisions[-1][0] and view.job.is_live:
            lines.append(f"attempt {number} runs" + (f" on {view.job.nodes}" if view.job.nodes else ""))
        elif number == decisions[-1][0] and view.state == "unknown":
            lines.append(f"attempt {number} has no decision: it runs, or its batch shell did not live to take one")
        else:
            lines.append(f"attempt {number} ended without a decision: its batch shell did not live to take one")
    return lines


def _ended(number: int, decision: Decision) -> list[str]:
    where = "" if decision.rank is None else f"; first failing rank {decision.rank} on {decision.node or '?'}"
    step = "" if decision.step is None else f", step {decision.step}"
    phase = f", phase {decision.phase}" if decision.phase else ""
    lines = [f"attempt {number} ended: {decision.failure}{where}{step}{phase}", f"          {decision.reason}"]
    if decision.exclude:
        lines.append(f"          avoided from then on, where enough other nodes are up: {', '.join(decision.exclude)}")
    return lines


def _next(view: RunView) -> str:
    """What happens by itself, or what the person has to do."""
    name = view.run.name
    requeue = f"hpc-train requeue {name}"
    if view.state == "completed":
        return "nothing: it is complete"
    if view.state == "cancelled":
        return f"nothing; to go on after all: {requeue}"
    if view.state in ("running", "completing"):
        return "it runs"
    if view.state in ("pending", "requeued"):
        return _waits(view)
    if view.state == "held":
        repaired = "; see the reason above first" if view.newest is not None and view.newest.word == "hold" else ""
        return f"it is held until you ask: {requeue}{repaired}"
    if view.state == "unknown":
        return f"nobody knows whether it goes on; see: hpc-train logs {name}; to go on: {requeue}"
    if view.newest is None:
        if not view.attempts and not any(each.batch_log.exists() for each in view.run.submissions()):
            return f"its batch script never began: do the nodes see {view.run.path}? To go on: {requeue}"
        return f"it does not start again by itself; see: hpc-train logs {name}; to go on: {requeue}"
    if view.newest.word in ("again", "again-elsewhere"):
        return f"it was to start again, but its job has ended; to go on: {requeue}"
    return f"it does not start again by itself; after a repair: {requeue}"


def _waits(view: RunView) -> str:
    waits = "it waits and starts by itself"
    if view.scheduler != "slurm":
        return f"{waits}: {view.job.reason}" if view.job.reason else waits
    from hpc_train.scheduler.slurm.states import explain_reason

    explained = explain_reason(view.job.reason)
    if "cancel it" in explained:
        return f"it waits, and as it is it never starts: {explained} ({view.job.reason})"
    return (
        f"{waits}: {explained} ({view.job.reason})"
        if explained
        else f"{waits} ({view.job.reason or 'no reason given'})"
    )
