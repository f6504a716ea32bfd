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
from hpc_train.scheduler.directives import submission_token
from hpc_train.scheduler.slurm.states import (
    ACCOUNT_FORMAT,
    QUEUE_FORMAT,
    TOKEN_FORMAT,
    find_token,
    parse_listing,
    parse_submitted,
)

__all__ = ["SlurmBackend", "call"]

QUERY_TIMEOUT_S = 30.0
SUBMIT_TIMEOUT_S = 90.0  # sbatch itself waits for a busy controller, with messages, for about a minute
LOOK_UP_PAUSES_S = (0.5, 1.0, 2.0)  # a controller that timed out may list the job a little later
_TRANSIENT = (
    "socket timed out", "unable to contact slurm controller", "connection refused", "temporarily unable to accept",
    "zero bytes were transmitted", "communication connection failure", "connection timed out",
    "slurm backup controller in standby mode", "resource temporarily unavailable",
)  # fmt: skip
# Options that the shell may set for Slurm's commands: a filter in SQUEUE_PARTITION would hide the job.
_OPTION_PREFIXES = ("SQUEUE_", "SACCT_", "SCANCEL_", "SCONTROL_", "SBATCH_", "SLURM_")


def call(argv: Sequence[str], *, timeout_s: float, environ: Mapping[str, str] | None = None) -> str:
    """Standard output of a Slurm command.

    Args:  environ: of the command; default: this process's, without the options that Slurm's commands read from it.
    Raises: SchedulerError with command, code and its own words; transient where it may succeed later.
    """
    try:
        done = subprocess.run(
            list(argv),
            env=_query_environment() if environ is None else dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        message = f"{argv[0]} did not answer within {timeout_s:g} s; is the Slurm controller up? (scontrol ping)"
        raise SchedulerError(message, transient=True) from error
    except FileNotFoundError as error:
        raise SchedulerError(
            f"{argv[0]}: not found; is this a login node of a Slurm cluster, and is Slurm in PATH?"
        ) from error
    except OSError as error:
        raise SchedulerError(f"{argv[0]} cannot be run: {error.strerror or error}") from error
    if done.returncode:
        said = " ".join((done.stderr.strip() or done.stdout).split())[:800]
        is_transient = any(text in said.lower() for text in _TRANSIENT)
        raise SchedulerError(f"{argv[0]} failed with code {done.returncode}: {said}", transient=is_transient)
    return done.stdout


def _query_environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if k == "SLURM_CONF" or not k.startswith(_OPTION_PREFIXES)}


class SlurmBackend:
    """The cluster that the Slurm commands in PATH talk to.

    Args:  query_timeout_s, submit_timeout_s: limits of one call.   look_up_pauses_s: before each look for a job that a
    failed sbatch may have queued.
    """

    def __init__(
        self,
        *,
        query_timeout_s: float = QUERY_TIMEOUT_S,
        submit_timeout_s: float = SUBMIT_TIMEOUT_S,
        look_up_pauses_s: Sequence[float] = LOOK_UP_PAUSES_S,
    ) -> None:
        self._query_timeout_s = query_timeout_s
        self._submit_timeout_s = submit_timeout_s
        self._look_up_pauses_s = look_up_pauses_s

    def _ask(self, *argv: str) -> str:
        return call(argv, timeout_s=self._query_timeout_s)

    def submit(self, run: RunDir, submission: SubmissionDir, environ: Mapping[str, str]) -> str:
        """sbatch the script; after a time-out the job is looked up by its token, never submitted twice."""
        token = submission_token(run, submission)
        argv = ["sbatch", "--parsable", str(submission.script)]
        try:
            said = call(argv, timeout_s=self._submit_timeout_s, environ=environ)
        except SchedulerError as error:
            job_id = self._look_up(token) if error.transient else None
            if job_id is None:
                raise
            return job_id
        job_id = parse_submitted(said) or self._look_up(token)
        if job_id is None:
            raise SchedulerError(
                f"sbatch gave no job id ({' '.join(said.split())[:200]!r}), and no queued job carries the token {token}"
            )
        return job_id

    def _look_up(self, token: str) -> str | None:
        for pause_s in self._look_up_pauses_s:
            time.sleep(pause_s)
            try:
                listing = self._ask("squeue", "--noheader", f"--user={os.getuid()}", f"--format={TOKEN_FORMAT}")
            except SchedulerError:
                continue
            job_id = find_token(listing, token)
            if job_id is not None:
                return job_id
        return None

    def states(self, job_ids: Sequence[str]) -> dict[str, JobState]:
        """squeue for all at once, then sacct for those it does not list; never "completed" from silence."""
        wanted = [job_id for job_id in job_ids if job_id.isdecimal()]
        if not wanted:
            return {job_id: JobState("unknown") for job_id in job_ids}
        # --user, not --jobs: squeue refuses the whole call if one job id is no longer known.
        listing = self._ask("squeue", "--noheader", "--states=all", f"--user={os.getuid()}", f"--format={QUEUE_FORMAT}")
        queued = parse_listing(listing)
        found = {job_id: queued[job_id] for job_id in wanted if job_id in queued}
        missing = [job_id for job_id in wanted if job_id not in found]
        if missing:
            found.update(self._accounting(missing))
        return {job_id: found.get(job_id, _NOT_LISTED) for job_id in job_ids}

    def _accounting(self, job_ids: Sequence[str]) -> dict[str, JobState]:
        argv = ["sacct", "--noheader", "--parsable2", "--allocations", f"--format={ACCOUNT_FORMAT}"]
        try:
            listing = self._ask(*argv, f"--jobs={','.join(job_ids)}")
        except SchedulerError as error:
            # No accounting on this cluster, or not for users: the state stays unknown, with the reason.
            return {job_id: JobState("unknown", reason=f"squeue lists it no longer; {error}") for job_id in job_ids}
        return parse_listing(listing)

    def cancel(self, job_id: str) -> None:
        """scancel the job."""
        try:
            self._ask("scancel", job_id)
        except SchedulerError as error:
            if not any(text in str(error).lower() for text in ("invalid job id", "already completing")):
                raise

    def requeue(self, job_id: str, state: JobState) -> bool:
        """Release a held job, requeue one that has just finished; False if Slurm no longer has it or refuses."""
        if state.is_live:
            return True
        verb = "release" if state.state == "held" else "requeue"
        try:
            self._ask("scontrol", verb, job_id)
        except SchedulerError as error:
            if error.transient:
                raise
            # Refused: gone for good, requeue switched off, or somebody was faster.
            return self.states([job_id])[job_id].is_live
        return True


_NOT_LISTED = JobState("unknown", reason="neither squeue nor sacct lists it")
