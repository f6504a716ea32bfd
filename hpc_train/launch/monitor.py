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
from hpc_train.launch.error_file import with_recorded_error, with_recorded_stop
from hpc_train.launch.fence import OwnerWatch, monitors_beside
from hpc_train.launch.identity import Identity
from hpc_train.launch.kernel import become_subreaper, count_oom_kills, end_leftovers, is_stuck_state, process_state
from hpc_train.launch.output import say
from hpc_train.launch.page import FINISHED, WAITS_FOR_PEERS, Page, Snapshot
from hpc_train.launch.peers import Peers
from hpc_train.launch.verdict import Limits, Verdict, judge, roll_call_s
from hpc_train.run.layout import AttemptDir
from hpc_train.run.marks import CODE_OF_CLASS, SECONDARY, ExitMark, write_mark
from hpc_train.run.reserve import MARKS, with_reserve

__all__ = ["Monitor", "block_signals", "unblock_signals"]

LEAVE_GRACE_S = 5.0  # a program that told its last words has so long for exit hooks, which may wait for other ranks
KILL_GRACE_S = 5.0  # after SIGKILL: a process stuck in the kernel cannot be waited for
LEFTOVER_GRACE_S = 1.0
STOP_LINGER_S = 8.0
PAUSE_S = 5.0  # a gap between two looks that long means that this node was suspended
WAKE_GRACE_S = 2.0  # a rank that is woken to be ended may still get to the end of its step
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
    relays_stop: the launcher does not pass the stop signal on, so the monitor gives it once the record is there.
    """

    def __init__(
        self,
        attempt: AttemptDir,
        identity: Identity,
        page: Page,
        *,
        node: str,
        limits: Limits,
        is_guarded: bool,
        relays_stop: bool = False,
    ) -> None:
        self.attempt = attempt
        self.identity = identity
        self.page = page
        self.node = node
        self.limits = limits
        self.is_guarded = is_guarded
        self.child = 0
        self._spared: int | None = None
        self._error_file = attempt.error_file(identity.rank)
        self._next_relay = time.monotonic() if relays_stop else None
        self._peers = Peers(attempt, identity, poll_s=limits.poll_s)
        self._owner = OwnerWatch(attempt, is_leader=identity.local_rank == 0)
        self._oom_kills = count_oom_kills()
        self._verdict: Verdict | None = None
        self._is_finished = False
        self._has_announced_end = False
        self._was_noticed = False
        self._has_noted_words = False
        self._last_look = time.monotonic()
        self._stood_still = (0.0, "")  # when this was seen last, and what, in words that follow "it"
        # When things happened first, CLOCK_MONOTONIC: told to end, last words, SIGKILL.
        self._told_at: float | None = None
        self._words_at: float | None = None
        self._killed_at: float | None = None
        self._roll_call_ends = 0.0

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
            if (pause_s := now - self._last_look) > PAUSE_S:
                self._peers.woke_up(now)
                self._stood_still = (
                    now,
                    f"stood still for {pause_s:.0f} s with all around it: frozen, or its node was",
                )
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
        if number == signal.SIGTERM and self._is_notice():
            return
        if number == signal.SIGUSR2:
            self.page.request_stop()
        elif number in _END and self._told_at is None:
            self._told_at = now
        has_finished = self.page.read().state == FINISHED  # before the signal can make it do so
        if number in (signal.SIGUSR1, signal.SIGUSR2, *_END):
            self._forward(number)
        if number in _END:
            self._announce_end(number, has_finished)

    def _is_notice(self) -> bool:
        """Whether this SIGTERM only says that the job is preempted in a while; then the program is asked to stop.

        The first one, where the queue gives a time of grace and no rank has failed: an end sends it twice.
        """
        grace_s = self.limits.preempt_grace_s
        if not grace_s or self._was_noticed or self._told_at is not None:
            return False
        if self._peers.somebody_failed() or self._owner.look_at_once():
            return False
        self._was_noticed = True
        with contextlib.suppress(OSError):
            if not self.attempt.stop.exists():
                record = {"reason": "preemption", "deadline": time.time() + grace_s}
                write_json(self.attempt.stop, record, durable=False)
        self.page.request_stop()
        return True

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
            if self._owner.look_at_once():
                return  # judged at the next look: not the scheduler's end, but this attempt's
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
        if page.state == FINISHED and not self._owner.found:
            self._mark_finished()
        self._relay_stop(now)
        self._peers.look(now, page)
        self._owner.look(now)
        if page.state == FINISHED and self._peers.company.is_deserted(now):
            self._kill()  # its exit hooks wait for one that failed
        if self._peers.ended_for_s(now) > self.limits.hang_timeout_s:
            self._kill()  # everyone has finished, and this one does not get out of its exit hooks
        if self._verdict is None and self._killed_at is None and self._judge(now) is not None:
            time.sleep(0.05)  # a second look: a number may have been read while it was written
            self._pronounce(self._judge(now + 0.05), now)
        if self._verdict is None:
            self._answer_roll_call(page)
        elif self._killed_at is None and (now >= self._roll_call_ends or self._peers.company.all_spoke):
            self._kill()

    def _pronounce(self, verdict: Verdict | None, now: float) -> None:
        if verdict is None:
            return
        self._verdict = verdict
        self._mark(Ending(verdict.failure, verdict.cause, _code(verdict)), verdict.blamed)
        if verdict.failure == "hang" and not self._peers.all_have_ended():
            self._roll_call_ends = now + roll_call_s(self.limits.poll_s)
            return
        self._kill()
        if verdict.failure == "superseded" and self.identity.local_rank == 0:
            self._tell_node()

    def _answer_roll_call(self, page: Snapshot) -> None:
        """Another rank hangs: say how this one stands before all are killed, so that silence tells who is frozen."""
        company = self._peers.company
        if not company.has_hung or company.failed == self.identity.rank or page.state == FINISHED:
            return
        if not (self._has_announced_end or self._has_noted_words or self._killed_at):
            self._mark(Ending("terminated", f"ended because rank {company.failed} hangs", 128 + signal.SIGTERM))
            self._has_announced_end = True

    def _tell_node(self) -> None:
        """The other monitors of this node look at the owner record themselves when they are told to end."""
        for pid in monitors_beside(self.attempt):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGTERM)

    def _relay_stop(self, now: float) -> None:
        if self._next_relay is None or now < self._next_relay:
            return
        self._next_relay = now + self.limits.poll_s
        if self.attempt.stop.exists():
            self._next_relay = None
            self._on_signal(signal.SIGUSR2, now)

    def _note_words(self, page: Snapshot) -> None:
        """The mark before the end: once this rank's program is gone, the launcher may kill this monitor at once."""
        words = with_recorded_stop(Ending(page.failure, page.cause, page.code or 1), self.attempt.stopped)
        if self._has_noted_words or words.failure == "stopped":
            return
        self._has_noted_words = True
        self._mark(words)
        self.page.note()

    def _judge(self, now: float) -> Verdict | None:
        page = self.page.read()
        state = is_stuck_state(process_state(self.child))
        if state and now - page.heartbeat > PAUSE_S:
            self._stood_still = (now, f"was {state}")
        company = replace(self._peers.company, state=state, owner=self._owner.found)
        return judge(page, now, self.limits, company)

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
        ending = with_recorded_stop(ending, self.attempt.stopped)
        if not self._has_noted_words:
            self._mark(ending if page.failure else with_recorded_error(ending, self._error_file))
        self._end_leftovers()
        if ending.failure == "stopped":
            self._linger()
        return CODE_OF_CLASS["superseded"] if self._owner.found else ending.code

    def _end_leftovers(self) -> bool:
        grace_s = 0.0 if self._told_at is not None else LEFTOVER_GRACE_S
        return end_leftovers(self._spared, grace_s=grace_s, limit_s=grace_s + KILL_GRACE_S)

    def _mark(self, ending: Ending, blamed: int | None = None) -> None:
        page = self.page.read()
        if owner := self._owner.look_at_once():  # whatever else went wrong in an attempt that was given up
            ending, blamed = Ending("superseded", owner, CODE_OF_CLASS["superseded"]), None
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
            stuck="" if blamed is not None else self._why_it_stood_still(page),
            call=page.call,
        )
        if mark.failure == "terminated" and self._has_announced_end:
            return
        # What many ranks say alike (a stop, a hang, a peer that left) stands in the log once.
        is_common = mark.failure in ("stopped", "hang", "superseded") or blamed is not None
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

    def _why_it_stood_still(self, page: Snapshot) -> str:
        # A rank that could go on again takes that back with its beats, but the launcher wakes a rank to end it.
        since, why = self._stood_still
        return why if page.heartbeat < since + WAKE_GRACE_S else ""

    def _node_of(self, rank: int) -> str:
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            return str(read_json(self.attempt.finished / str(rank), limit=4096)["node"])
        return "?"

    def _mark_finished(self, *, is_abrupt: bool = False) -> None:
        if self._is_finished or self._has_announced_end:
            return
        with contextlib.suppress(OSError):  # tried again at the next look
            alone = self.page.was_alone()
            record = {"node": self.node, "time": time.time(), "abrupt": is_abrupt, "alone": alone}
            path = self.attempt.finished / str(self.identity.rank)
            with_reserve(self.attempt.run, MARKS, lambda: write_json(path, record))
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
            if is_told or self._peers.somebody_failed() or self._owner.look(time.monotonic()):
                return 1
            pause = min(pause * 1.5, 1.0)
        if self._owner.look_at_once():
            return 1  # its own DONE, or none: the later attempt's
        with contextlib.suppress(OSError):  # the decision finds out too that all have finished
            with_reserve(self.attempt.run, MARKS, lambda: write_atomic(self.attempt.done, "all ranks ended cleanly\n"))
        return 0


def _code(verdict: Verdict) -> int:
    return CODE_OF_CLASS.get(verdict.failure, 1)
