"""Slurm's commands: the only place that calls them on the login side.

Apart because a call can hang against a dead controller, or time out after the job was queued: every call has a limit,
and a submission that may have got through is looked up by its token before anybody tries again.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Mapping, Sequence

from hpc_train.errors import SchedulerError
from hpc_train.run.layout import RunDir, SubmissionDir
from hpc_train.scheduler.backend import JobState
from hpc_train.scheduler.slurm.states import (
    ACCOUNT_FORMAT,
    QUEUE_FORMAT,
    parse_accounting,
    parse_queue,
    parse_submitted,
)

__all__ = ["SlurmBackend", "submission_token"]

QUERY_TIMEOUT_S = 30.0
SUBMIT_TIMEOUT_S = 90.0
_TRANSIENT = (
    "socket timed out", "unable to contact slurm controller", "connection refused", "temporarily unable to accept",
    "zero bytes were transmitted", "communication connection failure", "connection timed out",
)  # fmt: skip


def submission_token(run: RunDir, submission: SubmissionDir) -> str:
    """The text in a job's comment by which a submission is found again: "hpc-train:RUN/00"."""
    return f"hpc-train:{run.name}/{submission.number:02d}"


def call(argv: Sequence[str], *, timeout_s: float, environ: Mapping[str, str] | None = None) -> str:
    """Standard output of a Slurm command.

    Raises: SchedulerError with command, code and its own words; transient where it may succeed later.
    """
    try:
        done = subprocess.run(
            list(argv),
            env=None if environ is None else dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except FileNotFoundError as error:
        raise SchedulerError(
            f"{argv[0]}: not found; is this a login node of a Slurm cluster, and is Slurm in PATH?"
        ) from error
    except subprocess.TimeoutExpired as error:
        message = f"{argv[0]} did not answer within {timeout_s:.0f} s; is the Slurm controller up? (scontrol ping)"
        raise SchedulerError(message, transient=True) from error
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).split())[:800]
        is_transient = any(text in said.lower() for text in _TRANSIENT)
        raise SchedulerError(f"{argv[0]} failed with code {done.returncode}: {said}", transient=is_transient)
    return done.stdout


class SlurmBackend:
    """The cluster that the Slurm commands in PATH talk to."""

    def submit(self, run: RunDir, submission: SubmissionDir, environ: Mapping[str, str]) -> str:
        """sbatch the script; after a time-out the job is looked up by its token, never submitted twice."""
        argv = ["sbatch", "--parsable", str(submission.script)]
        try:
            job_id = parse_submitted(call(argv, timeout_s=SUBMIT_TIMEOUT_S, environ=environ))
        except SchedulerError as error:
            if not error.transient:
                raise
            job_id = self._look_up(submission_token(run, submission))
            if job_id is None:
                raise
        if job_id is None:
            job_id = self._look_up(submission_token(run, submission))
        if job_id is None:
            raise SchedulerError("sbatch gave no job id, and no queued job carries this submission's token")
        return job_id

    @staticmethod
    def _look_up(token: str) -> str | None:
        for pause in (1.0, 2.0, 4.0):
            time.sleep(pause)
            try:
                listing = call(
                    ["squeue", "--noheader", f"--user={os.getuid()}", "--format=%i|%k"], timeout_s=QUERY_TIMEOUT_S
                )
            except SchedulerError:
                continue
            for line in listing.splitlines():
                job_id, _, comment = line.strip().partition("|")
                if comment == token:
                    return job_id
        return None

    def states(self, job_ids: Sequence[str]) -> dict[str, JobState]:
        """squeue for all at once, then sacct for those it does not list; never "completed" from silence."""
        wanted = [job_id for job_id in job_ids if job_id.isdecimal()]
        if not wanted:
            return {job_id: JobState("unknown") for job_id in job_ids}
        # --user, not --jobs: squeue refuses the whole call if one job id is no longer known.
        listing = call(
            ["squeue", "--noheader", "--states=all", f"--user={os.getuid()}", f"--format={QUEUE_FORMAT}"],
            timeout_s=QUERY_TIMEOUT_S,
        )
        found = {job_id: state for job_id, state in parse_queue(listing).items() if job_id in wanted}
        missing = [job_id for job_id in wanted if job_id not in found]
        if missing:
            found.update(self._accounting(missing))
        return {job_id: found.get(job_id, JobState("unknown")) for job_id in job_ids}

    @staticmethod
    def _accounting(job_ids: Sequence[str]) -> dict[str, JobState]:
        argv = ["sacct", "--noheader", "--parsable2", "--allocations", f"--format={ACCOUNT_FORMAT}"]
        try:
            listing = call([*argv, f"--jobs={','.join(job_ids)}"], timeout_s=QUERY_TIMEOUT_S)
        except SchedulerError as error:
            # No accounting on this cluster, or not for users: the state stays unknown, with the reason.
            return {job_id: JobState("unknown", reason=f"sacct: {error}") for job_id in job_ids}
        return parse_accounting(listing)

    def cancel(self, job_id: str) -> None:
        """scancel the job."""
        try:
            call(["scancel", job_id], timeout_s=QUERY_TIMEOUT_S)
        except SchedulerError as error:
            if "invalid job id" not in str(error).lower() and "already completing" not in str(error).lower():
                raise

    def requeue(self, job_id: str, state: JobState) -> bool:
        """Release a held job, requeue a live or just finished one; False if Slurm no longer has it."""
        if state.state == "held":
            call(["scontrol", "release", job_id], timeout_s=QUERY_TIMEOUT_S)
            return True
        if state.state in ("pending", "requeued"):
            return True
        try:
            call(["scontrol", "requeue", job_id], timeout_s=QUERY_TIMEOUT_S)
        except SchedulerError as error:
            if error.transient:
                raise
            return False
        return True
