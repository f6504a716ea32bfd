"""What every scheduler must be able to do, and the states that all of them speak in.

Apart so that commands ask one protocol and never which scheduler it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from hpc_train.run.layout import RunDir, SubmissionDir

__all__ = ["STATES", "Backend", "JobState"]

STATES = (
    "pending", "running", "completing", "requeued", "held", "completed", "failed", "cancelled", "timeout",
    "out_of_memory", "node_fail", "preempted", "unknown",
)  # fmt: skip


@dataclass(frozen=True)
class JobState:
    """What a scheduler says of a job.

    Attributes:  state: one of STATES; "unknown" where the scheduler no longer knows it, which is not "completed".
    raw: its own word.   reason: why it waits or ended, in its own words.   nodes: host list, "" if none.   is_answer:
    False where the scheduler did not answer, so that the job may well be alive.
    """

    state: str
    raw: str = ""
    reason: str = ""
    nodes: str = ""
    is_answer: bool = True

    @property
    def is_live(self) -> bool:
        """Whether the job may still do something by itself."""
        return self.state in ("pending", "running", "completing", "requeued")


class Backend(Protocol):
    """One scheduler."""

    def submit(self, run: RunDir, submission: SubmissionDir, environ: Mapping[str, str]) -> str:
        """Hand over the submission's script; returns the job id. Raises: SchedulerError, nothing submitted."""

    def find(self, run: RunDir, submission: SubmissionDir) -> str | None:
        """The job of a submission whose id nobody lived to note, None if there is none. Raises: SchedulerError."""

    def jobs_of(self, run: RunDir) -> list[str]:
        """The jobs in the queue that carry a token of the run, noted or not. Raises: SchedulerError."""

    def states(self, job_ids: Sequence[str], *, max_age_s: float = 0.0) -> dict[str, JobState]:
        """The state of each job, "unknown" for those it does not know.

        Args:  max_age_s: how old an answer that other commands have got may be; 0 always asks: for who acts on it.
        Raises: SchedulerError.
        """

    def cancel(self, job_id: str) -> None:
        """End a job. One that has ended already, or that nobody knows any more, is no error. Raises: SchedulerError."""

    def requeue(self, job_id: str, state: JobState) -> bool:
        """Start a known job again (release it if held); False if it must be submitted anew.

        Args:  state: what `states` has just said of it; a live job needs nothing.
        Raises: SchedulerError.
        """
