"""What `init()` makes a World of, from what started this process. Pure.

Apart from init, so that each way to start a program is a row of a table test: under `hpc-train submit` the submission
decides, elsewhere what torchrun, mpirun or srun left in the environment. Whoever is one of several ranks never becomes
a World of one.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from hpc_train.errors import SiteError, SpecError
from hpc_train.launch.identity import guess_launcher, guess_size

__all__ = ["Choice", "choose"]

_BY_TORCH = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")  # what env:// needs


@dataclass(frozen=True)
class Choice:
    """Attributes:  kind: "mpi", "torch" or "alone".   size: ranks there must be.   mode: as errors name it."""

    kind: str
    size: int = 1
    mode: str = "none"


def choose(environ: Mapping[str, str], *, has_mpi4py: bool, has_torch: bool, group_size: int = 1) -> Choice:
    """The choice for this process.

    Args:  has_mpi4py, has_torch: whether they could be imported.   group_size: ranks of torch's default group, if the
    program has made one.
    Raises: SpecError, SiteError where there are several ranks and nothing joins them; no other node would do better.
    """
    declared = environ.get("HPC_TRAIN_MPI")
    size = _number(environ.get("WORLD_SIZE"))
    # torchrun inside a run, mpirun or srun, one a node: the inner one made the ranks. The shim names the run itself.
    is_torchrun = environ.get("TORCHELASTIC_RUN_ID") not in (
        None,
        os.path.basename(environ.get("HPC_TRAIN_RUN_DIR", "")),
    )
    if declared is not None and declared != "none" and not is_torchrun:
        return Choice("mpi", size, declared)
    launcher = "none" if declared == "none" or is_torchrun or group_size > 1 else guess_launcher(environ)
    if launcher != "none":
        return _by_hand(launcher, environ, has_mpi4py=has_mpi4py, has_torch=has_torch)
    size = max(size, group_size)
    if size == 1:
        return Choice("alone")
    if not has_torch:
        raise SiteError("several ranks without MPI need torch for their collectives: pip install torch")
    if group_size == 1 and "MASTER_ADDR" not in environ:
        lacking = "" if has_mpi4py else ", or install mpi4py into the job's environment where the site has an MPI"
        raise SpecError(
            f'several ranks, no MPI and no MASTER_ADDR: set [program] rendezvous = "torch" in the job file{lacking}'
        )
    return Choice("torch", size)


def _by_hand(launcher: str, environ: Mapping[str, str], *, has_mpi4py: bool, has_torch: bool) -> Choice:
    """A program that somebody started with mpirun or srun, outside a run."""
    size = guess_size(launcher, environ)
    speaks_mpi = launcher == "mpirun" or any(name in environ for name in ("PMIX_RANK", "PMI_RANK"))
    if has_mpi4py and speaks_mpi:
        return Choice("mpi", size, launcher)
    if has_torch and all(environ.get(name) for name in _BY_TORCH):
        return Choice("torch", _number(environ["WORLD_SIZE"]))
    if size > 1:
        lacking = "srun was told --mpi=none" if has_mpi4py else "mpi4py is not installed"
        raise SpecError(
            f"{launcher} started {size} ranks, but nothing joins them: {lacking}, and RANK, WORLD_SIZE, MASTER_ADDR "
            "and MASTER_PORT are not all set; use hpc-train submit, torchrun, or mpi4py and the launcher of its MPI"
        )
    return Choice("alone")


def _number(text: str | None) -> int:
    return int(text) if text is not None and text.isascii() and text.isdecimal() else 1
