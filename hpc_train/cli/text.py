"""Text of others (a scheduler's words, a program's errors) made fit for one line of a terminal.

Apart because every command that shows such text needs it: an escape sequence in it would act on the terminal.
"""

from __future__ import annotations

import re

__all__ = ["one_line"]

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]+")


def one_line(text: str) -> str:
    """The text with every run of control characters and line breaks as one blank."""
    return _CONTROL.sub(" ", text)
