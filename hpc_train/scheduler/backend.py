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
    raw: its own word.   reason: why it waits or ended, in its own words.   nodes: host list, "" if none.
    """

    state: str
    raw: str = ""
    reason: str = ""
    nodes: str = ""

    @property
    def is_live(self) -> bool:
        """Whether the job may still do something by itself."""
        return self.state in ("pending", "running", "completing", "requeued")


class Backend(Protocol):
    """One scheduler."""

    def submit(self, run: RunDir, submission: SubmissionDir, environ: Mapping[str, str]) -> str:
        """Hand over the submission's script; returns the job id. Raises: SchedulerError, nothing submitted."""

    def states(self, job_ids: Sequence[str]) -> dict[str, JobState]:
        """The state of each job, "unknown" for those it does not know. Raises: SchedulerError."""

    def cancel(self, job_id: str) -> None:
        """End a job. One that has ended already, or that nobody knows any more, is no error. Raises: SchedulerError."""

    def requeue(self, job_id: str, state: JobState) -> bool:
        """Start a known job again (release it if held); False if it must be submitted anew.

        Args:  state: what `states` has just said of it; a live job needs nothing.
        Raises: SchedulerError.
        """
