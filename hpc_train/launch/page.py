"""The shared page: how a program tells the monitor beside it where it stands.

Apart because it is the one thing that program and monitor share: anonymous memory mapped before the fork, so that the
last state can still be read after a SIGKILL. Single writer a field; a torn text is harmless, it is for a person.
Standard library only.
"""

from __future__ import annotations

import mmap
import struct
import threading
import time
from dataclasses import dataclass

__all__ = ["Page", "Snapshot", "attach_page", "attached_page"]

_SIZE = 8192
_HEAD = struct.Struct("=IIqdddd")  # state, beats, step, heartbeat, phase since, phase limit, call since
_STOP = 96  # a flag apart from the head: the monitor writes it while the program writes the head
_PHASE = (128, 128)  # offset, bytes of each text; the first two bytes hold its length
_CALL = (256, 512)
_CLASS = (768, 64)
_CAUSE = (1024, 4096)

STARTING, RUNNING, FINISHED = 0, 1, 2


@dataclass(frozen=True)
class Snapshot:
    """The page at one instant. Times are CLOCK_MONOTONIC seconds, which all processes of a node share.

    Attributes:  state: STARTING, RUNNING or FINISHED.   stop: a stop was requested.   beats: number of heartbeats.
    step: None until the program told one.   phase, phase_since, phase_limit_s: what it does, since when, and how long
    that may take (0 = the run's limit).   call, call_since: the blocking call its main thread sits in, as last sampled.
    failure, cause: its last words.
    """

    state: int
    stop: bool
    beats: int
    step: int | None
    heartbeat: float
    phase: str
    phase_since: float
    phase_limit_s: float
    call: str
    call_since: float
    failure: str
    cause: str


class Page:
    """A page of shared memory; make it before the fork."""

    def __init__(self) -> None:
        self._map = mmap.mmap(-1, _SIZE)
        # Phases are entered by prefetching threads too; their order must not tear the head.
        self._lock = threading.Lock()
        now = time.monotonic()
        _HEAD.pack_into(self._map, 0, STARTING, 0, -1, now, now, 0.0, now)
        self.enter("starting")

    def _update(self, **changes: float) -> None:
        names = ("state", "beats", "step", "heartbeat", "phase_since", "phase_limit", "call_since")
        with self._lock:
            values = dict(zip(names, _HEAD.unpack_from(self._map, 0), strict=True))
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
        (_, beats, *_) = _HEAD.unpack_from(self._map, 0)
        changes: dict[str, float] = {"heartbeat": time.monotonic(), "beats": beats + 1}
        if step is not None:
            changes["step"] = step
        self._update(**changes)

    def enter(self, phase: str, limit_s: float | None = None) -> tuple[str, float]:
        """The program begins a phase. Returns the phase before it, for `enter` at its end."""
        (*_, limit, _) = _HEAD.unpack_from(self._map, 0)
        before = (self._get(_PHASE), limit)
        self._put(_PHASE, phase)
        self._update(phase_since=time.monotonic(), phase_limit=limit_s or 0.0)
        return before

    def set_state(self, state: int) -> None:
        """STARTING, RUNNING or FINISHED."""
        self._update(state=state)

    def request_stop(self) -> None:
        """The monitor was asked to stop the program."""
        self._map[_STOP] = 1

    def stop_requested(self) -> bool:
        """Whether the monitor was asked to stop the program."""
        return bool(self._map[_STOP])

    def set_call(self, call: str, since: float) -> None:
        """The blocking call that the main thread sits in, "" for none."""
        self._put(_CALL, call)
        self._update(call_since=since)

    def last_words(self, failure: str, cause: str) -> None:
        """Why the program is about to end."""
        self._put(_CLASS, failure)
        self._put(_CAUSE, cause)

    def read(self) -> Snapshot:
        """The page now."""
        state, beats, step, heartbeat, phase_since, phase_limit, call_since = _HEAD.unpack_from(self._map, 0)
        return Snapshot(
            state=state,
            stop=self.stop_requested(),
            beats=beats,
            step=None if step < 0 else step,
            heartbeat=heartbeat,
            phase=self._get(_PHASE),
            phase_since=phase_since,
            phase_limit_s=phase_limit,
            call=self._get(_CALL),
            call_since=call_since,
            failure=self._get(_CLASS),
            cause=self._get(_CAUSE),
        )


_attached: Page | None = None


def attach_page(page: Page) -> None:
    """Make a page the one of this process; the shim does so in the program's process."""
    global _attached
    _attached = page


def attached_page() -> Page | None:
    """The page of this process, None where no shim started it."""
    return _attached
