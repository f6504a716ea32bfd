"""Texts for people: those of others made fit for one line of a terminal, and times in the two units that matter.

Apart because every command that shows a scheduler's words or a program's errors needs it: an escape sequence in them
would act on the terminal.
"""

from __future__ import annotations

import pwd
import re
from collections.abc import Sequence

from hpc_train.quantities import format_duration

__all__ = ["align", "human_duration", "named_ender", "one_line", "shortened"]

MAX_REASON = 240  # two to three lines of a terminal
# What torch and gloo add to their message: "Exception raised from f at g.cpp:1 (most recent call first): frame #0: …".
_NATIVE_STACK = re.compile(r"Exception raised from .*\bframe #\d+: (?:.*\.so\S*\)|[^;]*)")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


def one_line(text: str) -> str:
    """The text with every run of control characters and line breaks as one blank."""
    return _CONTROL.sub(" ", text)


def shortened(text: str, limit: int = MAX_REASON) -> str:
    """One line of at most so many characters: where a stack of native frames is all that is left out, else the middle.

    What it begins with says what happened; its last part, after a semicolon, what follows or what to do.
    """
    line = " ".join(_NATIVE_STACK.sub(" ", one_line(text)).split()).replace(" ;", ";")
    if len(line) <= limit:
        return line
    end = line.rpartition("; ")[2]
    tail = f" … {end}" if len(end) <= limit // 2 and end != line else " …"
    head = line[: limit - len(tail)]
    return (head[: max(head.rfind(" "), limit // 4)] if " " in head else head).rstrip(" ;,:(") + tail


def named_ender(state: str) -> str:
    """Slurm's "CANCELLED by 501" with that user's name, where this machine knows it."""
    head, by, uid = state.rpartition(" by ")
    try:
        return f"{head}{by}{pwd.getpwuid(int(uid)).pw_name}" if by and uid.isdecimal() else state
    except (KeyError, OverflowError):
        return state


def human_duration(seconds: float) -> str:
    """A duration in at most two units: `3d4h`, `2h5m`, `7m12s`, `45s`."""
    whole = round(seconds)
    unit = 3600 if whole >= 86400 else 60 if whole >= 3600 else 1
    return format_duration(round(whole / unit) * unit)


def align(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of short texts as lines with aligned columns."""
    sizes = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(size) for cell, size in zip(row, sizes, strict=True)).rstrip() for row in rows]
