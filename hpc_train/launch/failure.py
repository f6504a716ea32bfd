"""What an exception means: its class, its exit code, and one line for a person.

Apart from the guard because the texts of errors are data: gloo, NCCL and MPI say "a peer went away" in many ways.
Standard library only.
"""

from __future__ import annotations

import errno
import re
import traceback

from hpc_train.errors import CannotCreateError, HpcTrainError, NoSpaceError, Superseded
from hpc_train.run.marks import class_of_code

__all__ = ["chain_of", "classify_exception", "describe_exception", "one_line"]

MAX_TEXT = 1500

# Errors of torch.distributed and MPI that mean "a peer went away": consequences of another rank's end.
_PEER_LOST = re.compile(
    r"connection (closed|reset|refused)|broken pipe|socket closed|gloo/transport|ncclremoteerror|"
    r"remote process exited|mpi_err_proc_failed|connect refused|peer .{0,40} (closed|lost)|"
    r"failed to recv, got 0 bytes|waiting for clients|timed out waiting \d+ms|socket timeout",
    re.IGNORECASE,
)
# Errors that speak of the machine, not of the program.
_SUSPECT = re.compile(
    r"uncorrectable|fallen off the bus|nvlink|ncclsystemerror|unable to determine the device handle|"
    r"cuda error: (unknown error|system (has unsupported|not yet initialized)|hardware stack error)",
    re.IGNORECASE,
)
_OUT_OF_MEMORY = ("MemoryError", "OutOfMemoryError")  # the second is torch's, which is not imported here
_FILE_SYSTEM = (errno.EIO, errno.ESTALE, errno.EREMOTEIO, errno.ENOLINK, errno.EUCLEAN)


def classify_exception(error: BaseException) -> tuple[str, int]:
    """Class and exit code of what a program raised; ("program", 1) where nothing more is known."""
    if isinstance(error, HpcTrainError):
        if isinstance(error, CannotCreateError) and not isinstance(error, NoSpaceError):
            return "io", 74  # 73 would say that the disk is full: here a directory is gone, or something is in its way
        name = "superseded" if isinstance(error, Superseded) else class_of_code(error.exit_code)
        return name, error.exit_code
    if isinstance(error, KeyboardInterrupt):
        return "terminated", 130
    if any(kind.__name__ in _OUT_OF_MEMORY for kind in type(error).__mro__):
        return "out_of_memory", 1
    # torch.save tells of a full disk with a RuntimeError that was raised while the OSError was handled.
    numbers = [known.errno for known in chain_of(error) if isinstance(known, OSError)]
    if errno.ENOSPC in numbers or errno.EDQUOT in numbers:
        return "no_space", 73
    if isinstance(error, OSError):
        if error.errno in _FILE_SYSTEM:
            return "io", 74
        return ("permission", 77) if isinstance(error, PermissionError) else ("program", 1)
    return _class_of_distributed(error)


def _class_of_distributed(error: BaseException) -> tuple[str, int]:
    kind = type(error)
    is_mpi = kind.__module__.startswith("mpi4py")
    if isinstance(error, RuntimeError) or is_mpi:  # torch's DistBackendError, DistStoreError, … are RuntimeErrors
        text = _text_of(error)
        if _SUSPECT.search(text):
            return "infrastructure", 76
        if _PEER_LOST.search(text):
            return "peer_lost", 76
    return "program", 1


def chain_of(error: BaseException) -> list[BaseException]:
    """The error, what it was raised from or while handling, what that was raised from, and so on."""
    chain: list[BaseException] = []
    known: BaseException | None = error
    while known is not None and len(chain) < 16:  # bounded: a chain can be a ring
        chain.append(known)
        known = known.__cause__ or (None if known.__suppress_context__ else known.__context__)
    return chain


def describe_exception(error: BaseException) -> str:
    """One line: type, text, and the place in the program where it was raised."""
    last = traceback.extract_tb(error.__traceback__)[-1:]
    where = f" ({last[0].filename}:{last[0].lineno})" if last else ""
    text = one_line(_text_of(error))
    return f"{type(error).__name__}: {text}{where}" if text else f"{type(error).__name__}{where}"


def _text_of(error: BaseException) -> str:
    try:
        return str(error)[: 8 * MAX_TEXT]
    except Exception:  # noqa: BLE001 - the user's own __str__ may do anything
        return "<its text cannot be made>"


def one_line(value: object) -> str:
    """A text of any length and content as one short line that a terminal cannot mistake for commands."""
    words = " ".join(str(value)[: 8 * MAX_TEXT].split())
    text = "".join(letter if letter.isprintable() else "?" for letter in words)
    return text if len(text) <= MAX_TEXT else text[:MAX_TEXT] + " …"
