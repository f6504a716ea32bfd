"""The monitor's words: whole where somebody reads, left out where nobody does."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path

import pytest

from hpc_train.run.marks import read_marks
from tests.launch.attempts import ALONE, batch, make_run, shim_argv, write_program
from tests.support.ranks import mpi_environment

FULL = """
import os, sys
os.set_blocking(2, False)
try:
    while True:
        os.write(2, b"x")  # to the last byte
except BlockingIOError:
    os.set_blocking(2, True)
os._exit(9)
"""


@pytest.mark.mpi
def test_a_launcher_that_takes_no_output_cannot_hold_a_rank_up(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", ["python", str(write_program(tmp_path / "program.py", FULL))], **ALONE)
    _, number, token = batch("begin", run).stdout.split()
    read, write = os.pipe()
    try:
        environment = {**mpi_environment(), "HPC_TRAIN_TOKEN": token}
        began = time.monotonic()
        shim = subprocess.Popen(shim_argv(run, int(number)), env=environment, stdout=write, stderr=write)
        assert shim.wait(60) == 9
        assert time.monotonic() - began < 45
    finally:
        os.close(read)
        os.close(write)
    assert [mark.cause for mark in read_marks(run.attempt(0))] == ["the program left with code 9"]
