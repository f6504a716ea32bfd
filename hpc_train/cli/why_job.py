"""`hpc-train why` for a job that is no run of ours, and for logs alone.

Apart from the command for runs, which reads a run directory; here there are only Slurm's words and logs.
"""

from __future__ import annotations

import os
import pwd
import re
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hpc_train.cli.text import named_ender
from hpc_train.diagnosis.engine import Finding, diagnose
from hpc_train.diagnosis.job_facts import JobFacts
from hpc_train.diagnosis.logs import Log, read_log, why_unreadable
from hpc_train.diagnosis.reasons import is_of_waiting
from hpc_train.diagnosis.verdict import Diagnosis, judge, of_log, shown_size, shown_time
from hpc_train.errors import HpcTrainError, UsageError, from_os_error

__all__ = ["describe_job", "diagnosis_json", "explain_job", "explain_logs", "open_logs", "report"]

MAX_ALSO = 3
# The accounting looks at a task when it starts and then at this interval (JobAcctGatherFrequency's default): of a
# shorter job it knows nothing, or what the process had before it became the program.
SAMPLED_S, FIRST_LOOK_BYTES = 30, 16 << 20
_UID = re.compile(r"user id (\d{1,10})")


def open_logs(paths: Sequence[str | Path]) -> list[Log]:
    """The logs that a user names. Raises: what `from_os_error` says, UsageError for what is no file."""
    logs = []
    for path in paths:
        try:
            logs.append(read_log(path, name=_shortened(str(path))))
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            raise UsageError(f"--log: cannot read the log {path}: {error.strerror}; give text files") from error
        except OSError as error:
            raise from_os_error(error, f"cannot read the log {path}") from error
        except ValueError as error:
            raise UsageError(f"--log: {error}; give text files") from error
    return logs


def explain_logs(paths: Sequence[str]) -> dict[str, Any]:
    """The report on logs without any job."""
    logs = open_logs(paths)
    findings, notes = diagnose(logs), notes_on(logs)
    found = of_log(findings)
    if not findings and len(notes) == len(logs):
        found = replace(found, what="there is nothing to read", next="see that these are the right files: ls -l FILE")
    return {**_record(None, found), "notes": notes, "findings": findings_json(findings)}


def notes_on(logs: Sequence[Log]) -> list[str]:
    """Which of the logs hold nothing that could be read, and why."""
    return [f"{log.name} {reason}" for log in logs if (reason := why_unreadable(log))]


def explain_job(job_id: str, paths: Sequence[str]) -> dict[str, Any]:
    """The report on a job of any user, with the logs that are named, else with those that Slurm names.

    Raises: SchedulerError if Slurm does not answer and no log is named.
    """
    from hpc_train.scheduler.slurm.inspection import inspect_job

    logs = open_logs(paths)
    try:
        facts = inspect_job(job_id)
    except HpcTrainError as error:
        if not logs:
            raise
        facts = JobFacts(job_id, notes=(f"Slurm does not answer: {error}",))
    if not paths and facts.word not in ("", "PENDING"):
        logs = _own_logs(facts)
    findings = diagnose(logs)
    found = _without_another_look(judge(facts, findings), logs)
    found = replace(found, what=_named(found.what, facts.user))
    record = _record(facts, found)
    return {**record, "notes": [*record["notes"], *notes_on(logs)], "findings": findings_json(findings)}


def _without_another_look(found: Diagnosis, logs: Sequence[Log]) -> Diagnosis:
    """Not the advice to look at the log where that was done."""
    if not logs or not found.next.startswith("look at its log"):
        return found
    names = " ".join(shlex.quote(log.path or log.name) for log in logs[:3])
    if all(why_unreadable(log) for log in logs):
        return replace(
            found, next=f"there is nothing to read in {names}: does its output go elsewhere (srun --output)?"
        )
    return replace(found, next=f"nothing known is in its log; read its end: tail {names}")


def _own_logs(facts: JobFacts) -> list[Log]:
    """Output files that Slurm names, else the default one; those that are not there or not for us are passed over."""
    names = facts.outputs or ((os.path.join(facts.work_dir, f"slurm-{facts.id}.out"),) if facts.work_dir else ())
    logs = []
    for name in names:
        try:
            logs.append(read_log(name, name=_shortened(name)))
        except (OSError, ValueError):
            continue
    return logs


def _record(facts: JobFacts | None, found: Diagnosis) -> dict[str, Any]:
    """The documented form of `why --json` for jobs and logs."""
    job = None if facts is None else describe_job(facts)
    notes = list(facts.notes) if facts else []
    return {
        "format": "hpc-train-why", "version": 1, "status": None, "attempts": [], "job": job, "notes": notes,
        "diagnosis": diagnosis_json(found), "fallbacks": [], "space": [], "next": _named(found.next),
    }  # fmt: skip


def describe_job(facts: JobFacts) -> dict[str, Any]:
    """A job's facts as plain values: sizes in bytes, times in seconds, null for what is not known."""
    used = facts.max_rss
    return {
        "id": facts.id,
        "state": facts.state or None,
        "reason": facts.reason or None,
        "exit_code": facts.code,
        "signal": facts.signal,
        "user": facts.user or None,
        "account": facts.account or None,
        "queue": facts.queue or None,
        "elapsed_s": facts.elapsed_s,
        "limit_s": facts.limit_s,
        "expected_start": facts.start or None if facts.word == "PENDING" else None,
        "nodes": facts.nodes or None,
        "memory_per_node": facts.memory,
        "max_rss": used.max_rss if used else None,
        "max_rss_step": used.id if used else None,
        "max_rss_node": used.max_rss_node or None if used else None,
        "steps": [{"id": s.id, "state": s.state, "exit_code": s.code, "signal": s.signal} for s in facts.steps],
        "earlier_starts": list(facts.earlier),
        "array_tasks": dict(facts.tasks),
    }


def diagnosis_json(found: Diagnosis) -> dict[str, Any]:
    """The documented form of a diagnosis."""
    return {
        "class": found.failure,
        "pattern": found.pattern or None,
        "what": _named(found.what),
        "who": found.who or None,
        "next": _named(found.next),
        "rank": found.rank,
        "host": found.host or None,
        "evidence": list(found.evidence),
        "also": list(found.also),
    }


def findings_json(findings: Sequence[Finding]) -> list[dict[str, Any]]:
    """Everything that was found in logs, best first."""
    return [
        {
            "pattern": one.pattern.id, "class": one.pattern.failure, "tier": one.pattern.tier, "place": one.place,
            "text": one.text, "rank": one.rank, "host": one.host or None, "count": one.count,
        }
        for one in findings
    ]  # fmt: skip


def report(record: dict[str, Any]) -> list[str]:
    """The lines for a person: one screen, the last says what to do."""
    found = record["diagnosis"]
    lines = [] if record["job"] is None else job_lines(record["job"])
    lines += [f"note      {note}" for note in record["notes"]]
    lines += [f"class     {found['class']}", f"what      {found['what']}"]
    where = [f"rank {found['rank']}"] if found["rank"] is not None else []
    where += [f"host {found['host']}"] if found["host"] else []
    lines += [f"where     {', '.join(where)}"] if where else []
    lines += [f"evidence  {text}" for text in found["evidence"]]
    lines += [f"also      {text}" for text in found["also"][:MAX_ALSO]]
    who = {"you": "you", "site": "the site, or another node", "wait": "nobody: it is to be waited for"}
    lines += [f"who acts  {who[found['who']]}"] if found["who"] else []
    return [*lines, f"next      {record['next']}"]


def job_lines(job: dict[str, Any]) -> list[str]:
    """What Slurm says of a job, for a person."""
    owner = [
        f"{name} {job[key]}" for name, key in (("user", "user"), ("queue", "queue"), ("account", "account")) if job[key]
    ]
    lines = [f"job       {', '.join([job['id'], *owner])}"]
    ended = f", exit code {job['exit_code']}:{job['signal']}" if job["exit_code"] or job["signal"] else ""
    is_left_over = (job["state"] or "").startswith("CANCELLED") and is_of_waiting(job["reason"] or "")
    why = f" ({job['reason']})" if job["reason"] and not is_left_over else ""
    state = f"{named_ender(job['state'] or 'unknown')}{why}{ended}"
    if job["elapsed_s"] is not None and job["state"] != "PENDING":
        state += f"; ran {shown_time(job['elapsed_s'])}" + (
            f" of {shown_time(job['limit_s'])}" if job["limit_s"] else ""
        )
    lines.append(f"state     {state}" + (f" on {job['nodes']}" if job["nodes"] else ""))
    if job["array_tasks"]:
        lines.append(f"array     {', '.join(f'{count} {state}' for state, count in job['array_tasks'].items())}")
    if job["earlier_starts"]:
        times = "once" if len(job["earlier_starts"]) == 1 else f"{len(job['earlier_starts'])} times"
        lines.append(f"before    started {times} before: {', '.join(job['earlier_starts'][-5:])}")
    return [*lines, *_memory_lines(job)]


def _memory_lines(job: dict[str, Any]) -> list[str]:
    """Memory used of what was asked for; nothing of a job that was over before the accounting had looked at it."""
    elapsed_s = SAMPLED_S if job["elapsed_s"] is None else job["elapsed_s"]
    is_short = job["state"] not in (None, "PENDING") and elapsed_s < SAMPLED_S
    ran_out = (job["state"] or "").startswith("OUT_OF_ME")
    if job["max_rss"] and not (is_short and job["max_rss"] < FIRST_LOOK_BYTES):
        node = f" on {job['max_rss_node']}" if job["max_rss_node"] else ""
        used = f"at most {shown_size(job['max_rss'])} in one task (step {job['max_rss_step']}{node})"
        return [f"memory    {used}{_asked(job)}"]
    if not job["memory_per_node"] or (is_short and not ran_out):
        return []
    is_told = job["state"] == "PENDING" or is_short
    return [f"memory    {_asked(job).removeprefix('; ')}{'' if is_told else '; what was used was not measured'}"]


def _asked(job: dict[str, Any]) -> str:
    return f"; {shown_size(job['memory_per_node'])} asked for on each node" if job["memory_per_node"] else ""


def _named(text: str, owner: str = "") -> str:
    """User ids by name, where this machine knows them, and said to be the job's own user where that is the owner."""

    def name(match: re.Match[str]) -> str:
        try:
            known = pwd.getpwuid(int(match[1])).pw_name
        except (KeyError, OverflowError):
            return match[0]
        return f"its user, {known}," if known == owner else known

    return _UID.sub(name, text)


def _shortened(path: str) -> str:
    """Relative to here where that is shorter to read."""
    relative = os.path.relpath(path)
    return path if relative.startswith(os.pardir) else relative
