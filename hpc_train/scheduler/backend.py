"""What every scheduler must be able to do, and the states that all of them speak in.

Apart so that commands ask one protocol and never which scheduler it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from hpc_train.errors import SiteError
from hpc_train.run.layout import RunDir, SubmissionDir

__all__ = ["STATES", "Backend", "JobState", "job_environment", "make_backend"]

STATES = (
    "pending", "running", "completing", "requeued", "held", "completed", "failed", "cancelled", "timeout",
    "out_of_memory", "node_fail", "preempted", "unknown",
)  # fmt: skip


@dataclass(frozen=True)
class JobState:
    """What a scheduler says of a job.

    Attributes:  state: one of STATES; "unknown" where the scheduler no longer knows it, which is not "completed".
    raw: its own word.   reason: why it waits or ended, in its own words.   nodes: host list, "" if none.
    """

    state: str
    raw: str = ""
    reason: str = ""
    nodes: str = ""

    @property
    def is_live(self) -> bool:
        """Whether the job may still do something by itself."""
        return self.state in ("pending", "running", "completing", "requeued")


class Backend(Protocol):
    """One scheduler."""

    def submit(self, run: RunDir, submission: SubmissionDir, environ: Mapping[str, str]) -> str:
        """Hand over the submission's script; returns the job id. Raises: SchedulerError, nothing submitted."""

    def states(self, job_ids: Sequence[str]) -> dict[str, JobState]:
        """The state of each job, "unknown" for those it does not know. Raises: SchedulerError."""

    def cancel(self, job_id: str) -> None:
        """End a job. A job that has ended already is no error. Raises: SchedulerError."""

    def requeue(self, job_id: str, state: JobState) -> bool:
        """Start a known job again (release it if held); False if it must be submitted anew. Raises: SchedulerError."""


def make_backend(kind: str) -> Backend:
    """The backend of a site's `scheduler.kind`. Raises: SiteError."""
    if kind == "slurm":
        from hpc_train.scheduler.slurm.commands import SlurmBackend  # noqa: PLC0415 - only the one that is needed

        return SlurmBackend()
    if kind == "local":
        from hpc_train.scheduler.local.backend import LocalBackend  # noqa: PLC0415

        return LocalBackend()
    raise SiteError(f"scheduler.kind = {kind!r}: allowed: slurm, local")


# What a batch script may need of the login shell. Everything else passes by name only ([env] pass): an inherited
# SLURM_CPU_BIND or PMIX_RANK of the shell one submits from breaks the job in ways that take days to find.
_KEPT = frozenset(
    "PATH HOME USER LOGNAME SHELL LANG LANGUAGE TERM TZ TMPDIR LD_LIBRARY_PATH MANPATH MODULEPATH MODULESHOME "
    "LOADEDMODULES _LMFILES_ SLURM_CONF HPC_TRAIN_SITES XDG_STATE_HOME XDG_CONFIG_HOME XDG_CACHE_HOME "
    "http_proxy https_proxy no_proxy".split()
)
_KEPT_PREFIXES = ("LC_", "LMOD_", "BASH_FUNC_module", "BASH_FUNC_ml")


def job_environment(environ: Mapping[str, str], pass_names: Sequence[str]) -> dict[str, str]:
    """The part of the submitting shell's environment that travels with a job: a base set, and what is named.

    Args:  pass_names: [env] pass of the job file; names that are not set are left out.
    """
    return {
        name: value
        for name, value in environ.items()
        if name in _KEPT or name.startswith(_KEPT_PREFIXES) or name in pass_names
    }
