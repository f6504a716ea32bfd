"""Where a rank's words go: the node's log, and the monitor's own sentences, which must never block.

Apart because both exist for the same fault: an mpirun that is slow to pass output on, or stuck, holds up whoever
writes to it. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import select

from hpc_train.run.layout import AttemptDir

__all__ = ["say", "write_to_node_log"]

SAY_WAIT_MS = 1000
MAX_SAY_BYTES = 4096  # PIPE_BUF: a pipe that is writable takes so much without blocking (pipe(7))


def write_to_node_log(attempt: AttemptDir, node: str) -> None:
    """Let stdout and stderr of this process and its children be the node's log.

    mpirun of Open MPI 5 would keep output until a newline comes, which progress bars never write, copies all of it at
    each piece that is added, and makes stdout a terminal. Without effect where the log cannot be opened.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    with contextlib.suppress(OSError):
        fd = os.open(attempt.logs / f"{node.partition('.')[0]}.log", flags, 0o666)
        os.dup2(fd, 1)
        os.dup2(fd, 2)
        os.close(fd)


def say(text: str) -> None:
    """One line on stderr; left out where nobody takes it: exit marks tell the same."""
    with contextlib.suppress(OSError):
        data = f"hpc-train: {text}".encode(errors="replace")[: MAX_SAY_BYTES - 1] + b"\n"
        poll = select.poll()
        poll.register(2, select.POLLOUT)
        if poll.poll(SAY_WAIT_MS):
            os.write(2, data)
