"""Two programs outside any run that save into one root at once: the second is told who is there."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpc_train.checkpoint import Checkpointer, list_checkpoints
from hpc_train.checkpoint.occupancy import LOCK_NAME, occupy
from hpc_train.errors import CheckpointError

# Saves once, says so, and waits for a word; "fork" leaves a child behind that lives on.
PROGRAM = """
import os, sys, time
import numpy as np
from hpc_train.checkpoint import Checkpointer
Checkpointer(sys.argv[1]).save(1, {"m": {"x": np.zeros(3)}})
if "fork" in sys.argv and os.fork() == 0:
    os.close(1)
    time.sleep(60)
    os._exit(0)
print("saved", flush=True)
sys.stdin.read()
"""


def state() -> dict[str, Any]:
    return {"m": {"x": np.ones(3)}}


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Any]:
    started: list[subprocess.Popen[str]] = []

    def act(*words: str) -> subprocess.Popen[str]:
        argv = [sys.executable, "-c", PROGRAM, str(tmp_path / "root"), *words]
        cwd = Path(__file__).parents[2]
        started.append(
            subprocess.Popen(
                argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=cwd, start_new_session=True
            )
        )
        out = started[-1].stdout
        assert out is not None and out.readline() == "saved\n"
        return started[-1]

    yield act
    for process in started:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.communicate()


def test_the_second_program_is_told_who_saves_there(start: Any, tmp_path: Path) -> None:
    other = start()
    with pytest.raises(CheckpointError, match=f"process {other.pid} on '{socket.gethostname()}' saves here just now"):
        Checkpointer(tmp_path / "root").save(2, state())
    assert [entry.step for entry in list_checkpoints(tmp_path / "root")] == [1]
    live = state()
    assert Checkpointer(tmp_path / "root").load(live) == 1  # reading needs no leave
    other.communicate("")
    Checkpointer(tmp_path / "root").save(2, state())


@pytest.mark.parametrize("words", [(), ("fork",)], ids=["alone", "with a child that lives on"])
def test_a_killed_program_leaves_no_lock_behind(start: Any, tmp_path: Path, words: tuple[str, ...]) -> None:
    start(*words).kill()
    deadline = time.monotonic() + 20  # the child would hold it for a minute
    while time.monotonic() < deadline:
        try:
            Checkpointer(tmp_path / "root").save(2, state())
            return
        except CheckpointError:
            time.sleep(0.01)
    pytest.fail("the root stays taken")


def test_a_child_that_saves_is_a_part_of_its_parents_program(tmp_path: Path) -> None:
    Checkpointer(tmp_path / "root").save(1, state())
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            Checkpointer(tmp_path / "root").save(2, state())
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(pid, 0)[1] == 0
    assert [entry.step for entry in list_checkpoints(tmp_path / "root")] == [1, 2]


def test_one_program_may_make_several_checkpointers_of_a_root(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        Checkpointer(tmp_path / "root").save(step, state())


def test_without_locks_the_record_tells_of_a_live_process(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The rule for file systems that have no locks, on its own: none is at hand here."""
    from hpc_train.checkpoint.occupancy import _check_record
    from hpc_train.files import process_start

    parent = os.getppid()
    record = {"host": socket.gethostname(), "pid": parent, "started": process_start(parent)}
    (tmp_path / LOCK_NAME).write_text(json.dumps(record))
    with pytest.raises(CheckpointError, match=f"process {parent} on"):
        _check_record(tmp_path)
    others: list[object] = [{**record, "started": 1}, {**record, "pid": 2**22 + 1}, {**record, "pid": "x"}, []]
    for gone in others:  # another process had that number; there is none; damaged
        (tmp_path / LOCK_NAME).write_text(json.dumps(gone))
        _check_record(tmp_path)
    (tmp_path / LOCK_NAME).write_text(json.dumps({**record, "host": "elsewhere"}))
    _check_record(tmp_path)
    assert "make sure that process" in caplog.text and "elsewhere" in caplog.text


def test_a_damaged_owner_record_gives_nobodys_checkpoints_away(tmp_path: Path) -> None:
    root = tmp_path / "root"
    Checkpointer(root).save(1, state())
    (root / "owner.json").write_text('{"format": "hpc-tr')
    with pytest.raises(CheckpointError, match=r"owner\.json: damaged.*remove it if they are this run's"):
        Checkpointer(root).save(2, state())
    (root / "owner.json").unlink()
    Checkpointer(root).save(2, state())


def test_the_lock_is_no_part_of_the_checkpoints(tmp_path: Path) -> None:
    occupy(tmp_path)
    assert list_checkpoints(tmp_path) == []
