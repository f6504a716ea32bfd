"""The stop request outside the launch shim, in real processes (under the shim: tests/launch/test_ranks.py)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

from tests.support.ranks import mpi_environment

HEARS = """
import os, signal, sys, time
import hpc_train
world = hpc_train.SoloWorld()
stop = hpc_train.StopRequest(world)
print(stop.agreed(), flush=True)
act = sys.argv[1]
if act == "signal":
    os.kill(os.getpid(), signal.SIGUSR2)
print(stop.agreed(), stop.reason, stop.seconds_left is None or 50 < stop.seconds_left <= 60)
"""


def hears(act: str, **environ: str) -> list[str]:
    argv = [sys.executable, "-c", HEARS, act]
    environment = {**mpi_environment(), **environ}
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_signal_is_heard_between_two_steps() -> None:
    assert hears("signal") == ["False", "True signal True"]


def test_nothing_is_heard_where_nothing_was_said() -> None:
    assert hears("") == ["False", "False  True"]


def test_a_request_that_was_recorded_before_is_heard_with_reason_and_deadline(tmp_path: Path) -> None:
    attempt = tmp_path / "attempt-000"
    attempt.mkdir()
    (attempt / "stop.json").write_text(json.dumps({"reason": "wall time", "deadline": time.time() + 60}))
    assert hears("", HPC_TRAIN_RUN_DIR=str(tmp_path)) == ["True", "True wall time True"]


def test_a_record_that_cannot_be_read_still_stops(tmp_path: Path) -> None:
    (tmp_path / "attempt-000").mkdir()
    (tmp_path / "attempt-000" / "stop.json").write_text('{"rea')
    assert hears("", HPC_TRAIN_RUN_DIR=str(tmp_path)) == ["True", "True signal True"]


def test_a_thread_may_ask_too(tmp_path: Path) -> None:
    text = """
import threading, hpc_train
found = []
thread = threading.Thread(target=lambda: found.append(hpc_train.StopRequest(hpc_train.SoloWorld()).agreed()))
thread.start(); thread.join()
print(found)
"""
    done = subprocess.run(
        [sys.executable, "-c", text], env=mpi_environment(), capture_output=True, text=True, timeout=60
    )
    assert (done.stdout, os.path.exists(tmp_path)) == ("[False]\n", True)
