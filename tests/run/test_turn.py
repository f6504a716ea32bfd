"""Commands that act on one run take turns."""

from __future__ import annotations

import multiprocessing
import os
import time
from pathlib import Path

import pytest

from hpc_train.run.layout import RunDir
from hpc_train.run.turn import hold_turn
from tests.run.records import make_run
from tests.scheduler.making import wait_for


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return make_run(tmp_path / "run")


def _work(path: Path, number: int) -> None:
    with hold_turn(RunDir(path)) as is_held:
        assert is_held
        (path / "working").mkdir()  # an error if another one works
        time.sleep(0.05)
        (path / "working").rmdir()
        (path / f"worked-{number}").touch()


def test_one_works_at_a_time_and_all_come_to_their_turn(run: RunDir) -> None:
    processes = [multiprocessing.Process(target=_work, args=(run.path, number)) for number in range(6)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(30)
    assert len(list(run.path.glob("worked-*"))) == 6


def _hold(path: Path) -> None:
    with hold_turn(RunDir(path)):
        (path / "held").touch()
        time.sleep(60)


def test_who_waits_too_long_is_told_and_a_dead_command_holds_nothing(run: RunDir) -> None:
    holder = multiprocessing.Process(target=_hold, args=(run.path,))
    holder.start()
    wait_for((run.path / "held").exists, "the turn is held")
    with hold_turn(run, wait_s=0.2) as is_held:
        assert not is_held
    holder.kill()
    holder.join(30)
    with hold_turn(run, wait_s=5) as is_held:
        assert is_held


def test_a_run_that_takes_no_file_is_no_error(run: RunDir) -> None:
    os.symlink("/nowhere", run.claim)
    with hold_turn(run) as is_held:
        assert not is_held
