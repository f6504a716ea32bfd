"""The one error of this tool, and the exit codes it leaves with.

Apart from the rest so that every part can raise it without importing another part.
"""

import shlex
import sys

EXIT_WRONG_USE = 2
EXIT_UNAVAILABLE = 69
EXIT_NOT_PERMITTED = 77


def tool() -> str:
    """This tool as it was called, so that a command in a message can be pasted into the same shell."""
    return shlex.quote(sys.argv[0])


class ClusterError(Exception):
    """What the user has to know: what is wrong and what to do about it.

    The command line prints the message after the tool's name and leaves with `exit_code`.
    """

    def __init__(self, message: str, *, exit_code: int = EXIT_UNAVAILABLE) -> None:
        super().__init__(message)
        self.exit_code = exit_code
