"""What an earlier submission of a run was asked for and how it was launched, read back for the next one.

Apart from the continuation, so that a damaged or missing record is one error that names the file, wherever it is read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from hpc_train.errors import SpecError, from_os_error
from hpc_train.files import read_json, read_text
from hpc_train.job.loader import job_from_json
from hpc_train.job.spec import JobSpec
from hpc_train.run.layout import RunDir, SubmissionDir
from hpc_train.scheduler.submission import Request, read_request
from hpc_train.site.loader import site_from_json
from hpc_train.site.spec import Site
from hpc_train.topology.placement import Placement, placement_from_json

__all__ = ["Records", "read_records"]


@dataclass(frozen=True)
class Records:
    """The records of one submission.

    Attributes:  job_text: job.json as it stands.   python, workdir, num_ranks: of its launch.
    """

    job_text: str
    job: JobSpec
    site: Site
    placement: Placement
    request: Request
    python: str
    workdir: str
    num_ranks: int


def read_records(run: RunDir, submission: SubmissionDir) -> Records:
    """All records of a whole submission.

    Raises: SpecError where one is damaged; PermissionDeniedError, CannotCreateError or StorageError where one cannot be
    read.
    """
    try:
        job_text = read_text(submission.job)
        launch: Any = read_json(submission.launch)
        return Records(
            job_text=job_text,
            job=job_from_json(job_text, str(submission.job)),
            site=site_from_json(read_text(submission.site), str(submission.site)),
            placement=placement_from_json(read_text(submission.placement), str(submission.placement)),
            request=read_request(run, submission),
            python=str(launch["python"]),
            workdir=str(launch["workdir"]),
            num_ranks=int(launch["num_ranks"]),
        )
    except OSError as error:
        raise from_os_error(error, f"run {run.name} cannot go on: cannot read {error.filename}") from error
    except (ValueError, KeyError, TypeError) as error:
        raise SpecError(
            f"run {run.name} cannot go on: a record in {submission.path} is damaged ({type(error).__name__}: {error}); "
            "submit anew; the checkpoints are not touched"
        ) from error
