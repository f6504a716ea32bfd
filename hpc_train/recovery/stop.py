"""StopRequest: a warning (wall time, preemption, a user's request) that all ranks hear at the same step.

Apart because a signal reaches ranks at different instants, or while they still import: a handler only notes it, the
ranks agree between two steps, and the program saves and leaves by raising Stopped.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any

from hpc_train.errors import Stopped
from hpc_train.files import read_json, write_json
from hpc_train.launch.page import attached_page
from hpc_train.run.layout import RunDir
from hpc_train.world import World

__all__ = ["StopRequest"]

RECORD_PERIOD_S = 10.0  # a look at the run directory every so often costs a shared file system little


class StopRequest:
    """Whether this attempt was asked to stop.

    Make it once, early. Under the launch shim it hears from the rank's monitor, which takes the signal itself;
    elsewhere it installs a handler for SIGUSR2 (only from the main thread). A request that came before it existed is
    heard too.

    Attributes:  reason: "" until agreed; then e.g. "wall time".
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._heard = False
        self._page = attached_page()
        self.reason = ""
        self._deadline: float | None = None
        run_dir = os.environ.get("HPC_TRAIN_RUN_DIR")
        self._attempt = RunDir(Path(run_dir)).attempt(world.attempt) if run_dir else None
        self._record = self._attempt.stop if self._attempt is not None else None
        self._next_look = 0.0
        # No handler where the page tells: spawned data workers inherit SIG_IGN, but would lose a handler and die.
        if self._page is None and threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGUSR2, self._hear)  # USR2, not USR1: NCCL may use USR1

    def _hear(self, number: int, frame: FrameType | None) -> None:
        self._heard = True

    def heard(self) -> bool:
        """Whether this rank alone has heard of a request. Not collective; other ranks may not know yet."""
        if not self._heard:
            told = self._page.stop_requested() if self._page is not None else False
            self._heard = told or self._is_recorded()
        return self._heard

    def _is_recorded(self) -> bool:
        # The record comes before the signal, and also where a wrapper script swallowed that.
        now = time.monotonic()
        if self._record is None or now < self._next_look:
            return False
        self._next_look = now + RECORD_PERIOD_S
        return self._record.exists()

    def agreed(self) -> bool:
        """Whether any rank has heard of a request: the same answer on all ranks. Collective; call it between steps."""
        if not self._world.allreduce(int(self.heard()), "max"):
            return False
        self._heard = True
        if not self.reason:
            self.reason, self._deadline = self._world.broadcast(self._read())
            if self._attempt is not None and self._page is None:
                _note_stopped(self._attempt.stopped)
        return True

    def _read(self) -> tuple[str, float | None]:
        try:
            record: dict[str, Any] = read_json(self._record, limit=4096) if self._record is not None else {}
            deadline = record.get("deadline")
            return str(record["reason"]), float(deadline) if deadline else None
        except (OSError, ValueError, KeyError, TypeError):
            return "signal", None

    @property
    def seconds_left(self) -> float | None:
        """Seconds until the attempt is ended by force; None where nobody said."""
        return None if self._deadline is None else max(0.0, self._deadline - time.time())


def _note_stopped(path: Path) -> None:
    """Have an uncaught Stopped written down: what stands between (torchrun, a script) makes a code of its own of it."""
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if isinstance(error, Stopped):
            with contextlib.suppress(OSError):
                write_json(path, {"message": f"{kind.__name__}: {error}"}, durable=False)
        before(kind, error, trace)

    sys.excepthook = hook
