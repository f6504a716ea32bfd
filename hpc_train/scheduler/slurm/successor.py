"""`hpc-train succeed`: the job that goes on after this one, where this one cannot be requeued.

Registered when an attempt starts, as a job that waits for the end of the present one: nobody may be left at the end who
could call sbatch (a dead node, a preemption without notice). At the end it stays, is held, or is withdrawn. Apart from
the batch shell because a submission must be recorded, and looked up when sbatch did not answer.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hpc_train.errors import HpcTrainError, SchedulerError, from_os_error
from hpc_train.files import answer, read_text
from hpc_train.job.loader import job_from_json
from hpc_train.recovery.evidence import job_of
from hpc_train.run.index import add_to_index
from hpc_train.run.jobs import JobRecord, read_jobs, record_job, record_withdrawn
from hpc_train.run.journal import Journal
from hpc_train.run.layout import RunDir, SubmissionDir
from hpc_train.scheduler.environment import job_environment
from hpc_train.scheduler.slurm.commands import SlurmBackend

__all__ = ["Successor", "main"]

WORDS = ("register", "again", "hold", "withdraw")
REFUSED = 75


def main(argv: list[str]) -> int:
    """`RUN --submission N --attempt K --shell PID --word WORD`; prints the successor's job id where there is one.

    Returns 75 where Slurm takes no successor; at the start of an attempt 0, since the end asks once more.
    """
    # Between sbatch and its record nothing may end this process; each call to Slurm has a limit of its own.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2):
        signal.signal(number, signal.SIG_IGN)
    word = argv[argv.index("--word") + 1]
    try:
        run = RunDir(Path(argv[0]))
        submission = run.submission(int(argv[argv.index("--submission") + 1]))
        shell = int(argv[argv.index("--shell") + 1])
        successor = Successor(
            run, submission, int(argv[argv.index("--attempt") + 1]), os.environ["SLURM_JOB_ID"], environment_of(shell)
        )
        answer(argv, successor.become(word))
    except (HpcTrainError, OSError, ValueError, KeyError) as error:
        known = from_os_error(error, str(error.filename or argv[0])) if isinstance(error, OSError) else error
        later = "; it is tried again at the end of this attempt" if word == "register" else ""
        print(f"hpc-train: no job is queued that goes on after this one: {known}{later}", file=sys.stderr)
        return 0 if word == "register" else REFUSED
    return 0


def environment_of(pid: int) -> dict[str, str]:
    """The environment that a process was started with: of a batch shell, what was handed to its job, and nothing that
    modules or setup lines have changed since. Raises: OSError."""
    entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    pairs = (os.fsdecode(entry).partition("=") for entry in entries if b"=" in entry)
    return {name: value for name, _, value in pairs}


@dataclass(frozen=True)
class Successor:
    """The job that goes on after one attempt.

    Attributes:  attempt: number of that attempt.   job_id: the job that runs it.   environ: what that job was given.
    """

    run: RunDir
    submission: SubmissionDir
    attempt: int
    job_id: str
    environ: Mapping[str, str]

    def become(self, word: str) -> str:
        """Do what a word asks for; returns the job's id, "" if there is none now. Raises: HpcTrainError, OSError."""
        known = self._known()
        if word in ("register", "again"):
            return known or self._submit()
        if word == "hold":
            if known:
                self._hold(known)
            return known
        if word == "withdraw":
            if known:
                self._withdraw(known)
            return ""
        raise ValueError(f"--word {word}: one of {', '.join(WORDS)} is allowed")

    def _known(self) -> str:
        """The job that goes on after this one, "" if there is none.

        One that an earlier attempt of this same job registered (an administrator requeued the job) waits for its end as
        well: with another beside it two jobs of the run would start at once.
        """
        of_this = [
            record
            for record in read_jobs(self.run)
            if record.submission == self.submission.number and record.attempt >= 0 and not record.withdrawn
        ]
        own = next((record.job_id for record in of_this if record.attempt == self.attempt), "")
        return own or next((job_id for job_id in map(self._adopted, reversed(of_this)) if job_id), "")

    def _adopted(self, record: JobRecord) -> str:
        """The id of a job that waits for this one since an earlier attempt; from now on it is of this attempt."""
        if record.attempt > self.attempt or job_of(self.run.attempt(record.attempt)) != self.job_id:
            return ""
        state = SlurmBackend().states([record.job_id])[record.job_id]
        if not state.is_live and state.state != "held":  # somebody took it out of the queue
            return ""
        record_job(self.submission, record.job_id, attempt=self.attempt)
        return record.job_id

    def _submit(self) -> str:
        if self.run.cancelled.exists():
            return ""
        job = job_from_json(read_text(self.submission.job), str(self.submission.job))
        environ = job_environment(self.environ, job.env.pass_names)
        job_id = SlurmBackend().submit_successor(
            self.run, self.submission, environ, after=self.job_id, attempt=self.attempt
        )
        try:
            record_job(self.submission, job_id, attempt=self.attempt)
        except BaseException:  # what the next question could not find would be submitted twice
            self._withdraw(job_id)
            raise
        # `cancel` marks the run first and reads the jobs then: either it has seen this one, or we see the mark.
        if self.run.cancelled.exists():
            self._withdraw(job_id)
            return ""
        with contextlib.suppress(OSError):  # a full disk keeps no job from going on
            Journal(self.run, "batch", self.attempt).append("successor", job_id=job_id, after=self.job_id)
        add_to_index(self.environ, self.run, job_id)
        return job_id

    @staticmethod
    def _hold(job_id: str) -> None:
        try:
            SlurmBackend().hold(job_id)
        except SchedulerError as error:
            # It starts then, finds that the run is held, and ends: `hpc-train requeue` submits it anew.
            print(f"hpc-train: job {job_id} cannot be held: {error}", file=sys.stderr)

    def _withdraw(self, job_id: str) -> None:
        with contextlib.suppress(OSError):
            record_withdrawn(self.submission, job_id)
        try:
            SlurmBackend().cancel(job_id)
        except SchedulerError as error:
            # It starts then, finds that the run is over, and ends.
            print(f"hpc-train: job {job_id} is not needed any more, but cannot be cancelled: {error}", file=sys.stderr)
