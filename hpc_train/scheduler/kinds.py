"""Which back end a site's `scheduler.kind` means.

Apart from the protocol, which the back ends import themselves.
"""

from __future__ import annotations

from hpc_train.errors import SiteError
from hpc_train.scheduler.backend import Backend

__all__ = ["make_backend"]


def make_backend(kind: str) -> Backend:
    """The backend of a site's `scheduler.kind`. Raises: SiteError."""
    if kind == "slurm":
        from hpc_train.scheduler.slurm.commands import SlurmBackend  # only the one that is needed

        return SlurmBackend()
    if kind == "local":
        from hpc_train.scheduler.local.backend import LocalBackend

        return LocalBackend()
    raise SiteError(f"scheduler.kind = {kind!r}: allowed: slurm, local")
