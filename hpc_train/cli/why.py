"""`hpc-train why`: why a run, or any job, waits, stopped or failed, in a few plain lines."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from hpc_train.cli.text import named_ender, one_line, shortened
from hpc_train.cli.why_next import avoided, more_time, what_next
from hpc_train.errors import SpecError, UsageError
from hpc_train.files import read_json, why_unreadable
from hpc_train.recovery.evidence import read_decision
from hpc_train.recovery.policy import Decision
from hpc_train.run.index import find_run
from hpc_train.run.journal import Event, read_journal
from hpc_train.run.kept import describe_gone, describe_lost
from hpc_train.run.layout import AttemptDir, RunDir
from hpc_train.run.space import describe_space

if TYPE_CHECKING:
    from hpc_train.diagnosis.engine import Finding
    from hpc_train.diagnosis.job_facts import JobFacts
    from hpc_train.diagnosis.verdict import Diagnosis
    from hpc_train.scheduler.view import RunView

__all__ = ["command"]

SHOWN_ATTEMPTS = 5
_NO_LAUNCH = "step-launch-failed"
_HERE = "see: hpc-train why"  # what the local supervisor says of a run that it holds
# Of a run whose end was decided, only what says why: who ended and who waited for it is in the exit marks.
_TELLING = ("cause", "exception", "hint")
# Ends that need no explanation from a log: what stands there belongs to the way down.
_EXPLAINED = ("done", "stopped", "superseded", "cancelled")


@click.command("why")
@click.argument("words", nargs=-1, metavar="[RUN|JOB]")
@click.option("--log", "logs", multiple=True, metavar="FILE...", help="A log to look into; may be given several times.")
@click.option("--json", "as_json", is_flag=True, help="Print one object (format hpc-train-why, version 1).")
def command(words: tuple[str, ...], logs: tuple[str, ...], as_json: bool) -> None:
    """Say why a run or any Slurm job waits, stopped or failed: what happened, where, who must act, what to type.

    \b
    hpc-train why RUN
    hpc-train why 4711 --log slurm-4711.out
    hpc-train why --log logs/*.out
    """
    reference, logs = _sort_out(words, logs)
    run, job_id = _find(reference) if reference is not None else (None, "")
    if run is not None:
        record, lines = _explain_run(run, logs)
    else:
        from hpc_train.cli.why_job import explain_job, explain_logs, report

        record = explain_logs(logs) if reference is None else explain_job(job_id, logs)
        lines = report(record)
    if as_json:
        click.echo(json.dumps(record, indent=1, allow_nan=False))
        return
    for line in lines:
        click.echo(one_line(line))


def _sort_out(words: tuple[str, ...], logs: tuple[str, ...]) -> tuple[str | None, tuple[str, ...]]:
    """The run or job, and all logs: after `--log logs/*.out` the shell leaves further files as plain words.

    Raises: UsageError.
    """
    files = tuple(word for word in words if logs and os.path.isfile(word))
    others = [word for word in words if word not in files]
    if len(others) > 1:
        raise UsageError(f"give one run or job, not {len(others)}: {' '.join(others)[:200]}; logs go after --log")
    if not others and not logs:
        raise UsageError("give a run, a job id, or --log FILE; see: hpc-train why --help")
    return (others[0] if others else None), (*logs, *files)


def _find(reference: str) -> tuple[RunDir | None, str]:
    """The run that is meant, else the id of a job. Raises: SpecError for what is neither."""
    from hpc_train.scheduler.slurm.inspection import job_id_of

    job_id = job_id_of(reference)
    try:
        return find_run(reference, os.environ), ""
    except SpecError:
        if job_id is None:
            raise
        return None, job_id


def _explain_run(run: RunDir, logs: tuple[str, ...]) -> tuple[dict[str, Any], list[str]]:
    from hpc_train.cli.why_job import describe_job, diagnosis_json, findings_json
    from hpc_train.scheduler.view import view_runs

    view = view_runs([run])[0]
    decisions = [(attempt.number, read_decision(attempt)) for attempt in run.attempts()]
    facts = _ask_slurm(view)
    findings = _findings(run, view, logs)
    events, unread = _events(run)
    fallbacks = [event for event in events if event.event == "fallback"]
    space = _space(run, view, events)
    losses = _losses(run, view, events)
    history = [{"attempt": n, **(dataclasses.asdict(d) if d else {"word": None})} for n, d in decisions]
    record = {
        "format": "hpc-train-why",
        "version": 1,
        "status": view.to_json(),
        "attempts": history,
        "job": describe_job(facts) if facts and facts.word else None,
        "notes": [*unread, *losses, *(facts.notes if facts else ())],
        "diagnosis": diagnosis_json(_of_run(findings, view, facts)) if findings else None,
        "findings": findings_json(findings),
        "fallbacks": [{"attempt": event.attempt, **event.fields} for event in fallbacks],
        "space": space,
        "next": what_next(view, facts),
    }
    lines = [
        *_head(run, view),
        *_history(run, view, decisions),
        *(_fallback(run, each) for each in fallbacks[-SHOWN_ATTEMPTS:]),
    ]
    lines += [*_slurm_lines(view, facts), *_log_lines(findings, view, facts), *(f"space     {each}" for each in space)]
    lines += [*avoided(run, view, events), *(f"note      {each}" for each in (*unread, *losses))]
    return record, [*lines, f"next      {record['next']}"]


def _events(run: RunDir) -> tuple[list[Event], list[str]]:
    """The journal, and why it is not told here if it cannot be read."""
    try:
        os.listdir(run.journal)  # a glob says nothing of a directory that it may not read
        return read_journal(run), []
    except FileNotFoundError:  # cleaned away
        return [], []
    except OSError as error:
        return [], [why_unreadable(error.filename or run.journal, error)]


def _ask_slurm(view: RunView) -> JobFacts | None:
    """What Slurm knows beyond the state, where it has just answered."""
    if view.scheduler != "slurm" or not view.job.raw:
        return None
    from hpc_train.errors import SchedulerError
    from hpc_train.scheduler.slurm.inspection import inspect_job

    try:
        return inspect_job(view.job_id)
    except SchedulerError:  # the state was told a moment ago: the rest is an extra
        return None


def _findings(run: RunDir, view: RunView, logs: tuple[str, ...]) -> list[Finding]:
    """What the logs of the newest attempt say of its end, and those that the user names."""
    from hpc_train.cli.why_job import open_logs
    from hpc_train.diagnosis.engine import diagnose
    from hpc_train.diagnosis.logs import Log, read_log

    opened: list[Log] = open_logs(logs)
    failed = view.newest.failure if view.newest is not None else ""
    if not view.job.is_live or view.newest is not None:
        for path in [] if failed in _EXPLAINED or view.state == "completed" else _own_logs(run):
            try:
                name = str(path.relative_to(run.path))
                host = path.stem if path.parent.name == "logs" else ""
                opened.append(read_log(path, name=name, host=host))
            except (OSError, ValueError):
                continue  # one log less: the exit marks tell the class already
    found = diagnose(opened)
    has_run = not logs and _ranks_were_ready(run)
    return [
        one
        for one in found
        if (view.newest is None or one.pattern.tier in _TELLING) and not (has_run and one.pattern.id == _NO_LAUNCH)
    ]


def _ranks_were_ready(run: RunDir) -> bool:
    """Whether all ranks of the newest attempt had started: what srun says of a launch then is of their end."""
    attempts, submission = run.attempts(), run.newest_submission()
    if not attempts or submission is None:
        return False
    try:
        num_ranks = int(read_json(submission.launch)["num_ranks"])
        return len(os.listdir(attempts[-1].ready)) >= num_ranks > 0
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _own_logs(run: RunDir) -> list[Path]:
    """Logs of the newest attempt; the batch shell's only where it is of that attempt alone: it is appended to."""
    attempts = run.attempts()
    found: list[Path] = []
    if attempts and attempts[-1].logs.is_dir():
        found += sorted(path for path in attempts[-1].logs.iterdir() if path.suffix == ".log")
    if attempts:
        found.append(attempts[-1].launcher_log)
    submissions = run.submissions()
    return [*found, submissions[-1].batch_log] if len(attempts) <= 1 and submissions else found


def _slurm_lines(view: RunView, facts: JobFacts | None) -> list[str]:
    """Numbers that only Slurm has: time used of the limit, memory used of what was asked for."""
    if facts is None or not facts.word or facts.word == "PENDING":
        return []
    from hpc_train.cli.why_job import describe_job, job_lines

    return [line for line in job_lines(describe_job(facts)) if line.startswith(("memory", "before"))] + [
        f"slurm     {line.removeprefix('state').strip()}"
        for line in job_lines(describe_job(facts))
        if line.startswith("state") and not view.job.is_live
    ]


def _of_run(findings: list[Finding], view: RunView, facts: JobFacts | None) -> Diagnosis:
    """What the logs say, with hpc-train's command where a plain job would be submitted again."""
    from hpc_train.diagnosis.for_run import advise_run
    from hpc_train.diagnosis.verdict import of_log, with_numbers

    found = of_log(findings, job=view.job_id, run=view.run.name)
    if facts is not None:
        found = with_numbers(found, facts)
    then = advise_run(found.next, view.run.name, is_local=view.scheduler == "local")
    return dataclasses.replace(found, next=then.replace("--walltime TIME", more_time(view)))


def _log_lines(findings: list[Finding], view: RunView, facts: JobFacts | None) -> list[str]:
    """The best explanation that the logs hold, with its very line; nothing where they hold none."""
    if not findings:
        return []
    found = _of_run(findings, view, facts)
    lines = [f"evidence  {text}" for text in found.evidence]
    lines.append(f"          {found.what} ({found.pattern})")
    return [*lines, f"advice    {found.who}: {found.next}"]


def _of_total(step: int, total: int | None) -> str:
    if not total:
        return ""
    return f" of {total}" if step <= total else f", past the {total} asked for"


def _head(run: RunDir, view: RunView) -> list[str]:
    from hpc_train.diagnosis.reasons import is_of_waiting

    reason = "" if view.job.reason == _HERE else view.job.reason
    if view.state == "cancelled" and is_of_waiting(reason):
        reason = ""
    said = ": ".join(filter(None, [named_ender(view.job.raw) if view.scheduler != "local" else "", reason]))
    is_early = view.standing.tells_steps or not view.attempts or view.is_starting
    none = "none yet" if is_early else "none told"
    step = none if view.step is None else f"{view.step}{_of_total(view.step, view.total_steps)}"
    saved = "none" if view.last_commit is None else f"step {view.last_commit}"
    lines = [f"run       {run.name}", f"state     {view.state_shown}" + (f" ({shortened(said)})" if said else "")]
    if view.state == "unknown" and view.reason not in ("", view.job.reason):
        lines.append(f"          {shortened(view.reason)}")
    lines.append(f"step      {step}; last commit: {saved}; attempts: {view.attempts}")
    return [*lines, f"watch     {view.unwatched}"] if view.unwatched else lines


def _history(run: RunDir, view: RunView, decisions: list[tuple[int, Decision | None]]) -> list[str]:
    lines = []
    for number, decision in decisions[-SHOWN_ATTEMPTS:]:
        if decision is not None:
            lines += _ended(run, number, decision)
        elif damage := _damaged_decision(run.attempt(number)):
            lines.append(f"attempt {number} ended; {damage}")
        elif number == decisions[-1][0] and view.job.is_live:
            lines.append(f"attempt {number} runs" + (f" on {view.job.nodes}" if view.job.nodes else ""))
        elif number == decisions[-1][0] and view.state == "unknown":
            lines.append(f"attempt {number} has no decision: it runs, or its batch shell did not live to take one")
        else:
            lines.append(f"attempt {number} ended without a decision: its batch shell did not live to take one")
    return lines


def _damaged_decision(attempt: AttemptDir) -> str:
    """Why the decision of an attempt cannot be told; "" where there is none."""
    try:
        read_json(attempt.decision)
    except FileNotFoundError:
        return ""
    except (OSError, ValueError) as error:
        return why_unreadable(attempt.decision, error)
    return why_unreadable(attempt.decision, ValueError("it is no decision"))


def _ended(run: RunDir, number: int, decision: Decision) -> list[str]:
    from hpc_train.diagnosis.for_run import name_run

    where = "" if decision.rank is None else f"; first failing rank {decision.rank} on {decision.node or '?'}"
    step = "" if decision.step is None else f", step {decision.step}"
    phase = f", phase {decision.phase}" if decision.phase else ""
    lines = [
        f"attempt {number} ended: {decision.failure}{where}{step}{phase}",
        f"          {shortened(name_run(decision.reason, run.name))}",
    ]
    if decision.exclude:
        lines.append(f"          avoided from then on, where enough other nodes are up: {', '.join(decision.exclude)}")
    return lines


def _fallback(run: RunDir, event: Event) -> str:
    said = {key: str(event.fields.get(key, "?")) for key in ("step", "damaged", "problem")}
    return (
        f"attempt {event.attempt} loaded step {said['step']}, since newer checkpoints are damaged (steps "
        f"{said['damaged'].strip('[]')}): {shortened(said['problem'])}; see: hpc-train checkpoint verify {run.name}"
    )


def _losses(run: RunDir, view: RunView, events: list[Event]) -> list[str]:
    """Committed checkpoints that are gone, and attempts that went on from an older one for it."""
    told = [
        f"attempt {event.attempt} began: {event.fields.get('told')}"
        for event in events
        if event.event == "checkpoint_lost"
    ][-SHOWN_ATTEMPTS:]
    now = "" if view.state == "completed" else describe_gone(run, events) or describe_lost(run, events)
    return [*told, now] if now and not any(now in each for each in told) else told


def _space(run: RunDir, view: RunView, events: list[Event]) -> list[str]:
    """What is free and needed, of a run that is held for want of it."""
    is_full = view.state == "held" and (view.newest is None or view.newest.failure in ("no_space", "io"))
    return describe_space(run, events) if is_full else []
