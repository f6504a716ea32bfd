"""The monitor: stays beside the program, outlives it, and writes down how it ended.

A process of its own, forked apart before anything heavy is imported, because only from outside can one see a SIGKILL,
a rank stuck inside MPI or the kernel, or a peer that left early. It never touches MPI or torch. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import dataclass

from hpc_train.files import read_json, write_atomic, write_json
from hpc_train.launch.identity import Identity
from hpc_train.launch.page import FINISHED, Page, Snapshot
from hpc_train.launch.sampler import waits_for_peers
from hpc_train.run.layout import AttemptDir
from hpc_train.run.marks import CODE_OF_CLASS, ExitMark, class_of_code, class_of_signal, write_mark

__all__ = ["Limits", "Monitor", "Verdict", "judge"]

EARLY_EXIT_GRACE_S = 4.0  # a peer that left, and this rank blocked in a collective, both for so long
TERM_GRACE_S = 3.0  # below the shortest KillWait a site is likely to set
_WAITED = frozenset(
    {signal.SIGCHLD, signal.SIGUSR1, signal.SIGUSR2, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGCONT}
)


@dataclass(frozen=True)
class Limits:
    """How long the program may go without a heartbeat, and how often the attempt's directory is looked at [s]."""

    hang_timeout_s: float
    poll_s: float


@dataclass(frozen=True)
class Verdict:
    """Why the monitor ends its program."""

    failure: str
    cause: str
    blamed: int | None = None


def judge(page: Snapshot, now: float, limits: Limits, left_early: list[int], left_since: float | None) -> Verdict | None:
    """Whether a running program must be ended, and why. Pure.

    Args:  now: CLOCK_MONOTONIC.   left_early: ranks that have ended cleanly; left_since: when the first was seen.
    """
    if page.state == FINISHED:
        return None
    in_phase = now - page.phase_since
    if page.phase_limit_s and in_phase > page.phase_limit_s:
        return Verdict("hang", f"stuck {in_phase:.0f} s in {page.phase} (limit {page.phase_limit_s:g} s){_at(page)}")
    silent = now - max(page.heartbeat, page.phase_since)
    if page.beats and not page.phase_limit_s and silent > limits.hang_timeout_s:
        where = page.phase or "the program"
        return Verdict("hang", f"no progress for {silent:.0f} s in {where} (limit {limits.hang_timeout_s:g} s){_at(page)}")
    if left_since is not None and page.call and waits_for_peers(page.call):
        if min(now - left_since, now - page.call_since) > EARLY_EXIT_GRACE_S:
            others = ", ".join(map(str, left_early[:8]))
            cause = f"rank {left_early[0]} ended with code 0 while others waited for it in {page.call}"
            return Verdict("program", f"{cause} (ended early: {others})", left_early[0])
    return None


def _at(page: Snapshot) -> str:
    return f"; main thread in {page.call}" if page.call else ""


class Monitor:
    """Watches one program process until it has ended; `run` gives the exit code for the launcher."""

    def __init__(self, attempt: AttemptDir, identity: Identity, page: Page, *, node: str, limits: Limits) -> None:
        self.attempt = attempt
        self.identity = identity
        self.page = page
        self.node = node
        self.limits = limits
        self.child = 0
        self._told_to_end: float | None = None
        self._verdict: Verdict | None = None
        self._left: list[int] = []
        self._left_since: float | None = None
        self._marked_finished = False
        self._next_poll = 0.0

    @staticmethod
    def block_signals() -> None:
        """Hold signals back until `run` waits for them; call it before the fork, undo it in the program's process."""
        signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED)

    @staticmethod
    def unblock_signals() -> None:
        """For the program's process: signals arrive again."""
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _WAITED)

    def run(self, child: int) -> int:
        """Wait for the program, forward signals, act on hangs; returns the exit code to leave with."""
        self.child = child
        while True:
            info = signal.sigtimedwait(_WAITED, 0.5)
            if info is not None:
                self._on_signal(info.si_signo)
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                return self._ended(status)
            self._watch()

    def _on_signal(self, number: int) -> None:
        if number == signal.SIGUSR2:
            self.page.request_stop()
            self._forward(number)
        elif number == signal.SIGUSR1:
            self._forward(number)
        elif number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            self._told_to_end = self._told_to_end or time.monotonic()
            self._forward(number)

    def _forward(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.child, number)

    def _watch(self) -> None:
        now = time.monotonic()
        page = self.page.read()
        if page.state == FINISHED and not self._marked_finished:
            self._mark_finished()
        if self._told_to_end is not None and now - self._told_to_end > TERM_GRACE_S:
            self._kill()
        if now >= self._next_poll and page.state != FINISHED:
            self._next_poll = now + self.limits.poll_s
            self._look_for_peers(now)
        if self._verdict is None:
            verdict = judge(page, now, self.limits, self._left, self._left_since)
            if verdict is not None:
                self._verdict = verdict
                self._mark(verdict.failure, verdict.cause, CODE_OF_CLASS.get(verdict.failure, 1), verdict.blamed)
                self._kill()

    def _look_for_peers(self, now: float) -> None:
        if self._left_since is not None:
            return
        names = os.listdir(self.attempt.finished)
        self._left = sorted(int(name) for name in names if name.isdecimal())
        if self._left:
            self._left_since = now

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.child, signal.SIGKILL)

    def _ended(self, status: int) -> int:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.child, signal.SIGKILL)  # data workers that the program left behind
        page = self.page.read()
        code = os.waitstatus_to_exitcode(status)
        if self._verdict is not None:
            return CODE_OF_CLASS.get(self._verdict.failure, 1)
        if page.state == FINISHED or code == 0:
            # A crash in MPI's or a library's clean-up after the program's own end loses nothing.
            self._mark_finished()
            return self._await_all() if self.identity.rank == 0 else 0
        if code > 0:
            self._mark(page.failure or class_of_code(code), page.cause or f"the program left with code {code}", code)
            return code
        number = -code
        name = signal.Signals(number).name if number in signal.valid_signals() else f"signal {number}"
        failure = "terminated" if self._told_to_end is not None else class_of_signal(number)
        by = " by the launcher or the scheduler" if self._told_to_end is not None else ""
        self._mark(failure, f"ended by {name}{by}", 128 + number)
        return 128 + number

    def _mark(self, failure: str, cause: str, code: int, blamed: int | None = None) -> None:
        page = self.page.read()
        rank = self.identity.rank if blamed is None else blamed
        mark = ExitMark(
            writer=self.identity.rank,
            rank=rank,
            node=self.node if blamed is None else self._node_of(rank),
            failure=failure,
            cause=cause,
            code=code,
            step=page.step,
            phase=page.phase,
        )
        write_mark(self.attempt, mark)
        step = "" if page.step is None else f", step {page.step}"
        line = f"hpc-train: rank {mark.rank} on {mark.node} failed: {failure}: {cause}{step}, phase {page.phase!r}"
        with contextlib.suppress(OSError):
            os.write(2, line.encode() + b"\n")

    def _node_of(self, rank: int) -> str:
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            return str(read_json(self.attempt.finished / str(rank), limit=4096)["node"])
        return "?"

    def _mark_finished(self) -> None:
        if not self._marked_finished:
            self._marked_finished = True
            write_json(self.attempt.finished / str(self.identity.rank), {"node": self.node})

    def _await_all(self) -> int:
        """Rank 0 only: DONE is written once every rank has ended cleanly; another rank's failure ends the wait."""
        pause = 0.02
        while sum(map(str.isdecimal, os.listdir(self.attempt.finished))) < self.identity.size:
            info = signal.sigtimedwait(_WAITED, pause)
            told = info is not None and info.si_signo in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
            if told or os.listdir(self.attempt.exits):
                return 1
            pause = min(pause * 1.5, 1.0)
        write_atomic(self.attempt.done, "all ranks ended cleanly\n")
        return 0

