"""A rank that hangs is ended only once every monitor that lives has said how its own rank stands.

No launcher here that would end the others: what each rank says, and when the hung one is ended, is the monitors' alone.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hpc_train.launch.processes import find_ranks
from hpc_train.launch.verdict import Limits, roll_call_s
from hpc_train.run.layout import RunDir
from hpc_train.run.marks import ExitMark, first_cause, read_marks
from tests.launch.attempts import await_files, batch, make_run, shim_argv, write_program
from tests.support.ranks import mpi_environment

HANG_S = 2.0
# Rank 0 stands still after its first step; the others step on.
PROGRAM = """
    import os, time, hpc_train
    from hpc_train.launch.page import attached_page
    step = 0
    while True:
        step += 1
        attached_page().beat(step)
        time.sleep(1000 if os.environ["RANK"] == "0" else 0.1)
"""


@contextmanager
def ranks(tmp_path: Path, num: int) -> Iterator[tuple[RunDir, list[subprocess.Popen[bytes]]]]:
    """So many ranks of one attempt, started by hand."""
    program = write_program(tmp_path / "program.py", PROGRAM)
    command = ["python", str(program)]
    run = make_run(tmp_path / "run", command, num_ranks=num, ranks_per_node=num, hang_timeout_s=HANG_S)
    assert batch("begin", run).stdout.startswith("go 0 ")
    names = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_LOCAL_RANK")
    size = {"OMPI_COMM_WORLD_SIZE": str(num)}
    started = [
        subprocess.Popen(
            shim_argv(run, 0), env={**mpi_environment(), **size, **dict.fromkeys(names, str(rank))}, stderr=-3
        )
        for rank in range(num)
    ]
    try:
        await_files(run.attempt(0).ready, num)
        yield run, started
    finally:
        for process in started:
            process.kill()
            process.wait()


def await_mark(run: RunDir, writer: int) -> ExitMark:
    deadline = time.monotonic() + 60
    while True:
        found = [mark for mark in read_marks(run.attempt(0)) if mark.writer == writer]
        if found:
            return found[0]
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_every_rank_says_how_it_stands_before_the_hung_one_is_ended(tmp_path: Path) -> None:
    with ranks(tmp_path, 3) as (run, started):
        assert started[0].wait(60) == 76
        marks = {mark.writer: mark for mark in read_marks(run.attempt(0))}
        assert {rank: mark.failure for rank, mark in marks.items()} == {0: "hang", 1: "terminated", 2: "terminated"}
        assert marks[1].cause == "ended because rank 0 hangs"
        # all have answered: no more waiting
        assert time.time() - marks[0].time < roll_call_s(Limits(HANG_S).poll_s) - 2
        first = first_cause(list(marks.values()))
        assert first is not None and (first.rank, first.failure) == (0, "hang")


def test_a_monitor_that_does_not_answer_is_waited_for_and_stays_silent(tmp_path: Path) -> None:
    with ranks(tmp_path, 3) as (run, started):
        while len(found := find_ranks(run.path)) < 3:
            time.sleep(0.02)
        frozen = found[2]
        for pid in (frozen.monitor, frozen.program):
            os.kill(pid, signal.SIGSTOP)
        told = await_mark(run, 0).time
        assert started[0].wait(60) == 76
        assert roll_call_s(Limits(HANG_S).poll_s) - 0.5 < time.time() - told < roll_call_s(Limits(HANG_S).poll_s) + 20
        assert {mark.writer for mark in read_marks(run.attempt(0))} == {0, 1}
        os.kill(frozen.monitor, signal.SIGCONT)
