"""How a program ended: from its exit status and its last words to a class, a cause and a code. Pure.

Apart from the monitor, so that each kind of end is a row of a table test. Standard library only.
"""

from __future__ import annotations

import signal
from dataclasses import dataclass

from hpc_train.launch.page import FINISHED, Snapshot
from hpc_train.run.marks import class_of_code, class_of_signal

__all__ = ["Circumstances", "Ending", "how_it_ended"]

WAITING_PHASES = ("start of MPI", "barrier", "broadcast", "allgather", "allreduce")  # of a World
# PMIX_ERR_LOST_CONNECTION (-61) as an exit code: seen with Open MPI 5.0.11 when slurmstepd was killed.
_LOST_LAUNCHER = 195
_TOLD = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGKILL)


@dataclass(frozen=True)
class Circumstances:
    """What was the case when a program ended.

    Attributes:  is_guarded: it was a Python program that ran in the shim's process.   told: it had been told to end
    (SIGTERM) before it finished.   ran_out_of_memory: the kernel killed for want of memory meanwhile.   detached: a
    copy of it lives on in a session of its own.
    """

    is_guarded: bool = True
    told: bool = False
    ran_out_of_memory: bool = False
    detached: bool = False


@dataclass(frozen=True)
class Ending:
    """Class, cause and exit code of an end that is not clean."""

    failure: str
    cause: str
    code: int


def how_it_ended(page: Snapshot, code: int, case: Circumstances) -> Ending | None:
    """The ending of a program; None if it ended cleanly.

    Args:  code: exit code, or minus the signal that ended it, as `os.waitstatus_to_exitcode` gives it.
    """
    if page.failure:
        return Ending(page.failure, page.cause, page.code or 1)
    if page.state == FINISHED and not case.told:
        # A crash in MPI's or a library's clean-up after the program's own end loses nothing.
        return None
    if code == 0 or page.state == FINISHED:
        return _ended_with_zero(case)
    number = -code if code < 0 else code - 128
    is_signal = code < 0 or (not case.is_guarded and number in signal.valid_signals())  # 128 + n: as shells tell it
    if is_signal:
        return _ended_by_signal(number, case)
    if code == _LOST_LAUNCHER and case.is_guarded:  # no Python code left so, or there were last words
        cause = "MPI ended the program: it lost the launcher's daemon on this node (slurmstepd or prted)"
        return Ending("infrastructure", cause, 76)
    failure = class_of_code(code)
    if failure == "program" and case.is_guarded and page.phase in WAITING_PHASES:
        # No Python code left here, or there were last words: MPI itself ends a program whose peer is gone (Open MPI
        # with code 14). That peer has its own mark, but maybe a later one.
        # While it starts it may also be that it cannot start here at all: that it tells in the log.
        starts = " or it cannot start here (see the log)" if page.phase == WAITING_PHASES[0] else ""
        cause = f"ended with code {code} inside {page.phase}, as MPI does when a peer is gone{starts}"
        return Ending("peer_lost", cause, code)
    return Ending(failure, f"the program left with code {code}", code)


def _ended_with_zero(case: Circumstances) -> Ending | None:
    if case.told:
        cause = "left with code 0 after it had been told to end: that does not say that it had finished"
        return Ending("terminated", cause, 128 + signal.SIGTERM)
    if case.detached:
        cause = "the program went to the background and its first process left with code 0; run it in the foreground"
        return Ending("config", cause, 78)
    return None


def _ended_by_signal(number: int, case: Circumstances) -> Ending:
    name = signal.Signals(number).name if number in set(signal.Signals) else f"signal {number}"
    if case.told and number in _TOLD:
        return Ending("terminated", f"ended by {name} by the launcher or the scheduler", 128 + number)
    if number == signal.SIGKILL and case.ran_out_of_memory:
        return Ending("out_of_memory", "ended by SIGKILL: the kernel's memory limit was exceeded", 128 + number)
    return Ending(class_of_signal(number), f"ended by {name}", 128 + number)
