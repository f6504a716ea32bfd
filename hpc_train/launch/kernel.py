"""What the kernel is asked about the processes of a rank: their state, their children, out-of-memory kills.

Apart because every line is Linux's /proc, prctl or cgroup, and none of it decides anything. Standard library only.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from pathlib import Path

__all__ = ["become_subreaper", "count_oom_kills", "end_leftovers", "is_stuck_state", "process_state", "tie_to_parent"]

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36  # prctl(2)
_STATES = {"T": "stopped by a signal", "t": "stopped by a debugger", "D": "stuck in the kernel (file system, device)"}


def become_subreaper() -> None:
    """Orphans below this process come to it, whatever session they moved to, so that it can end them."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def tie_to_parent(parent: int) -> None:
    """This process dies with its parent, also where the parent is gone already."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(128 + signal.SIGKILL)


def process_state(pid: int) -> str:
    """The state letter of a process (proc(5)): R, S, D, T, …; "" where there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return ""


def is_stuck_state(state: str) -> str:
    """In words, why a process in that state does not go on; "" where it may."""
    return _STATES.get(state, "")


def _children() -> list[int]:
    with contextlib.suppress(OSError):
        return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
    return []


def end_leftovers(spared: int | None, *, grace_s: float, limit_s: float) -> bool:
    """End and reap every process that is still below this one (a subreaper) once its program has ended.

    Args:  spared: a child of ours that goes on.   grace_s: they may clean up so long, as multiprocessing's resource
    tracker does with shared memory.   limit_s: then this gives up: a process stuck in the kernel takes no signal.
    Returns: whether one had to be killed that ran this very interpreter in a session of its own: a daemon.
    """
    has_daemon = False
    began = time.monotonic()
    while time.monotonic() - began < limit_s:
        _reap(spared)
        left = [pid for pid in _children() if pid != spared]
        if not left:
            break
        if time.monotonic() - began >= grace_s:
            for pid in left:  # their own children come to us next
                has_daemon = has_daemon or _is_detached_copy(pid)
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)
    return has_daemon


def _is_detached_copy(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return os.getsid(pid) != os.getsid(0) and os.readlink(f"/proc/{pid}/exe") == os.readlink("/proc/self/exe")
    return False


def _reap(spared: int | None) -> None:
    for pid in _children():
        if pid != spared:
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)


def count_oom_kills() -> int:
    """How many processes of this cgroup the kernel has killed for want of memory; 0 where nothing tells.

    Source: cgroup-v2.rst (memory.events, oom_kill); memory.oom_control of version 1 has the same line since Linux 4.13.
    """
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/self/cgroup").read_text().splitlines():
            number, controllers, path = line.split(":", 2)
            if "memory" in controllers.split(","):
                return _oom_kill_line(Path("/sys/fs/cgroup/memory" + path, "memory.oom_control"))
            if number == "0" and (events := Path("/sys/fs/cgroup" + path, "memory.events")).exists():
                return _oom_kill_line(events)
    return 0


def _oom_kill_line(path: Path) -> int:
    for line in path.read_text().splitlines():
        name, _, value = line.partition(" ")
        if name == "oom_kill":
            return int(value)
    return 0
