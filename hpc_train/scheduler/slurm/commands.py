"""Slurm's commands: the only place that calls them on the login side.

Apart because a call can hang against a dead controller, or time out after the job was queued: every call has a limit,
and a submission that may have got through is looked up by its token before anybody tries again.
"""

from __future__ import annotations

import itertools
import math
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Any

from hpc_train.diagnosis.refusals import explain_refusal
from hpc_train.errors import SchedulerError
from hpc_train.files import read_json
from hpc_train.run.layout import RunDir, SubmissionDir
from hpc_train.scheduler.backend import JobState
from hpc_train.scheduler.directives import run_token, submission_token, successor_token
from hpc_train.scheduler.slurm.answers import SharedAnswers, answers_path
from hpc_train.scheduler.slurm.states import (
    ACCOUNT_FORMAT,
    QUEUE_FORMAT,
    TOKEN_FORMAT,
    all_controllers_are_down,
    find_token,
    find_tokens,
    parse_listing,
    parse_submitted,
)

__all__ = ["SlurmBackend", "call"]

QUERY_TIMEOUT_S = 30.0
LOOK_TIMEOUT_S = 12.0  # of who only wants to see; a stopped controller costs squeue 20 s (22.05.8)
SUBMIT_TIMEOUT_S = 90.0  # sbatch itself waits for a busy controller, with messages, for about a minute
PING_TIMEOUT_S = 12.0  # scontrol itself gives up after MessageTimeout, 10 s by default
END_TIMEOUT_S = 120.0  # KillWait is 30 s by default, an epilog may follow
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
    failed sbatch may have queued.   end_timeout_s: how long a cancelled job may take to end.
    """

    def __init__(
        self,
        *,
        query_timeout_s: float = QUERY_TIMEOUT_S,
        submit_timeout_s: float = SUBMIT_TIMEOUT_S,
        look_up_pauses_s: Sequence[float] = LOOK_UP_PAUSES_S,
        end_timeout_s: float = END_TIMEOUT_S,
    ) -> None:
        self._query_timeout_s = query_timeout_s
        self._submit_timeout_s = submit_timeout_s
        self._look_up_pauses_s = look_up_pauses_s
        self._end_timeout_s = end_timeout_s
        self._answers = SharedAnswers(answers_path(os.environ))

    def _ask(self, *argv: str, at_most_s: float = math.inf) -> str:
        return call(argv, timeout_s=min(self._query_timeout_s, at_most_s))

    def submit(self, run: RunDir, submission: SubmissionDir, environ: Mapping[str, str]) -> str:
        """sbatch the script; after a time-out the job is looked up by its token, never submitted twice."""
        self._refuse_if_down(environ)
        return self._submit([], submission, submission_token(run, submission), environ)

    def submit_successor(
        self, run: RunDir, submission: SubmissionDir, environ: Mapping[str, str], *, after: str, attempt: int
    ) -> str:
        """sbatch the same script as a new job that waits for the end of the job `after`, however that ends.

        Args:  attempt: the number of the attempt that asks, of which there is one successor: its token says so, so that
        asking twice, or after a time-out, gives the job that there is.
        Raises: SchedulerError, nothing submitted as far as anybody can see.
        """
        token = successor_token(run, submission, attempt)
        words = [f"--dependency=afterany:{after}", f"--comment={token}"]
        excluded = "".join(self._ask("squeue", "--noheader", f"--jobs={after}", "--format=%x").split())
        if excluded not in ("", "(null)"):
            words.append(f"--exclude={excluded}")
        return self._submit(words, submission, token, environ)

    def hold(self, job_id: str) -> None:
        """Keep a waiting job from starting until it is released. Raises: SchedulerError."""
        self._ask("scontrol", "hold", job_id)

    def _submit(self, options: Sequence[str], submission: SubmissionDir, token: str, environ: Mapping[str, str]) -> str:
        try:
            return self._submit_once(options, submission, token, environ)
        finally:
            self._answers.forget()

    def _submit_once(
        self, options: Sequence[str], submission: SubmissionDir, token: str, environ: Mapping[str, str]
    ) -> str:
        argv = ["sbatch", "--parsable", *options, str(submission.script)]
        try:
            said = call(argv, timeout_s=self._submit_timeout_s, environ=environ)
        except SchedulerError as error:
            if not error.transient:
                raise _refused(error, submission) from error
            job_id = self._look_up(token)
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
                job_id = self._find_token(token)
            except SchedulerError:
                continue
            if job_id is not None:
                return job_id
        return None

    def _find_token(self, token: str) -> str | None:
        return find_token(self._ask("squeue", "--noheader", f"--user={os.getuid()}", f"--format={TOKEN_FORMAT}"), token)

    def find(self, run: RunDir, submission: SubmissionDir) -> str | None:
        """The queued or running job that carries the submission's token."""
        return self._find_token(submission_token(run, submission))

    def jobs_of(self, run: RunDir) -> list[str]:
        """Those whose comment says so, successors too."""
        listing = self._ask("squeue", "--noheader", f"--user={os.getuid()}", f"--format={TOKEN_FORMAT}")
        return find_tokens(listing, run_token(run))

    def _refuse_if_down(self, environ: Mapping[str, str] | None = None) -> None:
        """Raise where every controller is down: sbatch and its look-ups would take more than a minute to say so.

        Only a clear word counts; whatever else `scontrol ping` answers, the command that follows knows better.
        """
        try:
            call(["scontrol", "ping"], timeout_s=PING_TIMEOUT_S, environ=environ)
        except SchedulerError as error:
            if all_controllers_are_down(str(error)):
                raise SchedulerError(
                    "no Slurm controller answers (scontrol ping says DOWN); nothing was asked of it, try again later",
                    transient=True,
                ) from error

    def states(self, job_ids: Sequence[str], *, max_age_s: float = 0.0) -> dict[str, JobState]:
        """squeue for all at once, then sacct for those it does not list; never "completed" from silence."""
        wanted = [job_id for job_id in job_ids if job_id.isdecimal()]
        found: Mapping[str, JobState] = {}
        if wanted and max_age_s > 0:
            found = self._answers.states(wanted, max_age_s, lambda: self._queue(LOOK_TIMEOUT_S), self._accounting)
        elif wanted:
            self._refuse_if_down()
            asked = time.time()
            queued = self._queue()
            self._answers.note(asked, queued)
            missing = [job_id for job_id in wanted if job_id not in queued]
            found = {**queued, **self._accounting(missing)} if missing else queued
        return {job_id: found.get(job_id, JobState("unknown")) for job_id in job_ids}

    def _queue(self, at_most_s: float = math.inf) -> dict[str, JobState]:
        # --user, not --jobs: squeue refuses the whole call if one job id is no longer known.
        argv = ("squeue", "--noheader", "--states=all", f"--user={os.getuid()}", f"--format={QUEUE_FORMAT}")
        return parse_listing(self._ask(*argv, at_most_s=at_most_s))

    def _accounting(self, job_ids: Sequence[str]) -> dict[str, JobState]:
        argv = ["sacct", "--noheader", "--parsable2", "--allocations", f"--format={ACCOUNT_FORMAT}"]
        try:
            listing = self._ask(*argv, f"--jobs={','.join(job_ids)}")
        except SchedulerError as error:
            # No accounting on this cluster, or not for users: the state stays unknown, with the reason.
            return {job_id: JobState("unknown", reason=f"squeue lists it no longer; {error}") for job_id in job_ids}
        told = parse_listing(listing)
        return {job_id: told.get(job_id, _NOT_LISTED) for job_id in job_ids}

    def cancel(self, job_id: str) -> None:
        """scancel the job, and see it end: a batch shell that was deciding can have requeued it meanwhile."""
        self._refuse_if_down()
        try:
            self._scancel(job_id)
            self._await_end(job_id)
        finally:
            self._answers.forget()

    def _scancel(self, job_id: str) -> None:
        try:
            self._ask("scancel", job_id)
        except SchedulerError as error:
            if not any(text in str(error).lower() for text in ("invalid job id", "already completing")):
                raise

    def _await_end(self, job_id: str) -> None:
        deadline = time.monotonic() + self._end_timeout_s
        for pause_s in itertools.chain((0.2, 0.5, 1.0), itertools.repeat(2.0)):
            # not in accounting: there a job that was requeued still has the end of its start before
            job = self._queue().get(job_id)
            if job is None or not (job.is_live or job.state == "held"):
                return
            if time.monotonic() > deadline:
                message = f"job {job_id} is still {job.state} {self._end_timeout_s:g} s after scancel; see: squeue"
                raise SchedulerError(message, transient=True)
            if job.state != "completing":
                self._scancel(job_id)
            time.sleep(pause_s)

    def requeue(self, job_id: str, state: JobState) -> bool:
        """Release a held job, requeue one that has just finished; False if Slurm no longer has it or refuses."""
        if state.is_live:
            return True
        verb = "release" if state.state == "held" else "requeue"
        try:
            self._ask("scontrol", verb, job_id)
            self._answers.forget()
        except SchedulerError as error:
            if error.transient:
                raise
            # Refused: gone for good, requeue switched off, or somebody was faster.
            return self.states([job_id])[job_id].is_live
        return True


def _refused(error: SchedulerError, submission: SubmissionDir) -> SchedulerError:
    """The refusal in our words and Slurm's; as it is where these words are not known."""
    try:
        record: dict[str, Any] = read_json(submission.job)
        asked = {f"job.{key}": value for key, value in record["job"].items()}
    except (OSError, ValueError, KeyError, AttributeError):  # the advice is good without the values
        asked = {}
    advice = explain_refusal(str(error), asked)
    if advice is None:
        return error
    said = str(error).partition(": ")[2]
    return SchedulerError(f"Slurm refuses this job: {advice}; its own words: {said}")


_NOT_LISTED = JobState("unknown", reason="neither squeue nor sacct lists it")
