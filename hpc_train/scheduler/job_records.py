"""Which jobs the schedulers have taken for a run: what `submit` noted of each, read back.

Apart from the view, which asks the schedulers how those jobs stand.
"""

from __future__ import annotations

from hpc_train.files import read_json, why_unreadable
from hpc_train.run.jobs import standing_jobs
from hpc_train.run.layout import RunDir, SubmissionDir

__all__ = ["NO_RECORD", "bad_record", "is_noted", "newest_records", "read_submit_records"]

NO_RECORD = {"job_id": "", "scheduler": "", "site": ""}


def read_submit_records(run: RunDir) -> list[dict[str, str]]:
    """Job id, scheduler and site of every job of a run that was not withdrawn, the newest first."""
    return [record for _, record in _numbered_records(run)]


def _numbered_records(run: RunDir) -> list[tuple[int, dict[str, str]]]:
    try:
        jobs = standing_jobs(run)
    except OSError:
        return []
    records = []
    for job in reversed(jobs):
        try:
            record = read_json(run.submission(job.submission).submit, limit=64 << 10)
            texts = {key: str(record[key]) for key in NO_RECORD}
            records.append((job.submission, {**texts, "job_id": job.job_id}))
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return records


def newest_records(run: RunDir) -> list[dict[str, str]]:
    """The newest job, and the one before if the newest one goes on after it: while that runs, the newest waits."""
    newest = _numbered_records(run)[:2]
    return [record for number, record in newest if number == newest[0][0]]


def is_noted(submission: SubmissionDir) -> bool:
    """Whether the record that tells a submission's job is there and whole.

    Raises: OSError if it is there and cannot be read: a whole record must not be written over.
    """
    try:
        return bool(str(read_json(submission.submit, limit=64 << 10)["job_id"]))
    except FileNotFoundError:
        return False
    except (ValueError, KeyError, TypeError):
        return False  # damaged


def bad_record(run: RunDir) -> str:
    """Why nobody knows the job of a run that was submitted; "" where its record can be read, or there is none."""
    for submission in reversed(run.submissions()):
        try:
            str(read_json(submission.submit)["job_id"])
        except FileNotFoundError:
            continue
        except (KeyError, TypeError):
            return f"{why_unreadable(submission.submit, ValueError('no job id in it'))}: nobody knows its job"
        except (OSError, ValueError) as error:
            return f"{why_unreadable(submission.submit, error)}: nobody knows its job"
    return ""
