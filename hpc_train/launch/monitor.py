"""The monitor: stays beside the program, outlives it, and writes down how it ended.

A process of its own, forked apart before anything heavy is imported, because only from outside can one see a SIGKILL,
a rank stuck inside MPI or the kernel, or a peer that left early. It never touches MPI or torch. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from dataclasses import replace

from hpc_train.files import read_json, write_atomic, write_json
from hpc_train.launch.ending import Circumstances, Ending, how_it_ended
from hpc_train.launch.identity import Identity
from hpc_train.launch.kernel import become_subreaper, count_oom_kills, end_leftovers, is_stuck_state, process_state
from hpc_train.launch.output import say
from hpc_train.launch.page import FINISHED, WAITS_FOR_PEERS, Page, Snapshot
from hpc_train.launch.peers import Peers
from hpc_train.launch.verdict import Limits, Verdict, judge
from hpc_train.run.layout import AttemptDir
from hpc_train.run.marks import CODE_OF_CLASS, SECONDARY, ExitMark, write_mark

__all__ = ["Monitor", "block_signals", "unblock_signals"]

LEAVE_GRACE_S = 5.0  # a program that told its last words has so long for exit hooks, which may wait for other ranks
KILL_GRACE_S = 5.0  # after SIGKILL: a process stuck in the kernel cannot be waited for
LEFTOVER_GRACE_S = 1.0
STOP_LINGER_S = 8.0
PAUSE_S = 5.0  # a gap between two looks that long means that this node was suspended
_END = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
_WAITED = frozenset({signal.SIGCHLD, signal.SIGUSR1, signal.SIGUSR2, signal.SIGCONT, *_END})


def block_signals() -> None:
    """Hold signals back until `Monitor.run` waits for them; call it before the fork."""
    signal.pthread_sigmask(signal.SIG_BLOCK, _WAITED)


def unblock_signals() -> None:
    """For the program's process: signals arrive again."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _WAITED)


class Monitor:
    """Watches one program process until it has ended; `run` gives the exit code for the launcher.

    Args:  is_guarded: the program runs in the shim's own process, under the guard; else it is any other program.
    """

    def __init__(
        self, attempt: AttemptDir, identity: Identity, page: Page, *, node: str, limits: Limits, is_guarded: bool
    ) -> None:
        self.attempt = attempt
        self.identity = identity
        self.page = page
        self.node = node
        self.limits = limits
        self.is_guarded = is_guarded
        self.child = 0
        self._spared: int | None = None
        self._peers = Peers(attempt, identity, poll_s=limits.poll_s)
        self._oom_kills = count_oom_kills()
        self._verdict: Verdict | None = None
        self._is_finished = False
        self._has_announced_end = False
        self._has_noted_words = False
        self._last_look = time.monotonic()
        # When things happened first, CLOCK_MONOTONIC: told to end, last words, SIGKILL.
        self._told_at: float | None = None
        self._words_at: float | None = None
        self._killed_at: float | None = None

    def run(self, child: int, *, spared: int | None = None) -> int:
        """Wait for the program, forward signals, act on hangs; returns the exit code to leave with.

        Args:  spared: another child of this process, that is none of the program's.
        """
        self.child, self._spared = child, spared
        become_subreaper()
        self.page.watch()
        while True:
            info = signal.sigtimedwait(_WAITED, 0.5)
            now = time.monotonic()
            if now - self._last_look > PAUSE_S:
                self._peers.woke_up(now)
            self._last_look = now
            if info is not None:
                self._on_signal(info.si_signo, now)
            status = self._reap()
            if status is not None:
                return self._ended(status)
            if self._killed_at is not None and now - self._killed_at > KILL_GRACE_S:
                return self._give_up()
            self._watch(now)

    def _reap(self) -> int | None:
        found = None
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                found = ended[1] if ended[0] == self.child else found
        return found

    def _on_signal(self, number: int, now: float) -> None:
        if number == signal.SIGUSR2:
            self.page.request_stop()
        elif number in _END and self._told_at is None:
            self._told_at = now
        has_finished = self.page.read().state == FINISHED  # before the signal can make it do so
        if number in (signal.SIGUSR1, signal.SIGUSR2, *_END):
            self._forward(number)
        if number in _END:
            self._announce_end(number, has_finished)

    def _forward(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if self.is_guarded:
                os.kill(self.child, number)
            else:  # a script's own children are meant too, as with Ctrl-C in a terminal
                os.killpg(self.child, number)

    def _announce_end(self, number: int, has_finished: bool) -> None:
        # Written at once: mpirun's SIGKILL follows a second later, and a rank without a word looks like a dead node.
        if has_finished:
            self._mark_finished()
        elif self._verdict is None and not self._has_announced_end and not self._has_noted_words:
            cause = f"ended by {signal.Signals(number).name} by the launcher or the scheduler"
            self._mark(Ending("terminated", cause, 128 + number))
            self._has_announced_end = True

    def _watch(self, now: float) -> None:
        page = self.page.read()
        if page.failure:
            self._words_at = self._words_at or now
            self._note_words(page)
            if now - self._words_at > LEAVE_GRACE_S:
                self._kill()
        if self._told_at is not None and now - self._told_at > self.limits.term_grace_s:
            self._kill()
        if page.state == FINISHED:
            self._mark_finished()
        self._peers.look(now, page)
        if self._peers.ended_for_s(now) > self.limits.hang_timeout_s:
            self._kill()  # everyone has finished, and this one does not get out of its exit hooks
        if self._verdict is None and self._killed_at is None and self._judge(now) is not None:
            time.sleep(0.05)  # a second look: a number may have been read while it was written
            self._verdict = self._judge(now + 0.05)
            if self._verdict is not None:
                verdict = self._verdict
                self._mark(Ending(verdict.failure, verdict.cause, _code(verdict)), verdict.blamed)
                self._kill()

    def _note_words(self, page: Snapshot) -> None:
        """The mark before the end: once this rank's program is gone, the launcher may kill this monitor at once."""
        if self._has_noted_words or page.failure == "stopped":
            return
        self._has_noted_words = True
        self._mark(Ending(page.failure, page.cause, page.code or 1))
        self.page.note()

    def _judge(self, now: float) -> Verdict | None:
        company = replace(self._peers.company, state=is_stuck_state(process_state(self.child)))
        return judge(self.page.read(), now, self.limits, company)

    def _kill(self) -> None:
        self._killed_at = self._killed_at or time.monotonic()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.child, signal.SIGKILL)

    def _give_up(self) -> int:
        state = is_stuck_state(process_state(self.child)) or "not gone"
        if self._verdict is None:
            self._mark(Ending("infrastructure", f"SIGKILL does not end the program: it is {state}", 76))
        return CODE_OF_CLASS["infrastructure"]

    def _ended(self, status: int) -> int:
        detached = False
        code = os.waitstatus_to_exitcode(status)
        page = self.page.read()
        if code == 0 and page.state != FINISHED:  # only then may it have gone to the background
            detached = self._end_leftovers()
        case = Circumstances(
            is_guarded=self.is_guarded,
            told=self._told_at is not None and not self._is_finished,
            ran_out_of_memory=count_oom_kills() > self._oom_kills,
            detached=detached and self.is_guarded,
        )
        if self._verdict is not None:
            self._end_leftovers()
            return _code(self._verdict)
        ending = how_it_ended(page, code, case)
        if ending is None:
            self._mark_finished(is_abrupt=self.is_guarded and page.state != FINISHED)
            self._end_leftovers()
            return self._await_all() if self.identity.rank == 0 else 0
        if not self._has_noted_words:
            self._mark(ending)
        self._end_leftovers()
        if ending.failure == "stopped":
            self._linger()
        return ending.code

    def _end_leftovers(self) -> bool:
        grace_s = 0.0 if self._told_at is not None else LEFTOVER_GRACE_S
        return end_leftovers(self._spared, grace_s=grace_s, limit_s=grace_s + KILL_GRACE_S)

    def _mark(self, ending: Ending, blamed: int | None = None) -> None:
        page = self.page.read()
        rank = self.identity.rank if blamed is None else blamed
        mark = ExitMark(
            writer=self.identity.rank,
            rank=rank,
            node=self.node if blamed is None else self._node_of(rank),
            failure=ending.failure,
            cause=ending.cause,
            code=ending.code,
            step=page.step,
            phase=page.phase,
            waits=bool(page.call) and page.call_kind == WAITS_FOR_PEERS,
        )
        if mark.failure == "terminated" and self._has_announced_end:
            return
        # What many ranks say alike (a stop, a hang, a peer that left) stands in the log once.
        is_common = mark.failure in ("stopped", "hang") or blamed is not None
        is_told = mark.failure in SECONDARY or (is_common and self._peers.somebody_failed())
        try:
            is_durable = mark.failure != "terminated"
            write_mark(self.attempt, mark, replace=self._has_announced_end, durable=is_durable)
        except OSError as error:
            is_told = False
            say(f"rank {rank}: its exit mark could not be written: {error}")
        if not is_told:
            step = "" if page.step is None else f", step {page.step}"
            word = "" if mark.failure == "stopped" else "failed: "
            say(f"rank {mark.rank} on {mark.node} {word}{mark.failure}: {mark.cause}{step}, phase {page.phase!r}")

    def _node_of(self, rank: int) -> str:
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            return str(read_json(self.attempt.finished / str(rank), limit=4096)["node"])
        return "?"

    def _mark_finished(self, *, is_abrupt: bool = False) -> None:
        if self._is_finished or self._has_announced_end:
            return
        with contextlib.suppress(OSError):  # tried again at the next look
            record = {"node": self.node, "time": time.time(), "abrupt": is_abrupt}
            write_json(self.attempt.finished / str(self.identity.rank), record)
            self._is_finished = True

    def _linger(self) -> None:
        """Give the other ranks the time to leave too: launchers kill all once the first has left with a code."""
        deadline = time.monotonic() + STOP_LINGER_S
        while time.monotonic() < deadline and not self._peers.all_have_ended():
            info = signal.sigtimedwait(_WAITED, 0.2)
            if info is not None and info.si_signo in _END:
                return

    def _await_all(self) -> int:
        """Rank 0 only: DONE is written once every rank has ended cleanly; another rank's failure ends the wait."""
        pause = 0.02
        while not self._peers.all_have_finished():
            info = signal.sigtimedwait(_WAITED, pause)
            is_told = info is not None and info.si_signo in _END
            if is_told or self._peers.somebody_failed():
                return 1
            pause = min(pause * 1.5, 1.0)
        with contextlib.suppress(OSError):  # the decision finds out too that all have finished
            write_atomic(self.attempt.done, "all ranks ended cleanly\n")
        return 0


def _code(verdict: Verdict) -> int:
    return CODE_OF_CLASS.get(verdict.failure, 1)
