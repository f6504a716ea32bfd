"""The exceptions of hpc-train and the exit code each one leaves the process with.

They stand in one file so that a reader learns the whole vocabulary of failure at once:

    HpcTrainError                    exit code
    ├── UsageError                    2   wrong flags or arguments
    ├── SpecError                    78   the user's job file or request is wrong
    ├── SiteError                    78   the site file is wrong
    ├── DataError                    65   a dataset is damaged, missing or not what it claims
    ├── CheckpointError              65   a checkpoint is damaged, missing or not what it claims
    ├── SchedulerError               69   the scheduler refused or did not answer (transient: may be asked again)
    ├── CannotCreateError            73   a file or directory cannot be created
    │   └── NoSpaceError             73   the file system or a quota is full
    ├── StorageError                 74   reading or writing failed
    ├── Stopped                      75   stopped on request after a save: run again
    ├── InfrastructureError          76   the machine is suspect: run again elsewhere
    │   ├── BootstrapError           76   ranks cannot find each other
    │   └── Superseded               76   another attempt owns the run now
    ├── PermissionDeniedError        77   not allowed
    └── InternalError                70   our own bug

A message says where, what was given, what is allowed and what to do. Codes follow sysexits.h where it has one.
"""

from __future__ import annotations

import errno

__all__ = [
    "BootstrapError",
    "CannotCreateError",
    "CheckpointError",
    "DataError",
    "HpcTrainError",
    "InfrastructureError",
    "InternalError",
    "NoSpaceError",
    "PermissionDeniedError",
    "SchedulerError",
    "SiteError",
    "SpecError",
    "Stopped",
    "StorageError",
    "Superseded",
    "UsageError",
    "from_os_error",
]


class HpcTrainError(Exception):
    """Base of every error that hpc-train raises on purpose; `exit_code` is what the process leaves with."""

    exit_code: int = 70


class InternalError(HpcTrainError):
    """A state that our own code must never reach."""


class UsageError(HpcTrainError):
    """Wrong flags or arguments on the command line."""

    exit_code = 2


class SpecError(HpcTrainError):
    """The user's request (job file, flag, quantity) is wrong."""

    exit_code = 78


class SiteError(HpcTrainError):
    """A site file is wrong or missing."""

    exit_code = 78


class DataError(HpcTrainError):
    """A dataset is damaged, missing or not what its manifest says."""

    exit_code = 65


class CheckpointError(HpcTrainError):
    """A checkpoint is damaged, missing or does not fit what it is loaded into."""

    exit_code = 65


class SchedulerError(HpcTrainError):
    """The scheduler refused a request or did not answer.

    Args:  transient: True where the same call may succeed later (time-out, controller down).
    """

    exit_code = 69

    def __init__(self, message: str, *, transient: bool = False) -> None:
        super().__init__(message)
        self.transient = transient


class CannotCreateError(HpcTrainError):
    """A file or directory cannot be created."""

    exit_code = 73


class NoSpaceError(CannotCreateError):
    """The file system, its inodes or a quota is full."""


class StorageError(HpcTrainError):
    """Reading or writing a file failed."""

    exit_code = 74


class Stopped(HpcTrainError):
    """The program saved its state because it was asked to stop; the run continues in the next attempt."""

    exit_code = 75


class InfrastructureError(HpcTrainError):
    """The machine, not the program, is suspect: the run should go on elsewhere."""

    exit_code = 76


class BootstrapError(InfrastructureError):
    """The ranks of one attempt cannot find each other."""


class Superseded(InfrastructureError):
    """Another attempt owns the run now; this one must not write to it any more."""


class PermissionDeniedError(HpcTrainError):
    """The operating system or the site does not allow it."""

    exit_code = 77


def from_os_error(error: OSError, doing: str) -> HpcTrainError:
    """The typed error for an OSError, so that a full disk and a missing right keep their own exit codes.

    Args:  doing: what was attempted, with the path: "cannot write /scratch/run/index.json".
    Returns: the error to raise `from` the original; never raises.
    """
    message = f"{doing}: {error.strerror or error}"
    if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return NoSpaceError(f"{message}; free space or raise the quota, then run again")
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return PermissionDeniedError(message)
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.EEXIST, errno.EISDIR):
        return CannotCreateError(message)
    return StorageError(message)
