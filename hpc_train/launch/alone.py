"""Whether a program that was started as several ranks had anything to do with the others.

Apart because it is guesswork about other people's libraries: a script without `init_process_group` trains the same
model once on every rank, ends cleanly, and nobody is told. Standard library only.
"""

from __future__ import annotations

import resource
import sys
import time
from typing import Any

__all__ = ["worked_alone"]

# torch itself is there for the ranks' rendezvous; this comes with the first use of an optimizer or of torch.compile.
_TRAINED = "torch._dynamo"
# Whoever imports one of these may meet the others, or start those that do, by ways that cannot be looked into here.
_OTHER_WAYS = (
    "mpi4py.MPI",
    "horovod",
    "jax",
    "tensorflow",
    "ray",
    "torch_xla",
    "torchft",
    "cupyx.distributed",
    "torch.distributed.elastic.agent.server",  # torchrun in this process
    "torch.distributed.launcher",
    "accelerate.commands",
    "deepspeed.launcher",
)


def worked_alone(*, after_s: float) -> bool:
    """Whether this process trained with torch and never made a process group; False where that cannot be known.

    Ask at its end, whatever it has destroyed by then.
    Args:  after_s: CPU time of this process when its program began [s].
    """
    if _TRAINED not in sys.modules or any(name in sys.modules for name in _OTHER_WAYS) or _left_it_to_others(after_s):
        return False
    c10d: Any = sys.modules.get("torch.distributed.distributed_c10d")
    if c10d is None:
        return True
    # What init_process_group leaves and destroy_process_group does not undo: its hook, which the program may have
    # replaced, and the method, which is None where the program brought a store of its own.
    if getattr(sys.excepthook, "__module__", "") == c10d.__name__:
        return False
    try:
        return c10d._default_pg_init_method is None and not c10d.is_initialized()
    except Exception:  # noqa: BLE001 - another torch: not known
        return False


def _left_it_to_others(after_s: float) -> bool:
    """Whether most of the work was done by processes that it has started: they may have met others."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return children.ru_utime + children.ru_stime > time.process_time() - after_s
