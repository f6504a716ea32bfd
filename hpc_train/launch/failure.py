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
_MAX_CHAIN = 64
# Of several exceptions at once: consequences and requests tell least, a class that says nothing little more.
_LEAST_TELLING = ("terminated", "peer_lost", "stopped", "program")
_OUT_OF_MEMORY = ("MemoryError", "OutOfMemoryError")  # the second is torch's, which is not imported here
_FILE_SYSTEM = (errno.EIO, errno.ESTALE, errno.EREMOTEIO, errno.ENOLINK, errno.EUCLEAN)


def classify_exception(error: BaseException) -> tuple[str, int]:
    """Class and exit code of what a program raised; ("program", 1) where nothing more is known.

    Of a group (a TaskGroup's, an executor's) the member that tells most counts.
    """
    # torch.save tells of a full disk with a RuntimeError that was raised while the OSError was handled.
    numbers = [known.errno for known in chain_of(error) if isinstance(known, OSError)]
    error = _most_telling(error)
    if isinstance(error, HpcTrainError):
        if isinstance(error, CannotCreateError) and not isinstance(error, NoSpaceError):
            return "io", 74  # 73 would say that the disk is full: here a directory is gone, or something is in its way
        name = "superseded" if isinstance(error, Superseded) else class_of_code(error.exit_code)
        return name, error.exit_code
    if isinstance(error, KeyboardInterrupt):
        return "terminated", 130
    if any(kind.__name__ in _OUT_OF_MEMORY for kind in type(error).__mro__):
        return "out_of_memory", 1
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


def _most_telling(error: BaseException) -> BaseException:
    """Of a group the member, or the member of one in it, that says best what went wrong; else the error itself."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    members = [known for known in _walk(error, of_causes=False) if not isinstance(known, BaseExceptionGroup)]

    def weight(member: BaseException) -> int:
        failure = classify_exception(member)[0]
        return _LEAST_TELLING.index(failure) if failure in _LEAST_TELLING else len(_LEAST_TELLING)

    return max(members, key=weight, default=error)  # of equals the first


def chain_of(error: BaseException) -> list[BaseException]:
    """The error, what it was raised from or while handling, and so on; of groups the members too."""
    return _walk(error, of_causes=True)


def _walk(error: BaseException, *, of_causes: bool) -> list[BaseException]:
    found: list[BaseException] = []
    waiting = [error]
    while waiting and len(found) < _MAX_CHAIN:  # bounded: a user's own group can hold any number
        known = waiting.pop(0)
        if any(known is each for each in found):  # a chain can be a ring
            continue
        found.append(known)
        waiting += known.exceptions if isinstance(known, BaseExceptionGroup) else ()
        cause = known.__cause__ or (None if known.__suppress_context__ else known.__context__)
        waiting += [cause] if of_causes and cause is not None else ()
    return found


def describe_exception(error: BaseException) -> str:
    """One line: type, text, and the place in the program where it was raised; of a group, its most telling member's."""
    if (told := _most_telling(error)) is not error:
        return one_line(f"{describe_exception(told)}, in {type(error).__name__}: {_text_of(error)}")
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
