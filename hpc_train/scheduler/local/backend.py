"""The local scheduler as the commands see it: start a supervisor, read its record, signal it.

Apart from the supervisor, which is the process that stays.
"""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from hpc_train.errors import SchedulerError
from hpc_train.files import process_start
from hpc_train.run.layout import RunDir, SubmissionDir
from hpc_train.scheduler.backend import JobState
from hpc_train.scheduler.local.orphans import end_orphans
from hpc_train.scheduler.local.record import SupervisorRecord, is_locked, read_record

__all__ = ["LocalBackend"]

START_TIMEOUT_S = 60.0  # Python itself can take long on a cold or busy file system
CANCEL_TIMEOUT_S = 30.0

# Supervisors outlive this process; those that end before it are reaped when the next one starts.
_started: list[subprocess.Popen[bytes]] = []


class LocalBackend:
    """Jobs of this machine. A job id is "local:SUBMISSION_DIRECTORY": nothing but the record knows the process."""

    def submit(self, run: RunDir, submission: SubmissionDir, environ: Mapping[str, str]) -> str:
        """Start a detached supervisor and wait until it holds its lock; on any failure it is ended."""
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
        _started[:] = [each for each in (*_started, supervisor) if each.poll() is None]
        try:
            self._await_record(supervisor, submission)
        except BaseException:  # an interrupted submit leaves no job behind either
            supervisor.terminate()
            supervisor.wait(CANCEL_TIMEOUT_S)
            raise
        return f"local:{submission.path}"

    @staticmethod
    def _await_record(supervisor: subprocess.Popen[bytes], submission: SubmissionDir) -> None:
        deadline = time.monotonic() + START_TIMEOUT_S
        while read_record(submission) is None:
            has_ended = supervisor.poll() is not None and read_record(submission) is None
            if has_ended or time.monotonic() > deadline:
                said = " ".join(submission.batch_log.read_text(errors="replace").split())[-400:]
                raise SchedulerError(f"the local supervisor did not start: {said or 'it said nothing'}")
            time.sleep(0.02)

    def find(self, run: RunDir, submission: SubmissionDir) -> str | None:
        """The job whose supervisor has written its record."""
        return None if read_record(submission) is None else f"local:{submission.path}"

    def jobs_of(self, run: RunDir) -> list[str]:
        """The submissions whose supervisor lives."""
        return [f"local:{each.path}" for each in run.submissions() if is_locked(each)]

    def states(self, job_ids: Sequence[str], *, max_age_s: float = 0.0) -> dict[str, JobState]:
        """The supervisors' own words, checked against their locks: always those of now."""
        return {job_id: _state(job_id) for job_id in job_ids}

    def cancel(self, job_id: str) -> None:
        """Tell the supervisor to end its job, and wait until it has."""
        submission = _submission(job_id)
        record = read_record(submission)
        if record is None or not is_locked(submission):
            # A supervisor that was killed could not end its ranks.
            if not end_orphans(RunDir(submission.path.parent)):
                raise SchedulerError(f"processes of {submission.path.parent} do not end; see: ps -ef")
            return
        if record.host != socket.gethostname():
            raise SchedulerError(f"the run's supervisor is on {record.host}; cancel it there")
        if not _terminate(record) and is_locked(submission):
            raise SchedulerError(
                f"process {record.pid} is no longer the run's supervisor, but something holds its lock; "
                f"see: fuser {submission.path / 'supervisor.lock'}"
            )
        deadline = time.monotonic() + CANCEL_TIMEOUT_S
        while is_locked(submission):
            if time.monotonic() > deadline:
                raise SchedulerError(
                    f"supervisor {record.pid} has not ended its job within {CANCEL_TIMEOUT_S:g} s", transient=True
                )
            time.sleep(0.05)

    def requeue(self, job_id: str, state: JobState) -> bool:
        """A live job needs nothing; an ended one must be submitted anew."""
        return state.is_live


def _submission(job_id: str) -> SubmissionDir:
    path = Path(job_id.removeprefix("local:"))
    number = path.name.removeprefix("submission-")
    if not (path.is_absolute() and number.isdecimal()):
        raise SchedulerError(f"{job_id!r} is not the id of a local job")
    return SubmissionDir(path, int(number))


def _state(job_id: str) -> JobState:
    try:
        submission = _submission(job_id)
    except SchedulerError as error:  # of one run; the others have their states
        return JobState("unknown", reason=str(error))
    record = read_record(submission)
    if record is not None and _is_live(record) and not is_locked(submission):
        # It may have ended in between: its last word comes before the lock goes.
        record = read_record(submission)
        if record is not None and _is_live(record):
            return JobState("unknown", record.state, _why_unknown(record), record.host)
    if record is None:
        return JobState("unknown", reason="no supervisor has started")
    return JobState(record.state, record.state, record.reason, record.host)


def _is_live(record: SupervisorRecord) -> bool:
    return JobState(record.state).is_live


def _why_unknown(record: SupervisorRecord) -> str:
    if record.host != socket.gethostname():
        return f"its supervisor is on {record.host}; ask there"
    return "its supervisor is gone: it was killed, or the machine was restarted"


def _terminate(record: SupervisorRecord) -> bool:
    """SIGTERM to the supervisor itself, never to a later process of the same PID; False if it is gone."""
    pidfd = -1
    try:
        # The descriptor holds the process, so that what is checked is what is signalled.
        pidfd = os.pidfd_open(record.pid)
        if process_start(record.pid) != record.started:
            return False
        signal.pidfd_send_signal(pidfd, signal.SIGTERM)
    except OSError as error:
        if error.errno == errno.EPERM:
            raise SchedulerError(f"the run's supervisor {record.pid} belongs to another user") from error
        if error.errno != errno.ENOSYS:  # Linux before 5.3
            return False
        if process_start(record.pid) != record.started:
            return False
        os.kill(record.pid, signal.SIGTERM)
    finally:
        if pidfd >= 0:
            os.close(pidfd)
    return True
