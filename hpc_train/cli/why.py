"""`hpc-train why`: why a run is not running, in a few plain lines."""

from __future__ import annotations

import dataclasses
import json
import os

import click

from hpc_train.recovery.evidence import read_decision
from hpc_train.recovery.policy import Decision
from hpc_train.run.index import find_run

__all__ = ["command"]

_NEXT = {
    "again": "it starts again by itself",
    "again-elsewhere": "it starts again by itself, on other nodes",
    "hold": "it is held until you ask: hpc-train requeue {run}",
    "stop": "it does not start again by itself; after a repair: hpc-train requeue {run}",
    "done": "nothing: it is complete",
}


@click.command("why")
@click.argument("reference", metavar="RUN")
@click.option("--json", "as_json", is_flag=True, help="Print one object (format hpc-train-why, version 1).")
def command(reference: str, as_json: bool) -> None:
    """Say why a run waits, stopped or failed: class, first failing rank, host, step, last commit, what happens next."""
    from hpc_train.scheduler.view import view_run  # noqa: PLC0415

    run = find_run(reference, os.environ)
    view = view_run(run)
    decisions = [(attempt.number, read_decision(attempt)) for attempt in run.attempts()]
    if as_json:
        history = [{"attempt": n, **(dataclasses.asdict(d) if d else {"word": None})} for n, d in decisions]
        record = {"format": "hpc-train-why", "version": 1, "status": view.to_json(), "attempts": history}
        click.echo(json.dumps(record, indent=1))
        return
    step = "none yet" if view.step is None else f"{view.step}" + (f" of {view.total_steps}" if view.total_steps else "")
    saved = "none" if view.last_commit is None else f"step {view.last_commit}"
    click.echo(f"run       {run.name}")
    click.echo(f"state     {view.state}" + (f" ({view.job.raw}: {view.job.reason})" if view.job.reason else ""))
    click.echo(f"step      {step}; last commit: {saved}; attempts: {view.attempts}")
    for number, decision in decisions[-5:]:
        if decision is not None:
            for line in _lines(number, decision):
                click.echo(line)
        elif number == decisions[-1][0] and view.state == "running":
            click.echo(f"attempt {number} runs" + (f" on {view.job.nodes}" if view.job.nodes else ""))
        else:
            click.echo(f"attempt {number} ended without a decision: its batch shell did not live to take one")
    click.echo(f"next      {_next(view.state, decisions[-1][1] if decisions else None, view.job.reason, run.name)}")


def _lines(number: int, decision: Decision) -> list[str]:
    where = "" if decision.rank is None else f"; first failing rank {decision.rank} on {decision.node or '?'}"
    step = "" if decision.step is None else f", step {decision.step}"
    phase = f", phase {decision.phase}" if decision.phase else ""
    lines = [f"attempt {number} ended: {decision.failure}{where}{step}{phase}", f"          {decision.reason}"]
    if decision.exclude:
        lines.append(f"          excluded from then on: {', '.join(decision.exclude)}")
    return lines


def _next(state: str, newest: Decision | None, reason: str, run: str) -> str:
    if state == "cancelled":
        return f"nothing; to go on after all: hpc-train requeue {run}"
    if state in ("running", "completing"):
        return "it runs"
    if state in ("pending", "requeued"):
        return f"it waits in the queue ({reason or 'no reason given'}) and starts by itself"
    if newest is None:
        return f"nobody knows: see hpc-train logs {run}; to go on: hpc-train requeue {run}"
    return _NEXT[newest.word].format(run=run)
