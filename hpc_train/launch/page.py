"""The shared page: how a program tells the monitor beside it where it stands.

Apart because it is the one thing that program and monitor share: anonymous memory mapped before the fork, so that the
last state can still be read after a SIGKILL. One process writes a field; a torn text is harmless, it is for a person.
Standard library only.
"""

from __future__ import annotations

import contextlib
import itertools
import mmap
import os
import signal
import struct
import threading
import time
from dataclasses import dataclass

__all__ = [
    "FINISHED",
    "RUNNING",
    "STARTING",
    "WAITS_FOR_PEERS",
    "WAITS_FOR_THREAD",
    "Page",
    "Snapshot",
    "attach_page",
    "attached_page",
]

_SIZE = 8192
# Native and aligned, so that each number is written as a whole: state, beats, step, exit code, kind of call;
# heartbeat, moved, phase since, phase limit, call since, thread died at.
_HEAD = struct.Struct("@5q6d")
_NAMES = (
    "state", "beats", "step", "code", "call_kind",
    "heartbeat", "moved", "phase_since", "phase_limit", "call_since", "thread_at",
)  # fmt: skip
# Flags apart from the head: all but the last are written by the monitor while the program writes the head.
_STOP, _WATCHED, _NOTED, _ALONE = 120, 121, 122, 123
_PHASE = (128, 128)  # offset, bytes of each text; the first two bytes hold its length
_CALL = (256, 512)
_CLASS = (768, 64)
_CAUSE = (1024, 4096)
_THREAD = (5120, 1024)

STARTING, RUNNING, FINISHED = 0, 1, 2
WAITS_FOR_PEERS, WAITS_FOR_THREAD = 1, 2


@dataclass(frozen=True)
class Snapshot:
    """The page at one instant. Times are CLOCK_MONOTONIC seconds, which all processes of a node share.

    Attributes:  state: STARTING, RUNNING or FINISHED.   stop: a stop was requested.   beats: number of heartbeats.
    step: None until the program told one.   moved: when its main thread last began or ended a phase.   phase,
    phase_since, phase_limit_s: what it does, since when, and how long that may take (0 = the run's limit).   call,
    call_since: the one call that its main thread has been in since then.   call_kind: what that call waits for, 0 if
    unknown.   thread, thread_at: the last thread that an exception ended, and when.   failure, cause, code: last words.
    """

    state: int
    stop: bool
    beats: int
    step: int | None
    heartbeat: float
    moved: float
    phase: str
    phase_since: float
    phase_limit_s: float
    call: str
    call_kind: int
    call_since: float
    thread: str
    thread_at: float
    failure: str
    cause: str
    code: int


@dataclass(frozen=True)
class _Phase:
    key: int
    name: str
    since: float
    limit_s: float
    is_main: bool


class Page:
    """A page of shared memory; make it before the fork, and let the program's process `attach_page` it."""

    def __init__(self) -> None:
        self._map = mmap.mmap(-1, _SIZE)
        # Phases are entered by prefetching threads too. Re-entrant: a signal handler may tell a step.
        self._lock = threading.RLock()
        self._keys = itertools.count()
        self._phases: list[_Phase] = []
        self._owner: int | None = None
        now = time.monotonic()
        _HEAD.pack_into(self._map, 0, STARTING, 0, -1, 0, 0, now, now, now, 0.0, now, 0.0)
        self.enter("starting")

    def own(self) -> None:
        """Take the page for this process: from then on writes from forked children (data workers) are ignored."""
        self._owner = os.getpid()

    def _is_foreign(self) -> bool:
        return self._owner is not None and self._owner != os.getpid()

    def _update(self, **changes: float) -> None:
        with self._lock:
            values = dict(zip(_NAMES, _HEAD.unpack_from(self._map, 0), strict=True))
            values.update(changes)
            _HEAD.pack_into(self._map, 0, *values.values())

    def _put(self, field: tuple[int, int], text: str) -> None:
        offset, size = field
        data = text.encode(errors="replace")[: size - 2]
        self._map[offset : offset + 2 + len(data)] = struct.pack("=H", len(data)) + data

    def _get(self, field: tuple[int, int]) -> str:
        offset, size = field
        (length,) = struct.unpack_from("=H", self._map, offset)
        return self._map[offset + 2 : offset + 2 + min(length, size - 2)].decode(errors="replace")

    def beat(self, step: int | None = None) -> None:
        """The program is alive and getting on; `step` if it knows one."""
        if self._is_foreign():
            return
        with self._lock:
            (_, beats, *_) = _HEAD.unpack_from(self._map, 0)
            changes: dict[str, float] = {"heartbeat": time.monotonic(), "beats": beats + 1}
            if step is not None:
                changes["step"] = step
            self._update(**changes)

    def enter(self, phase: str, limit_s: float | None = None) -> int:
        """The program begins a phase, inside those it is in already. Returns the key for `leave`."""
        if self._is_foreign():
            return -1
        is_main = threading.current_thread() is threading.main_thread()
        begun = _Phase(next(self._keys), phase, time.monotonic(), limit_s or 0.0, is_main)
        with self._lock:
            self._phases.append(begun)
            self._show(is_main)
        return begun.key

    def leave(self, key: int) -> None:
        """The phase of that key is over."""
        if self._is_foreign():
            return
        with self._lock:
            ended = [phase for phase in self._phases if phase.key == key]
            self._phases = [phase for phase in self._phases if phase.key != key]
            self._show(any(phase.is_main for phase in ended))

    def _show(self, is_main: bool) -> None:
        # The limit that runs out first is the one to watch, even while an inner phase without a limit goes on.
        limited = [phase for phase in self._phases if phase.limit_s]
        own = [phase for phase in self._phases if phase.is_main]
        if limited:
            shown = min(limited, key=lambda phase: phase.since + phase.limit_s)
        else:
            shown = (own or self._phases)[-1]
        self._put(_PHASE, shown.name)
        moved = {"moved": time.monotonic()} if is_main else {}
        self._update(phase_since=shown.since, phase_limit=shown.limit_s, **moved)

    def set_state(self, state: int) -> None:
        """STARTING, RUNNING or FINISHED."""
        if not self._is_foreign():
            self._update(state=state)

    def request_stop(self) -> None:
        """The monitor was asked to stop the program."""
        self._map[_STOP] = 1

    def stop_requested(self) -> bool:
        """Whether the monitor was asked to stop the program."""
        return bool(self._map[_STOP])

    def tell_alone(self) -> None:
        """The program has ended and had nothing to do with other ranks, as far as can be known."""
        self._map[_ALONE] = 1

    def was_alone(self) -> bool:
        """Whether the program has told so."""
        return bool(self._map[_ALONE])

    def watch(self) -> None:
        """A monitor is there and notes last words as soon as it hears of them."""
        self._map[_WATCHED] = 1

    def note(self) -> None:
        """The monitor has written the last words down."""
        self._map[_NOTED] = 1

    def await_note(self, limit_s: float) -> None:
        """Wait until the last words are written down, where a monitor watches; it is this process's parent."""
        if not self._map[_WATCHED]:
            return
        deadline = time.monotonic() + limit_s
        with contextlib.suppress(OSError):
            os.kill(os.getppid(), signal.SIGCHLD)  # wakes it
        while not self._map[_NOTED] and time.monotonic() < deadline:
            time.sleep(0.005)

    def set_call(self, call: str, since: float, kind: int = 0) -> None:
        """The one call that the main thread has been in since then, "" for none; what it waits for."""
        self._put(_CALL, call)
        self._update(call_since=since, call_kind=kind)

    def thread_died(self, cause: str) -> None:
        """A thread other than the main one ended with an exception."""
        if not self._is_foreign():
            self._put(_THREAD, cause)
            self._update(thread_at=time.monotonic())

    def last_words(self, failure: str, cause: str, code: int) -> None:
        """Why the program is about to end, and the exit code that it means to leave with."""
        self._put(_CAUSE, cause)
        self._update(code=code)
        self._put(_CLASS, failure)  # last: whoever sees a class finds the rest

    def read(self) -> Snapshot:
        """The page now."""
        head = dict(zip(_NAMES, _HEAD.unpack_from(self._map, 0), strict=True))
        return Snapshot(
            state=head["state"],
            stop=self.stop_requested(),
            beats=head["beats"],
            step=None if head["step"] < 0 else head["step"],
            heartbeat=head["heartbeat"],
            moved=head["moved"],
            phase=self._get(_PHASE),
            phase_since=head["phase_since"],
            phase_limit_s=head["phase_limit"],
            call=self._get(_CALL),
            call_kind=head["call_kind"],
            call_since=head["call_since"],
            thread=self._get(_THREAD),
            thread_at=head["thread_at"],
            failure=self._get(_CLASS),
            cause=self._get(_CAUSE),
            code=head["code"],
        )


_attached: Page | None = None


def attach_page(page: Page) -> None:
    """Make a page the one of this process; the shim does so in the program's process."""
    global _attached
    page.own()
    _attached = page


def attached_page() -> Page | None:
    """The page of this process, None where no shim started it."""
    return _attached
