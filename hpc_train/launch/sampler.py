"""Says which one call the program's main thread has been in, and since when.

Apart because a rank that waits for a peer looks healthy from outside: only its own stack tells "in comm.Barrier since
40 s". A daemon thread asks the interpreter to run a trifle in the main thread; as long as that has not run, the main
thread has not come back from the call it is in. Looking at frames alone cannot tell a call that lasts from a loop that
makes it again and again. The names of the calls that wait for other ranks are data. Standard library only.
"""

from __future__ import annotations

import ctypes
import dis
import re
import sys
import threading
import time
from collections.abc import Callable
from types import CodeType, FrameType

from hpc_train.launch.page import WAITS_FOR_PEERS, WAITS_FOR_THREAD, Page

__all__ = ["Call", "describe_call", "start_sampler"]

PERIOD_S = 0.5
_DEPTH = 24  # frames looked at: torch puts a few between the user's call and the wait

# Methods of mpi4py that return only when other ranks do something. Not among them: what can also be busy (collective
# file access), and words that other libraries use for other things, unless the object's name says that it is MPI's.
_MPI_CALLS = {
    "Barrier", "Bcast", "Reduce", "Allreduce", "Gather", "Gatherv", "Allgather", "Allgatherv", "Scatter", "Scatterv",
    "Alltoall", "Alltoallv", "Alltoallw", "Reduce_scatter", "Reduce_scatter_block", "Scan", "Exscan", "Recv",
    "Sendrecv", "Ssend", "Probe", "Mprobe", "Wait", "Waitall", "Waitany",
    "bcast", "allreduce", "allgather", "alltoall", "exscan", "sendrecv", "ssend", "mprobe",
}  # fmt: skip
_MPI_CALLS_ON_COMM = {"barrier", "reduce", "gather", "scatter", "scan", "recv", "send", "Send", "probe", "Split", "Dup"}
_COMM = re.compile(r"(comm|mpi|world)\w*$|_comm$", re.IGNORECASE)

# Inside these files the main thread waits for other ranks, whatever the call is named there …
_PEER_FILES = (
    "/torch/distributed/distributed_c10d.py", "/torch/distributed/rendezvous.py",
    "/torch/distributed/_functional_collectives.py",
    "/hpc_train/bootstrap/mpi.py", "/hpc_train/bootstrap/torch_world.py",
)  # fmt: skip
# … and inside these for another thread of its own.
_THREAD_FILES = ("/threading.py", "/queue.py", "/concurrent/futures/")
# Between those and the user's own code.
_OUR_FILES = ("/torch/distributed/c10d_logger.py", "/torch/_tensor.py", "/torch/autograd/", "/hpc_train/")
_EXAMPLES = "/hpc_train/examples/"

_LOADS = ("LOAD_NAME", "LOAD_GLOBAL", "LOAD_FAST", "LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_ATTR", "LOAD_METHOD")


class Call:
    """A call that a thread is in: in words, as "comm.Barrier (train.py:41)", and what it waits for (0 if unknown)."""

    def __init__(self, text: str, kind: int) -> None:
        self.text = text
        self.kind = kind


def describe_call(innermost: FrameType) -> Call:
    """The call that a thread sits in, named where the user's own code makes it.

    Of one of ours that waits for other ranks it is said that all ranks must make it: there one often finds that not all
    have.
    """
    frame: FrameType | None = innermost
    kind = _kind_of_file(innermost.f_code)
    is_ours = False
    for _ in range(_DEPTH):
        if frame is None or not _is_between(frame.f_code):
            break
        is_ours = "/hpc_train/" in frame.f_code.co_filename
        frame = frame.f_back
    if frame is None:
        frame = innermost
    name = _name_of_call(frame.f_code, frame.f_lasti)
    if not kind and _is_mpi_call(name):
        kind = WAITS_FOR_PEERS
    rule = ", which all ranks must call" if is_ours and kind == WAITS_FOR_PEERS else ""
    return Call(f"{name or frame.f_code.co_name} ({frame.f_code.co_filename}:{frame.f_lineno}){rule}", kind)


def _kind_of_file(code: CodeType) -> int:
    if any(part in code.co_filename for part in _PEER_FILES):
        return WAITS_FOR_PEERS
    return WAITS_FOR_THREAD if any(part in code.co_filename for part in _THREAD_FILES) else 0


def _is_between(code: CodeType) -> bool:
    name = code.co_filename
    return _kind_of_file(code) != 0 or (any(part in name for part in _OUR_FILES) and _EXAMPLES not in name)


def _is_mpi_call(name: str) -> bool:
    holder, _, method = name.rpartition(".")
    if method in _MPI_CALLS:
        return bool(holder)
    return method in _MPI_CALLS_ON_COMM and _COMM.search(holder) is not None


def _name_of_call(code: CodeType, offset: int) -> str:
    """The dotted name that the instruction at `offset` calls, "" where it cannot be told.

    What belongs to the called expression begins at the same place in the source as the call; arguments begin later.
    """
    start = None
    found: list[tuple[object, str, str]] = []
    for instruction in dis.get_instructions(code):
        if instruction.offset > offset:
            break
        place = instruction.positions
        start = None if place is None or place.col_offset is None else (place.lineno, place.col_offset)
        if instruction.opname == "IMPORT_NAME":
            found.append((start, "LOAD_NAME", f"import {instruction.argval}"))
        elif instruction.opname.startswith(_LOADS):
            found.append((start, instruction.opname, str(instruction.argval)))
    names: list[str] = []
    for place_of_name, opname, name in found:
        if start is not None and place_of_name == start:
            # In a chain over several lines a call begins at its own attribute, and the object stays unknown.
            names = [*(names or ["…"]), name] if opname in ("LOAD_ATTR", "LOAD_METHOD") else [name]
    return ".".join(names)


class _Probe:
    """Asks the main thread to come by: `is_out` until it has run Python code again."""

    def __init__(self) -> None:
        self._asked = 0
        self._answered = 0
        # Kept for ever: the interpreter may call it at any later time.
        self._callback = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)(self._answer)

    def _answer(self, _: object) -> int:
        self._answered = self._asked
        return 0

    @property
    def is_out(self) -> bool:
        return self._answered != self._asked

    def send(self) -> None:
        self._asked += 1
        if ctypes.pythonapi.Py_AddPendingCall(self._callback, None) != 0:  # the queue is full: ask again next time
            self._answered = self._asked


def start_sampler(page: Page) -> None:
    """Start the thread; it ends with the process. Without effect where ctypes cannot make callbacks."""
    main = threading.main_thread().ident
    assert main is not None  # the main thread runs this
    try:
        probe = _Probe()
    except (MemoryError, OSError):  # hardened kernels forbid the executable memory that a callback needs
        return
    threading.Thread(target=_sample, args=(page, main, probe), name="hpc-train-sampler", daemon=True).start()


def _sample(page: Page, main: int, probe: _Probe, pause: Callable[[float], None] = time.sleep) -> None:
    since = time.monotonic()
    told = False
    while True:
        if not probe.is_out:
            if told:
                page.set_call("", time.monotonic())
                told = False
            since = time.monotonic()
            probe.send()
        elif not told and (frame := sys._current_frames().get(main)) is not None:
            call = describe_call(frame)
            page.set_call(call.text, since, call.kind)
            told = True
            del frame  # a kept frame keeps the user's tensors alive
        pause(PERIOD_S)
