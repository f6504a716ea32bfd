"""The supervisor: runs a batch script on this machine and does to it what Slurm would do.

Apart because it must outlive the shell that submitted: wall time, warning signal, requeue and hold are emulated around
the very script that a cluster would get. Standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hpc_train.files import read_json
from hpc_train.run.layout import RunDir, SubmissionDir
from hpc_train.scheduler.local.record import SupervisorRecord, hold_lock, process_start, write_record

__all__ = ["main"]

KILL_WAIT_S = 10.0  # between SIGTERM and SIGKILL, as Slurm's KillWait
_PR_SET_CHILD_SUBREAPER, _PR_SET_PDEATHSIG = 36, 1


class Supervisor:
    """One submission's supervisor.

    Args:  walltime_s: of one attempt, None for no limit.   lead_s: the warning comes so long before it.
    backoff_s: wait before a script is started again.
    """

    def __init__(self, submission: SubmissionDir, *, walltime_s: float | None, lead_s: float, backoff_s: float) -> None:
        self.submission = submission
        self.walltime_s = walltime_s
        self.lead_s = lead_s
        self.backoff_s = backoff_s
        self._cancelled = False
        self._timed_out = False
        self._script: subprocess.Popen[bytes] | None = None

    def tell(self, state: str, reason: str = "") -> None:
        """Write the record."""
        pid = os.getpid()
        write_record(
            self.submission, SupervisorRecord(pid, process_start(pid) or 0, socket.gethostname(), state, reason)
        )

    def run(self) -> int:
        """Run the script until it wants no further attempt; returns the last exit code."""
        signal.signal(signal.SIGTERM, self._on_cancel)
        signal.signal(signal.SIGINT, self._on_cancel)
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)  # what a script leaves behind comes to us
        while True:
            self._take("again"), self._take("hold")
            self.tell("running")
            code = self._run_script()
            self._reap_leftovers()
            if self._cancelled:
                self.tell("cancelled")
                return code
            if self._take("hold"):
                self.tell("held", "see: hpc-train why")
                return code
            if not self._take("again"):
                self.tell("completed" if code == 0 else "timeout" if self._timed_out else "failed", f"code {code}")
                return code
            self.tell("requeued", f"the next attempt starts in {self.backoff_s:g} s")
            self._sleep(self.backoff_s)

    def _on_cancel(self, number: int, frame: Any) -> None:
        self._cancelled = True

    def _sleep(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not self._cancelled:
            time.sleep(0.05)

    def _take(self, name: str) -> bool:
        """Whether the script left a mark of that name; the mark is removed."""
        with contextlib.suppress(FileNotFoundError):
            (self.submission.path / name).unlink()
            return True
        return False

    def _run_script(self) -> int:
        self._timed_out = False
        parent = os.getpid()

        def tie_to_parent() -> None:
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != parent:
                os._exit(1)

        script = subprocess.Popen(
            ["bash", str(self.submission.script)], start_new_session=True, preexec_fn=tie_to_parent
        )
        self._script = script
        started = time.monotonic()
        steps = self._schedule(started)
        while (code := script.poll()) is None:
            if self._cancelled:
                return self._end(script)
            while steps and time.monotonic() >= steps[0][0]:
                steps.pop(0)[1](script)
            time.sleep(0.05)
        return code

    def _schedule(self, started: float) -> list[tuple[float, Callable[[subprocess.Popen[bytes]], object]]]:
        if self.walltime_s is None:
            return []
        warn = started + max(0.0, self.walltime_s - self.lead_s)
        # B:USR2: the batch shell alone gets the warning, as with sbatch --signal=B:USR2@lead
        return [(warn, lambda script: script.send_signal(signal.SIGUSR2)), (started + self.walltime_s, self._time_out)]

    def _time_out(self, script: subprocess.Popen[bytes]) -> None:
        self._timed_out = True
        print("hpc-train: the wall time is over", file=sys.stderr, flush=True)
        self._end(script)

    def _end(self, script: subprocess.Popen[bytes]) -> int:
        """SIGTERM to the script's session, SIGKILL after KILL_WAIT_S."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(script.pid, signal.SIGTERM)
        try:
            return script.wait(KILL_WAIT_S)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(script.pid, signal.SIGKILL)
            return script.wait()

    @staticmethod
    def _reap_leftovers() -> None:
        """Kill and reap what an ended script left running: as sub-reaper we are its parent now."""
        for _ in range(100):
            children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
            if not children:
                return
            for pid in map(int, children):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                while os.waitpid(-1, os.WNOHANG)[0]:
                    pass
            time.sleep(0.02)


def main(argv: list[str]) -> int:
    """`hpc-train supervise RUN --submission K`: internal, started detached by the local backend."""
    run = RunDir(Path(argv[0]))
    submission = run.submission(int(argv[argv.index("--submission") + 1]))
    launch = read_json(submission.launch)
    with hold_lock(submission) as mine:
        if not mine:
            print("hpc-train: this submission has a supervisor already", file=sys.stderr)
            return 69
        supervisor = Supervisor(
            submission,
            walltime_s=launch["walltime_s"],
            lead_s=float(launch["stop_lead_s"]),
            backoff_s=float(launch["backoff_s"]),
        )
        try:
            return supervisor.run()
        except OSError as error:
            supervisor.tell("failed", f"supervisor: {error}")
            raise
