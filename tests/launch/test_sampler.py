"""The name of the call that a thread sits in, by real threads; and how long it has been in that one call."""

# ruff: noqa: PLW0108 - the lambdas' frames are what is looked at
from __future__ import annotations

import queue
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable

import pytest

from hpc_train.launch.page import WAITS_FOR_PEERS, WAITS_FOR_THREAD
from hpc_train.launch.sampler import Call, describe_call
from tests.support.ranks import mpi_environment

RELEASE = threading.Event()


class Comm:
    """Looks like mpi4py's: its methods block in C until released."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.lock.acquire()
        self.Barrier = self.lock.acquire
        self.Allreduce = self.lock.acquire
        self.recv = self.lock.acquire
        self.reduce = self.lock.acquire
        self.wait = self.lock.acquire


comm = Comm()
box: queue.Queue[int] = queue.Queue()
functools = comm  # so that `functools.reduce` is a name that must not be taken for MPI's
proc = comm


class Holder:
    mpi = comm


holder = Holder()


def call_of(act: Callable[[], object], name: str) -> Call:
    """The call that a thread running `act` sits in, once it is the one that is expected; else whatever it is then."""
    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    assert thread.ident is not None
    deadline = time.monotonic() + 10
    while True:
        time.sleep(0.01)
        call = describe_call(sys._current_frames()[thread.ident])
        if call.text.startswith(f"{name} ({__file__}:") or not thread.is_alive() or time.monotonic() > deadline:
            break
    comm.lock.release()
    box.put(0)
    RELEASE.set()
    thread.join(10)
    RELEASE.clear()
    comm.lock.acquire(blocking=False)
    while not box.empty():
        box.get()
    return call


TIMEOUT = 20


@pytest.mark.parametrize(
    ("act", "name", "kind"),
    [
        (lambda: comm.Barrier(), "comm.Barrier", WAITS_FOR_PEERS),
        # arguments are not the name
        (lambda: comm.Allreduce(True, timeout=TIMEOUT), "comm.Allreduce", WAITS_FOR_PEERS),
        (lambda: holder.mpi.Barrier(), "holder.mpi.Barrier", WAITS_FOR_PEERS),
        (lambda: comm.recv(), "comm.recv", WAITS_FOR_PEERS),
        (lambda: [1, comm.Barrier(), 2], "comm.Barrier", WAITS_FOR_PEERS),
        # words that mean something else elsewhere
        (lambda: functools.reduce(), "functools.reduce", 0),
        (lambda: proc.wait(), "proc.wait", 0),
        (lambda: time.sleep(1), "time.sleep", 0),
        (lambda: box.get(timeout=TIMEOUT), "box.get", WAITS_FOR_THREAD),
        (lambda: RELEASE.wait(timeout=TIMEOUT), "RELEASE.wait", WAITS_FOR_THREAD),
        (
            lambda: (
                holder
                .mpi
                .Barrier()
            ),
            "….Barrier",
            WAITS_FOR_PEERS,
        ),
    ],
)  # fmt: skip
def test_a_call_is_named_and_its_kind_known(act: Callable[[], object], name: str, kind: int) -> None:
    call = call_of(act, name)
    assert call.text.startswith(f"{name} ({__file__}:")
    assert call.kind == kind


def test_the_line_is_the_one_that_runs() -> None:
    def act() -> None:
        first = "not this line"
        assert first
        time.sleep(1)

    assert call_of(act, "time.sleep").text == f"time.sleep ({__file__}:{act.__code__.co_firstlineno + 3})"


def sampled(text: str) -> list[str]:
    """What the page says of a program's main thread, once a second, as a list of its prints."""
    program = textwrap.dedent(
        """
        import sys, threading, time
        from hpc_train.launch.page import Page
        from hpc_train.launch import sampler
        sampler.PERIOD_S = 0.05
        page = Page()
        sampler.start_sampler(page)
        seen = []
        def look():
            while True:
                time.sleep(0.02)
                now = page.read()
                if now.call:
                    seen.append((now.call.split(" (")[0], time.monotonic() - now.call_since))
        threading.Thread(target=look, daemon=True).start()
        """
    )
    argv = [sys.executable, "-c", program + textwrap.dedent(text)]
    done = subprocess.run(argv, env=mpi_environment(), capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_call_that_lasts_is_told_with_its_time() -> None:
    (line,) = sampled("time.sleep(2)\nprint(max(seen)[0], max(s for _, s in seen) > 0.5)")
    assert line == "time.sleep True"


def test_a_loop_of_short_calls_is_never_taken_for_one_long_call() -> None:
    (line,) = sampled(
        """
        end = time.monotonic() + 3
        while time.monotonic() < end:
            time.sleep(0.002)
        print(max([s for _, s in seen], default=0) < 2)
        """
    )
    assert line == "True"
