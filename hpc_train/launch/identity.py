"""Which rank this process is, from the launcher's environment.

Apart because variable names are data: a new launcher is a new row, not a new branch. Read from the declared launcher's
row only: under mpirun inside a Slurm job the SLURM_* variables of the batch step are there too, and say rank 0 of 1.
Standard library only.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from hpc_train.errors import SpecError

__all__ = ["Identity", "find_identity", "guess_launcher", "guess_rank", "guess_size"]


@dataclass(frozen=True)
class Identity:
    """Rank, number of ranks, and the same within the node; node_rank is the node's number in this attempt."""

    rank: int
    size: int
    local_rank: int
    local_size: int
    node_rank: int
    num_nodes: int = 1


# launcher -> variables of each number; several where versions or MPIs differ, the first that is set counts
_VARIABLES: dict[str, dict[str, tuple[str, ...]]] = {
    "srun": {
        "rank": ("SLURM_PROCID",),
        "size": ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"),
        "local_rank": ("SLURM_LOCALID",),
        "node_rank": ("SLURM_NODEID",),
    },
    "mpirun": {
        "rank": ("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"),
        "size": ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE"),
        "local_rank": ("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"),
        "node_rank": (),
    },
}

_REMEDY = {
    "srun": "start it with srun, as the batch script does",
    "mpirun": "start it with the mpirun of the MPI that mpi4py is built for (see the batch script)",
}


def find_identity(launcher: str, declared_size: int, ranks_per_node: int, environ: Mapping[str, str]) -> Identity:
    """The rank's identity under the declared launcher.

    Args:  launcher: "srun", "mpirun", or "none" for a single process.   declared_size: ranks that the submission asked
    for.   ranks_per_node: the same per node; ranks are dealt to nodes in blocks, and the last node may have fewer.
    Raises: SpecError if the launcher did not start `declared_size` ranks: this rank would wait for ever for the others,
    or train alone on a wrong world.
    """
    if launcher == "none":
        if declared_size != 1:
            raise SpecError(f"launcher 'none' starts 1 rank, but {declared_size} ranks were declared")
        return Identity(0, 1, 0, 1, 0)
    if launcher not in _VARIABLES:
        raise SpecError(f"launcher {launcher!r} is not known; there are srun, mpirun and none")
    found = {key: _first(names, environ) for key, names in _VARIABLES[launcher].items()}
    rank, size, local_rank, node_rank = (found[key] for key in ("rank", "size", "local_rank", "node_rank"))
    if rank is None or size != declared_size or rank >= declared_size:
        seen = "no rank at all" if rank is None or size is None else f"rank {rank} of {size}"
        raise SpecError(
            f"this process is alone or in the wrong company: {launcher} made it {seen}, "
            f"but the submission declared {declared_size} ranks; {_REMEDY[launcher]}"
        )
    per_node = max(1, min(ranks_per_node, declared_size))
    node_rank = rank // per_node if node_rank is None else node_rank
    return Identity(
        rank=rank,
        size=declared_size,
        local_rank=rank % per_node if local_rank is None else local_rank,
        local_size=min(per_node, max(1, declared_size - node_rank * per_node)),
        node_rank=node_rank,
        num_nodes=-(-declared_size // per_node),
    )


def _first(names: tuple[str, ...], environ: Mapping[str, str]) -> int | None:
    for name in names:
        text = environ.get(name, "")
        if text.isdecimal() and text.isascii():
            return int(text)
    return None


def guess_launcher(environ: Mapping[str, str] | None = None) -> str:
    """The launcher that seems to have started this process, where none was declared: a program started by hand."""
    env = os.environ if environ is None else environ
    if "OMPI_COMM_WORLD_SIZE" in env or "PMI_SIZE" in env:
        return "mpirun"
    if "SLURM_STEP_ID" in env and _first(("SLURM_PROCID",), env) is not None:
        return "srun"
    return "none"


def guess_size(launcher: str, environ: Mapping[str, str]) -> int:
    """How many ranks the guessed launcher started; 1 where nothing tells."""
    return _first(_VARIABLES[launcher]["size"], environ) or 1


def guess_rank(environ: Mapping[str, str]) -> int:
    """The rank to name in a complaint where the identity could not be found; 0 where nothing tells."""
    for row in ("mpirun", "srun"):
        rank = _first(_VARIABLES[row]["rank"], environ)
        if rank is not None:
            return rank
    return 0
