"""The local scheduler as the commands see it: start a supervisor, read its record, signal it.

Apart from the supervisor, which is the process that stays.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from hpc_train.errors import SchedulerError
from hpc_train.run.layout import RunDir, SubmissionDir
from hpc_train.scheduler.backend import JobState
from hpc_train.scheduler.local.record import is_locked, process_start, read_record

__all__ = ["LocalBackend"]

START_TIMEOUT_S = 20.0


class LocalBackend:
    """Jobs of this machine. A job id is "local:SUBMISSION_DIRECTORY": nothing but the record knows the process."""

    def submit(self, run: RunDir, submission: SubmissionDir, environ: Mapping[str, str]) -> str:
        """Start a detached supervisor and wait until it holds its lock."""
        argv = [sys.executable, "-m", "hpc_train", "supervise", str(run.path), "--submission", str(submission.number)]
        with open(submission.batch_log, "ab") as log:
            supervisor = subprocess.Popen(
                argv,
                env=dict(environ),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd="/",
            )
        deadline = time.monotonic() + START_TIMEOUT_S
        while read_record(submission) is None:
            if supervisor.poll() is not None or time.monotonic() > deadline:
                said = " ".join(submission.batch_log.read_text(errors="replace").split())[-400:]
                raise SchedulerError(f"the local supervisor did not start: {said or 'it said nothing'}")
            time.sleep(0.02)
        return f"local:{submission.path}"

    def states(self, job_ids: Sequence[str]) -> dict[str, JobState]:
        """The supervisors' own words, checked against their locks."""
        return {job_id: self._state(job_id) for job_id in job_ids}

    @staticmethod
    def _submission(job_id: str) -> SubmissionDir:
        path = Path(job_id.removeprefix("local:"))
        return SubmissionDir(path, int(path.name.removeprefix("submission-")))

    def _state(self, job_id: str) -> JobState:
        submission = self._submission(job_id)
        record = read_record(submission)
        if record is None:
            return JobState("unknown", reason="no supervisor has started")
        state = JobState(record.state, record.state, record.reason, record.host)
        if not state.is_live or is_locked(submission):
            return state
        if record.host != socket.gethostname():
            return JobState("unknown", record.state, f"its supervisor is on {record.host}; ask there", record.host)
        return JobState(
            "unknown", record.state, "its supervisor is gone (killed, or the machine was restarted)", record.host
        )

    def cancel(self, job_id: str) -> None:
        """Tell the supervisor to end its job, and wait until it has."""
        submission = self._submission(job_id)
        record = read_record(submission)
        if record is None or not is_locked(submission):
            return
        if record.host != socket.gethostname() or process_start(record.pid) != record.started:
            raise SchedulerError(f"the run's supervisor is process {record.pid} on {record.host}; cancel it there")
        os.kill(record.pid, signal.SIGTERM)
        deadline = time.monotonic() + 30
        while is_locked(submission):
            if time.monotonic() > deadline:
                raise SchedulerError(f"supervisor {record.pid} has not ended its job within 30 s", transient=True)
            time.sleep(0.05)

    def requeue(self, job_id: str, state: JobState) -> bool:
        """A live job needs nothing; an ended one must be submitted anew."""
        return state.is_live
