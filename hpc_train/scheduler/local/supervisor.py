"""The supervisor: runs a batch script on this machine and does to it what Slurm would do.

Apart because it must outlive the shell that submitted: wall time, warning signal, requeue and hold are emulated around
the very script that a cluster would get. Standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import re
import select
import signal
import socket
import subprocess
import time
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from types import FrameType
from typing import Any

from hpc_train.errors import SpecError
from hpc_train.files import process_start, read_json, tell
from hpc_train.run.index import open_run
from hpc_train.run.layout import RunDir, SubmissionDir
from hpc_train.scheduler.local.orphans import end_orphans
from hpc_train.scheduler.local.record import SupervisorRecord, hold_lock, write_record

__all__ = ["Supervisor", "Times", "main"]

_PR_SET_CHILD_SUBREAPER, _PR_SET_PDEATHSIG = 36, 1
NO_SPACE_CODE = 73
_SECONDS = re.compile(r"\d{1,9}(\.\d+)?")  # in the mark `again`: the back-off
_REAP_ROUNDS = 500  # of 20 ms: a process in an uninterruptible wait must not hold the supervisor for ever


@dataclass(frozen=True)
class Times:
    """Of one attempt, in seconds.

    Attributes:  walltime_s: None for no limit.   lead_s: the warning comes so long before it.   kill_wait_s:
    between SIGTERM and SIGKILL, as Slurm's KillWait.
    """

    walltime_s: float | None
    lead_s: float
    kill_wait_s: float

    @classmethod
    def of_launch(cls, launch: dict[str, Any]) -> Times:
        """The times of a launch record. Raises: KeyError, ValueError, TypeError if it is damaged."""
        walltime_s = launch["walltime_s"]
        others = (float(launch[key]) for key in ("stop_lead_s", "kill_wait_s"))
        return cls(None if walltime_s is None else float(walltime_s), *others)


class Supervisor:
    """One submission's supervisor; `run` it in the main thread, with the submission's lock held."""

    def __init__(self, submission: SubmissionDir, times: Times) -> None:
        self.submission = submission
        self.times = times
        self._is_cancelled = False
        # A signal's number is written here, so that a wait that was about to begin ends at once.
        self._woken, self._waker = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)

    def tell(self, state: str, reason: str = "") -> None:
        """Write the record."""
        pid = os.getpid()
        record = SupervisorRecord(pid, process_start(pid) or 0, socket.gethostname(), state, reason)
        write_record(self.submission, record)

    def run(self) -> int:
        """Run the script until it wants no further attempt; returns the last exit code."""
        signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        signal.signal(signal.SIGTERM, self._on_cancel)
        signal.signal(signal.SIGINT, self._on_cancel)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)  # ignored, it would wake nobody
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)  # what a script leaves behind comes to us
        code = 0
        while not self.is_cancelled():
            for mark in ("again", "hold"):  # of a script whose supervisor was killed
                self._take(mark)
            self.tell("running")
            code, is_timed_out = self._run_script()
            reap_leftovers()
            again, wants_hold = self._take("again"), self._take("hold") is not None
            if self.is_cancelled():
                break
            if wants_hold or code == NO_SPACE_CODE:  # where the script could not even leave a mark
                self.tell("held", "see: hpc-train why" if wants_hold else self._full_disk())
                return code
            if again is None:
                ended = "completed" if code == 0 else "timeout" if is_timed_out else "failed"
                self.tell(ended, "" if code == 0 else f"the batch script ended with code {code}")
                return code
            delay_s = float(again) if _SECONDS.fullmatch(again) else 0.0
            starts = datetime.now() + timedelta(seconds=delay_s)
            self.tell("requeued", f"the next attempt starts at {starts:%Y-%m-%dT%H:%M:%S}" if delay_s else "")
            self._pause(time.monotonic() + delay_s)
        is_asked = RunDir(self.submission.path.parent).cancelled.exists()
        self.tell("cancelled", "" if is_asked else "its supervisor was told to end, as when the machine shuts down")
        return code

    def _full_disk(self) -> str:
        run = self.submission.path.parent
        with contextlib.suppress(OSError):
            space = os.statvfs(run)
            free = f"{space.f_bavail * space.f_frsize:,} bytes and {space.f_favail:,} inodes are free"
            return f"no space in {run}: {free}; free some, then: hpc-train requeue {run.name}"
        return f"no space in {run}, or it is gone"

    def is_cancelled(self) -> bool:
        """Whether SIGTERM has come: a signal handler notes it, at any instant."""
        return self._is_cancelled

    def _on_cancel(self, number: int, frame: FrameType | None) -> None:
        self._is_cancelled = True

    def _pause(self, deadline: float, script: subprocess.Popen[bytes] | None = None) -> None:
        """Wait until then, a cancel, or the script's end: whichever comes first."""
        while not self.is_cancelled() and (script is None or script.poll() is None):
            left_s = deadline - time.monotonic()
            if left_s <= 0:
                return
            select.select([self._woken], [], [], min(left_s, 3600.0))
            with contextlib.suppress(BlockingIOError):
                os.read(self._woken, 4096)

    def _take(self, name: str) -> str | None:
        """What a mark of that name says that the script left, None if it left none; the mark is removed."""
        path = self.submission.path / name
        with contextlib.suppress(FileNotFoundError):
            text = path.read_text(errors="replace").strip()
            path.unlink()
            return text
        return None

    def _run_script(self) -> tuple[int, bool]:
        """One attempt: exit code, and whether its time was over. A cancel ends it."""
        parent = os.getpid()

        def tie_to_parent() -> None:
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != parent:
                os._exit(1)

        argv = ["bash", str(self.submission.script)]
        script = subprocess.Popen(argv, start_new_session=True, preexec_fn=tie_to_parent)  # noqa: PLW1509 - no threads here
        started = time.monotonic()
        walltime_s = float("inf") if self.times.walltime_s is None else self.times.walltime_s
        for moment_s, warns in ((max(0.0, walltime_s - self.times.lead_s), True), (walltime_s, False)):
            self._pause(started + moment_s, script)
            if self.is_cancelled() or script.poll() is not None:
                return self._end(script), False
            if warns:
                # B:USR2: the batch shell alone gets the warning, as with sbatch --signal=B:USR2@lead
                script.send_signal(signal.SIGUSR2)
        tell("hpc-train: the wall time is over")
        return self._end(script), True

    def _end(self, script: subprocess.Popen[bytes]) -> int:
        """SIGTERM to the script, SIGKILL to its process group after the kill wait; nothing where it has ended."""
        # To the script alone, which passes it on: a launcher that hears it twice gives up on an orderly end.
        script.send_signal(signal.SIGTERM)
        try:
            return script.wait(self.times.kill_wait_s)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(script.pid, signal.SIGKILL)
            return script.wait()


def reap_leftovers() -> None:
    """Kill and reap what an ended script left running: as sub-reaper we are its parent now."""
    children = Path(f"/proc/self/task/{os.getpid()}/children")
    for _ in range(_REAP_ROUNDS):
        pids = children.read_text().split()
        if not pids:
            return
        for pid in map(int, pids):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.02)


def main(argv: list[str]) -> int:
    """`hpc-train supervise RUN --submission K`: internal, started detached by the local backend."""
    try:
        run = open_run(Path(argv[0]))
    except SpecError as error:
        tell(f"hpc-train: {error}")
        return error.exit_code
    submission = run.submission(int(argv[argv.index("--submission") + 1]))
    times = Times.of_launch(read_json(submission.launch))
    with hold_lock(submission) as is_mine:
        if not is_mine:
            tell("hpc-train: this submission has a supervisor already")
            return 69
        end_orphans(run)  # of an earlier submission whose supervisor was killed
        supervisor = Supervisor(submission, times)
        try:
            return supervisor.run()
        except OSError as error:
            supervisor.tell("failed", f"supervisor: {error}")
            raise
