"""The stop signal under a launcher that does not pass it on: each rank's monitor gives it, by the recorded request."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from hpc_train.run.layout import AttemptDir
from tests.launch.attempts import await_files, make_run, run_attempt, write_program
from tests.support.ranks import MPICH

pytestmark = pytest.mark.mpi

RELAYED = """
import hpc_train, os, signal, time
heard = []
signal.signal(signal.SIGUSR2, lambda number, frame: heard.append(number))  # a program that knows no StopRequest
world = hpc_train.init(process_group=False)
up = os.environ["HPC_TRAIN_RUN_DIR"] + "/up"
os.makedirs(up, exist_ok=True)
open(f"{up}/{world.rank}", "w").close()
while not heard:
    time.sleep(0.05)
time.sleep(1.5)
raise hpc_train.Stopped(f"heard {len(heard)} times")
"""


def test_where_the_launcher_keeps_the_signal_every_monitor_gives_it_once_the_record_is_there(tmp_path: Path) -> None:
    program = write_program(tmp_path / "program.py", RELAYED)
    run = make_run(tmp_path / "run", ["python", str(program)], python=MPICH.python, relays_stop=True)

    def record(pid: int, attempt: AttemptDir) -> None:
        await_files(attempt.path.parent / "up", 3)
        attempt.stop.write_text(json.dumps({"reason": "wall time", "deadline": time.time() + 60}))

    ended = run_attempt(run, mpi=MPICH, meanwhile=record)
    assert (ended.decision.failure, ended.decision.code, ended.word) == ("stopped", 75, "again")
    assert [mark.failure for mark in ended.marks] == ["stopped"] * 3
    assert all("heard 1 times" in mark.cause for mark in ended.marks)
