"""Says which blocking call the program's main thread sits in, once a second.

Apart because a rank that waits for a peer looks healthy from outside: only its own stack tells "in comm.Barrier since
40 s". A daemon thread reads one frame; the names of the calls that wait for other ranks are data. Standard library only.
"""

from __future__ import annotations

import dis
import sys
import threading
import time
from types import CodeType, FrameType

from hpc_train.launch.page import Page

__all__ = ["describe_call", "start_sampler", "waits_for_peers"]

PERIOD_S = 1.0

# mpi4py and torch.distributed calls that return only when other ranks do something (lower case).
_COLLECTIVES = {
    "barrier", "bcast", "broadcast", "reduce", "allreduce", "all_reduce", "gather", "allgather", "all_gather",
    "gatherv", "allgatherv", "scatter", "scatterv", "alltoall", "alltoallv", "all_to_all", "all_to_all_single",
    "reduce_scatter", "reduce_scatter_block", "reduce_scatter_tensor", "all_gather_into_tensor", "scan", "exscan",
    "recv", "sendrecv", "probe", "mprobe", "wait", "waitall", "waitany", "send", "ssend", "agreed", "monitored_barrier",
    "broadcast_object_list", "all_gather_object", "gather_object", "scatter_object_list", "init_process_group",
    "new_group", "split", "dup", "backward", "_run_backward", "_engine_run_backward", "run_backward",
    "write_at_all", "read_at_all", "_world",
}  # fmt: skip
_MODULES = ("torch/distributed/", "torch/nn/parallel/", "torch/autograd/")


def waits_for_peers(call: str) -> bool:
    """Whether a described call is one that waits for other ranks."""
    name = call.split(" ", 1)[0].rsplit(".", 1)[-1].lower()
    return name in _COLLECTIVES or any(module in call for module in _MODULES)


def describe_call(frame: FrameType) -> str:
    """The call that a frame is in, as "comm.Barrier (train.py:41)"."""
    code = frame.f_code
    return f"{_name_before(code, frame.f_lasti)} ({code.co_filename}:{frame.f_lineno})"


def _name_before(code: CodeType, offset: int) -> str:
    # The names loaded on the line up to the current instruction; the last ones are what is being called.
    names: list[str] = []
    for instruction in dis.get_instructions(code):
        if instruction.offset > offset:
            break
        if instruction.starts_line is not None:
            names = []
        if instruction.opname.startswith(("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FAST", "LOAD_DEREF")):
            names = [str(instruction.argval)]
        elif instruction.opname in ("LOAD_ATTR", "LOAD_METHOD"):
            names.append(str(instruction.argval))
    return ".".join(names) or code.co_name


def _outer_call(frame: FrameType) -> str:
    """The innermost call that waits for peers, else the innermost call at all."""
    innermost = describe_call(frame)
    current: FrameType | None = frame
    for _ in range(12):  # torch and our own World put a few frames between the user's call and the wait
        if current is None:
            break
        if waits_for_peers(call := describe_call(current)):
            return call
        current = current.f_back
    return innermost


def start_sampler(page: Page) -> None:
    """Start the thread; it ends with the process."""
    main = threading.main_thread().ident
    assert main is not None  # the main thread runs this

    def sample() -> None:
        before: tuple[int, int] | None = None
        while True:
            time.sleep(PERIOD_S)
            frame = sys._current_frames().get(main)
            if frame is None:
                continue
            now = (id(frame), frame.f_lasti)
            if now != before:
                before = now
                page.set_call("", time.monotonic())
            elif not page.read().call:
                page.set_call(_outer_call(frame), time.monotonic() - PERIOD_S)
            del frame  # a kept frame keeps the user's tensors alive

    threading.Thread(target=sample, name="hpc-train-sampler", daemon=True).start()
