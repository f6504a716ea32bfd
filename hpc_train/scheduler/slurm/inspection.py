"""Asks Slurm for all that it knows of one job, also of one that hpc-train never submitted.

Apart from the back end, which asks for the states of many: `why` has one job and wants every word of it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from hpc_train.diagnosis.job_facts import (
    ACCOUNTING_FIELDS,
    QUEUE_FIELDS,
    SEPARATOR,
    JobFacts,
    parse_accounting,
    parse_details,
    parse_queue,
)
from hpc_train.errors import SchedulerError
from hpc_train.scheduler.slurm.commands import QUERY_TIMEOUT_S, call

__all__ = ["inspect_job", "job_id_of", "merge"]

_JOB_ID = re.compile(r"(([1-9]\d{0,9})(?:[_+]\d{1,7})?)(?:_\[[\d,%:-]*\])?(?:\.\w{1,20})?", re.ASCII)
# Slurm keeps ids in 32 bits: sacct takes 0 and 4294967296 alike for "all jobs", and would tell of somebody else's.
MAX_JOB_ID = 0xFFFFFFF0
_WELL = ("COMPLETED", "RUNNING", "PENDING", "COMPLETING", "CONFIGURING")


def job_id_of(text: str) -> str | None:
    """The job that a text names ("4711", "4711_3", "4711+1", "4711.0"), None if it is no job id."""
    match = _JOB_ID.fullmatch(text)
    return match[1] if match and int(match[2]) <= MAX_JOB_ID else None


def inspect_job(job_id: str) -> JobFacts:
    """Everything that squeue, sacct and scontrol say of a job; what does not answer becomes a note.

    Raises: SchedulerError if neither squeue nor sacct answers.
    """
    notes: list[str] = []
    errors: list[SchedulerError] = []
    queued, recorded = "", ""
    try:
        queued = _ask("squeue", "--noheader", "--states=all", "--all", f"--jobs={job_id}", f"--format={QUEUE_FIELDS}")
    except SchedulerError as error:
        if "invalid job id" not in str(error).lower():  # that is an answer: it is not in the queue any more
            errors.append(error)
            notes.append(f"squeue does not answer: {error}")
    try:
        argv = ["sacct", "--noheader", "--parsable2", "--duplicates", "--allusers", f"--delimiter={SEPARATOR}"]
        recorded = _ask(*argv, f"--format={','.join(ACCOUNTING_FIELDS)}", f"--jobs={job_id}")
    except SchedulerError as error:
        errors.append(error)
        notes.append(f"there is no accounting to ask, or it does not answer: {error}")
    if len(errors) == 2:
        raise errors[0]
    squeue_answers = not any(note.startswith("squeue") for note in notes)
    facts = merge(job_id, parse_queue(queued), parse_accounting(recorded), squeue_answers=squeue_answers)
    facts = replace(facts, notes=(*notes, *facts.notes))
    return _with_details(facts) if queued.strip() else facts


def merge(
    job_id: str, queued: Sequence[JobFacts], recorded: Sequence[JobFacts], *, squeue_answers: bool = True
) -> JobFacts:
    """One record of what both say: the queue knows the state now, the accounting how steps ended. Pure.

    Of several tasks of an array the first that failed is taken. Never "completed" from silence.
    Args:  squeue_answers: whether a job that is not in `queued` has left the queue.
    """
    starts: dict[str, list[JobFacts]] = {}
    for job in recorded:
        starts.setdefault(job.id, []).append(job)
    newest = {name: jobs[-1] for name, jobs in starts.items()}
    for job in queued:
        known = newest.get(job.id)
        newest[job.id] = job if known is None else _join(job, known)
    if not newest:
        return JobFacts(job_id, notes=("neither squeue nor sacct lists it (any more)",))
    failed = [job for job in newest.values() if job.word not in _WELL]
    chosen = newest.get(job_id) or next(iter([*failed, *newest.values()]))
    counts = Counter(job.word for job in newest.values())
    tasks = tuple(counts.items()) if len(newest) > 1 else ()
    earlier = tuple(job.state for job in starts.get(chosen.id, [])[:-1])
    facts = replace(chosen, tasks=tasks, earlier=earlier)
    if squeue_answers and not queued and facts.word in ("RUNNING", "PENDING", "SUSPENDED"):
        note = (
            f"the accounting still calls it {facts.word}, but it is in the queue no longer: how it ended is not known"
        )
        facts = replace(facts, state="", notes=(note,))
    return facts


def _join(queued: JobFacts, recorded: JobFacts) -> JobFacts:
    """The queue's state and times; what only the accounting has is added, codes only where it has noticed the end."""
    agrees = queued.word == recorded.word
    return replace(
        queued,
        raw_id=recorded.raw_id,
        code=recorded.code if agrees else 0,
        signal=recorded.signal if agrees else 0,
        steps=recorded.steps,
        work_dir=recorded.work_dir,
        state=recorded.state if agrees else queued.state,  # "CANCELLED by 501" says more than "CANCELLED"
        elapsed_s=recorded.elapsed_s if agrees and recorded.elapsed_s is not None else queued.elapsed_s,
        memory=queued.memory if queued.memory is not None else recorded.memory,
    )


def _with_details(facts: JobFacts) -> JobFacts:
    try:
        details = parse_details(_ask("scontrol", "show", "job", facts.id))
    except SchedulerError as error:
        return replace(facts, notes=(*facts.notes, f"scontrol does not answer: {error}"))
    is_coded = facts.code or facts.signal
    return replace(
        facts,
        outputs=details.outputs,
        work_dir=facts.work_dir or details.work_dir,
        code=facts.code if is_coded else details.code,
        signal=facts.signal if is_coded else details.signal,
    )


def _ask(*argv: str) -> str:
    return call(argv, timeout_s=QUERY_TIMEOUT_S)
