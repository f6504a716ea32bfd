"""Ends what a supervisor that was killed left of its run: the batch shell, the launcher, the ranks.

Apart because a dead supervisor reaps nothing: its ranks would train on with nobody to hear of it, beside the next
submission or after a cancel. Reads /proc only; processes of other machines are not seen. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from pathlib import Path

from hpc_train.run.layout import RunDir

__all__ = ["end_orphans"]

TERM_WAIT_S = 10.0  # ranks are killed 3 s after SIGTERM; then the shell decides
KILL_WAIT_S = 5.0
_OURS = (b"run", b"begin", b"decide")


def end_orphans(run: RunDir) -> bool:
    """End every process of a run on this machine; call it only where no supervisor holds a lock of the run.

    Returns: whether none is left. One that is stuck in the kernel takes no signal.
    """
    for number, wait_s in ((signal.SIGTERM, TERM_WAIT_S), (signal.SIGKILL, KILL_WAIT_S)):
        deadline = time.monotonic() + wait_s
        told: set[int] = set()
        while found := _find(run):
            # SIGTERM to the outermost alone: a launcher that hears it twice gives up on an orderly end.
            chosen = found if number == signal.SIGKILL else {p: up for p, up in found.items() if up not in found}
            for pid in set(chosen) - told:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, number)
            told |= set(chosen)
            if time.monotonic() > deadline:
                break
            time.sleep(0.05)
        else:
            return True
    return False


def _find(run: RunDir) -> dict[int, int]:
    """This user's processes of the run, each with its parent."""
    found: dict[int, int] = {}
    for name in os.listdir("/proc"):
        if not name.isdecimal() or int(name) == os.getpid():
            continue
        with contextlib.suppress(OSError, ValueError, IndexError):
            entry = Path("/proc", name)
            if entry.stat().st_uid == os.getuid() and _is_of_run((entry / "cmdline").read_bytes(), run):
                state, parent = (entry / "stat").read_text(errors="replace").rpartition(")")[2].split()[:2]
                if state != "Z":
                    found[int(name)] = int(parent)
    return found


def _is_of_run(cmdline: bytes, run: RunDir) -> bool:
    argv = cmdline.split(b"\0")
    path = os.fsencode(run.path)
    if any(argv[i : i + 3] == [b"hpc_train", word, path] for i in range(len(argv)) for word in _OURS):
        return True  # a launcher too: it has the ranks' command line at the end of its own
    is_shell = os.path.basename(argv[0]) == b"bash" and len(argv) > 1
    return is_shell and argv[1].startswith(path + b"/submission-") and argv[1].endswith(b"/script.sbatch")
