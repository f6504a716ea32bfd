"""How an earlier job of the run ended, asked of Slurm where no batch shell lived to say so.

Apart because a job that goes on after another must not do so if a person cancelled that one, and must if a node or a
preemption ended it; only the scheduler tells the two apart. Standard library only.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass

from hpc_train.recovery.outside import ender_of_state, find_state

__all__ = ["Answer", "ask_ender", "ask_slurm"]

TIMEOUT_S = 30.0
_OPTION_PREFIXES = ("SACCT_", "SBATCH_", "SCONTROL_", "SINFO_", "SQUEUE_")


@dataclass(frozen=True)
class Answer:
    """What a command of Slurm's answered: its output, and what it said beside; not good where it failed."""

    is_good: bool
    text: str
    said: str


def ask_ender(job_id: str) -> str:
    """Who ended a job of Slurm from outside, in recovery/outside's words; "" if nobody, or nobody knows any more.

    The controller first: accounting lags behind by seconds, but the controller forgets a job after some minutes.
    """
    if not job_id.isdecimal():
        return ""
    state = find_state(_text("scontrol", "--oneliner", "show", "job", job_id))
    if not state:
        state = _text("sacct", "--noheader", "--allocations", "--parsable2", "--format=State", f"--jobs={job_id}")
    return ender_of_state(state)


def _text(*argv: str) -> str:
    answer = ask_slurm(*argv)
    return answer.text if answer.is_good else ""


def ask_slurm(*argv: str, timeout_s: float = TIMEOUT_S) -> Answer:
    """Run one of Slurm's commands, without the options that the environment may hold for it."""
    environ = {name: value for name, value in os.environ.items() if not name.startswith(_OPTION_PREFIXES)}
    try:
        done = subprocess.run(
            argv,
            env=environ,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return Answer(is_good=False, text="", said=str(error))
    return Answer(done.returncode == 0, done.stdout, done.stderr)
