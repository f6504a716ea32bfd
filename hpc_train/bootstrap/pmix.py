"""The one thing that PMIx is asked for directly: a barrier at the end of MPI's start.

Apart because it is the only foreign-function call into MPI's surroundings. Standard library only.

Open MPI 5.0 ends MPI_Init with a PMIx fence that carries no data. Slurm's PMIx plugin (22.05 with PMIx 4.2.2, measured)
lets a node through that fence before the others have come, and a message that then reaches a rank still in it ends that
rank by SIGSEGV in mca_pml_ob1_recv_frag_callback_match (open-mpi/ompi issue 12495; 6 of 30 starts of 8 ranks on 8 busy
hosts). A fence that collects data is a barrier there, too.
"""

from __future__ import annotations

import ctypes

__all__ = ["await_all_started"]

# pmix_info_t: char key[512]; uint32_t flags; then, aligned to 8, pmix_value_t: uint16_t type; a union. Tried with
# PMIx 4.2.2 and the one inside Open MPI 5.0.11.
_SIZE, _TYPE_AT, _DATA_AT = 1024, 520, 528
_COLLECT, _BOOL = b"pmix.collect", 1


def await_all_started(library: str) -> bool:
    """Wait until every rank has left MPI_Init. Collective; makes no MPI call.

    Args:  library: file of a loaded library through which PMIx can be found, as that of mpi4py.MPI.
    Returns whether PMIx is there and has done so: an MPI that does not start by PMIx has no such fence.
    """
    try:
        fence = ctypes.CDLL(library).PMIx_Fence
    except (AttributeError, OSError):
        return False
    info = ctypes.create_string_buffer(_COLLECT, _SIZE)
    ctypes.c_uint16.from_buffer(info, _TYPE_AT).value = _BOOL
    ctypes.c_bool.from_buffer(info, _DATA_AT).value = True
    return bool(fence(None, ctypes.c_size_t(0), info, ctypes.c_size_t(1)) == 0)
