"""The SIGTERM at the start of a preemption's grace time: a program that would die of it lives on, to save.

Apart because it is the program's side of the matter: Slurm signals every process of the step, and only the monitor can
tell this signal from the one that means the end. Standard library only.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

__all__ = ["outlive_first_sigterm"]


def outlive_first_sigterm() -> None:
    """Take the first SIGTERM of this process for a notice; its monitor asks it to stop. The second one ends it.

    Call it in the program's main thread, before the program; one that handles SIGTERM itself replaces this.
    """
    owner = os.getpid()
    was_noticed = False

    def notice(number: int, frame: FrameType | None) -> None:
        nonlocal was_noticed
        if os.getpid() == owner and not was_noticed:
            was_noticed = True
            return
        # The second one, or a forked process of the program's own, as which it is not waited for.
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, notice)
