"""The SIGTERM at the start of a preemption's grace time: a program that would die of it lives on, to save.

Apart because it is the program's side of the matter: Slurm signals every process of the step, and only the monitor can
tell this signal from the one that means the end. Standard library only.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import os
import signal
import sys
import weakref
from collections.abc import Callable, Sequence
from types import FrameType, ModuleType
from typing import Any

__all__ = ["outlive_first_sigterm"]

_DATALOADER = "torch.utils.data.dataloader"


def outlive_first_sigterm() -> None:
    """Take the first SIGTERM of this process for a notice; its monitor asks it to stop. The second one ends it.

    The workers of torch's DataLoader outlive both, and end with the program: without them it could not go on to where
    it saves. Call it in the program's main thread, before the program; one that handles SIGTERM itself replaces this.
    """
    owner = os.getpid()
    was_noticed = False

    def notice(number: int, frame: FrameType | None) -> None:
        nonlocal was_noticed
        if os.getpid() == owner and not was_noticed:
            was_noticed = True
            return
        # The second one, or a forked process of the program's own, as which it is not waited for.
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    signal.signal(signal.SIGTERM, notice)
    sys.meta_path.insert(0, _DataLoaderFinder())


class _DataLoaderFinder(importlib.abc.MetaPathFinder):
    """Shields torch's data workers once the program imports what starts them; importing it here would cost seconds."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != _DATALOADER:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.loader is not None:
            loader: Any = spec.loader
            execute = loader.exec_module

            def exec_module(module: ModuleType) -> None:
                execute(module)
                _shield_workers(module)

            loader.exec_module = exec_module
        return spec


def _shield_workers(dataloader: Any) -> None:
    """Data workers of this process are started with SIGTERM blocked, and where torch would send it they are killed.

    Blocked, because forked and spawned workers have that from their first instruction, and torch installs a handler of
    its own there, which dies of any SIGTERM but the parent's. Once that is there `_Outliving` takes its place, as what
    a worker starts would inherit the blocked signal, and not end when the worker terminates it. SIGKILL is no harder an
    end than torch's handler, which leaves by _exit. Whatever ends the program, its monitor kills what is left below it,
    and workers look for their parent themselves.
    """
    iterator = getattr(dataloader, "_MultiProcessingDataLoaderIter", None)
    if iterator is None:  # another torch
        return
    start = iterator.__init__

    @functools.wraps(start)
    def start_shielded(self: Any, loader: Any) -> None:
        import multiprocessing.resource_tracker  # here: each rank's monitor imports this module, and never needs it

        method = (loader.multiprocessing_context or multiprocessing).get_start_method()
        if method == "forkserver":  # its server would pass the blocked signal on to processes that are no data workers
            start(self, loader)
            return
        if method == "spawn":  # starting the tracker would unblock the signal again
            multiprocessing.resource_tracker.ensure_running()
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
        init = loader.worker_init_fn
        loader.worker_init_fn = _Outliving(init)
        try:
            start(self, loader)
        finally:
            loader.worker_init_fn = init
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            for worker in getattr(self, "_workers", ()):
                process = worker._popen
                process.terminate = functools.partial(_kill, dataloader, weakref.ref(self), weakref.ref(process))

    iterator.__init__ = start_shielded


class _Outliving:
    """A data worker's first act: a handler that does nothing takes the place of the blocked signal.

    A class, as spawned workers get it sent.
    """

    def __init__(self, init: Callable[[int], Any] | None) -> None:
        self._init = init

    def __call__(self, worker: int) -> None:
        owner = os.getpid()

        def outlive(number: int, frame: FrameType | None) -> None:
            if os.getpid() != owner:  # a process that the worker forked
                signal.signal(number, signal.SIG_DFL)
                os.kill(os.getpid(), number)

        signal.signal(signal.SIGTERM, outlive)
        signal.siginterrupt(signal.SIGTERM, False)  # libraries that read samples may not try again after EINTR
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        if self._init is not None:
            self._init(worker)


def _kill(dataloader: Any, iterator: weakref.ref[Any], process: weakref.ref[Any]) -> None:
    """End a data worker whose program wants no more of it; torch must not take that for a failure."""
    owner, worker = iterator(), process()
    if owner is not None and getattr(owner, "_worker_pids_set", False):
        dataloader._utils.signal_handling._remove_worker_pids(id(owner))
        owner._worker_pids_set = False
    if worker is not None:
        worker.kill()
