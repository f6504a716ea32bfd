"""The jobs of a run: each id that a scheduler gave it, in the order in which they came. Only ever appended to.

Apart from the submit record because a submission on a site without requeue goes on in job after job: status, cancel and
the next start must know all of them, also one whose registration was cut short. Standard library only.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hpc_train.files import append_line, read_json, read_lines
from hpc_train.run.layout import RunDir, SubmissionDir

__all__ = ["JobRecord", "read_jobs", "record_job", "record_withdrawn", "standing_jobs"]

MAX_JOBS_BYTES = 8 << 20


@dataclass(frozen=True)
class JobRecord:
    """One job of a run.

    Attributes:  submission: its number.   job_id: the scheduler's.   attempt: number of the attempt that registered it,
    -1 where the login side submitted it or it told of itself.   withdrawn: it was cancelled as it was not needed.
    """

    submission: int
    job_id: str
    attempt: int = -1
    withdrawn: bool = False


def record_job(submission: SubmissionDir, job_id: str, *, attempt: int = -1) -> None:
    """Note a job of the submission. Raises: OSError."""
    append_line(submission.jobs, json.dumps({"job_id": job_id, "attempt": attempt}))


def record_withdrawn(submission: SubmissionDir, job_id: str) -> None:
    """Note that a job was cancelled because the run needed no further one. Raises: OSError."""
    append_line(submission.jobs, json.dumps({"job_id": job_id, "withdrawn": True}))


def read_jobs(run: RunDir) -> list[JobRecord]:
    """All jobs of a run, oldest first; damaged lines are passed over. Raises: OSError if the run cannot be listed."""
    return [record for submission in run.submissions() for record in _of_submission(submission)]


def standing_jobs(run: RunDir) -> list[JobRecord]:
    """The jobs that were not withdrawn, oldest first. Raises: OSError if the run cannot be listed."""
    return [record for record in read_jobs(run) if not record.withdrawn]


def _of_submission(submission: SubmissionDir) -> Sequence[JobRecord]:
    found: dict[str, JobRecord] = {}
    for line in _lines(submission):
        job_id, attempt = line.get("job_id"), line.get("attempt", -1)
        if not isinstance(job_id, str) or not job_id or type(attempt) is not int:
            continue
        before = found.get(job_id, JobRecord(submission.number, job_id))
        withdrawn = before.withdrawn or line.get("withdrawn") is True
        found[job_id] = JobRecord(submission.number, job_id, max(before.attempt, attempt), withdrawn)
    return list(found.values())


def _lines(submission: SubmissionDir) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    try:
        submitted: Any = read_json(submission.submit, limit=64 << 10)
        lines.append({"job_id": submitted["job_id"]})
    except (OSError, ValueError, KeyError, TypeError):
        pass  # a job can start before the login side has written which one it is
    try:
        texts = read_lines(submission.jobs, limit=MAX_JOBS_BYTES)
    except (OSError, ValueError):
        texts = []
    for text in texts:
        try:
            record = json.loads(text)
        except (ValueError, RecursionError):
            continue
        if isinstance(record, dict):
            lines.append(record)
    return lines
