"""A World over MPI ranks.

Apart because only this module calls mpi4py's collectives; MPI carries small records here, never gradients.
"""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, TypeVar

from hpc_train.bootstrap.attached import AttachedWorld
from hpc_train.bootstrap.attachment import Attachment, find_attachment
from hpc_train.errors import SiteError

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["MpiWorld", "require_company"]

T = TypeVar("T")


class MpiWorld(AttachedWorld):
    """The ranks of a communicator. Collective to make: duplicates the communicator, splits it by node.

    Args:  comm: an mpi4py intracommunicator; MPI.COMM_WORLD as a rule.   attachment: None reads the environment.
    Attributes:  mpi: the duplicate that is this World's own, for MPI-IO.
    """

    def __init__(self, comm: MPI.Intracomm, attachment: Attachment | None = None) -> None:
        from mpi4py import MPI

        own = comm.Dup()
        # Shared memory, not equal host names, tells who is on one node.
        on_node = own.Split_type(MPI.COMM_TYPE_SHARED, key=own.rank)
        super().__init__(
            find_attachment(own.rank) if attachment is None else attachment,
            rank=own.rank,
            size=own.size,
            local=(on_node.rank, on_node.size),
            node=socket.gethostname(),
        )
        on_node.Free()
        self.mpi: MPI.Intracomm = own
        self._ops = {"sum": MPI.SUM, "min": MPI.MIN, "max": MPI.MAX}

    def barrier(self) -> None:
        """Wait for all ranks. Collective."""
        with self.phase("barrier"):
            self.mpi.Barrier()

    def broadcast(self, value: T, root: int = 0) -> T:
        """The root's value on every rank. Collective."""
        with self.phase("broadcast"):
            result: T = self.mpi.bcast(value, root=root)
        return result

    def allgather(self, value: T) -> list[T]:
        """Every rank's value in rank order. Collective."""
        with self.phase("allgather"):
            result: list[T] = self.mpi.allgather(value)
        return result

    def allreduce(self, value: int | float, op: str = "sum") -> int | float:
        """Sum, "min" or "max" over the ranks; Python integers stay exact at any size. Collective."""
        with self.phase("allreduce"):
            result: int | float = self.mpi.allreduce(value, op=self._ops[op])
        return result


def require_company(comm: MPI.Intracomm, declared_size: int, mode: str) -> None:
    """Refuse an MPI world of another size than declared: each rank would train alone, or wait for ever.

    Args:  mode: the declared launch mode, "pmix", "pmi2", "mpirun", …
    Raises: SiteError with cause and remedy; its code 78 keeps the run from being started again as it is.
    """
    if comm.size == declared_size:
        return
    raise SiteError(
        f"MPI says rank {comm.rank} of {comm.size}, but {declared_size} ranks were declared (launch mode {mode!r}): "
        "this MPI does not speak the launcher's protocol, so every rank is a world of its own. "
        "Set the site's launch.mpi to what the MPI needs (Open MPI: pmix, MPICH: pmi2) or use its own mpirun"
    )
