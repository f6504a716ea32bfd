"""Checkpoints that other tools lost, by their public reports: the same inputs, and what must come out."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_train.checkpoint import Checkpointer, list_checkpoints, verify_checkpoint
from hpc_train.checkpoint.retention import to_delete
from hpc_train.checkpoint.writers import open_existing

SAVE = """
import sys
import numpy as np
from hpc_train.checkpoint import Checkpointer
from hpc_train.errors import CheckpointError
try:
    Checkpointer(sys.argv[1]).save(1, {"m": {"x": np.full(9, int(sys.argv[2]))}})
except CheckpointError as error:
    sys.exit(65)
"""


def state(value: float) -> dict[str, Any]:
    return {"m": {"x": np.full(9, value)}}


def test_eight_processes_that_make_one_new_root_leave_one_whole_checkpoint(tmp_path: Path) -> None:
    """mlcommons/storage#699: makedirs by many processes at once killed the run."""
    root = tmp_path / "not" / "yet" / "there"
    argv = [sys.executable, "-c", SAVE, str(root)]
    cwd = Path(__file__).parents[2]
    started = [subprocess.Popen([*argv, str(number)], cwd=cwd, stderr=subprocess.PIPE) for number in range(8)]
    said = [process.communicate(timeout=120)[1].decode() for process in started]
    codes = {process.returncode for process in started}
    assert codes <= {0, 65} and 0 in codes and not any(said), said
    assert [entry.step for entry in list_checkpoints(root)] == [1]
    assert verify_checkpoint(root / "step-000000001").is_good


def test_a_file_that_is_seen_late_is_waited_for(tmp_path: Path) -> None:
    """NVIDIA-NeMo/Speech#8153: a directory made by rank 0 is not visible to the others at once (NFS)."""
    made = threading.Timer(0.5, (tmp_path / "data").touch)
    began = time.monotonic()
    made.start()
    os.close(open_existing(tmp_path / "data", os.O_RDONLY))
    assert 0.3 < time.monotonic() - began < 30


def test_clocks_decide_nothing(tmp_path: Path) -> None:
    """Nodes' clocks differ by a day: the newest is the one of the highest step."""
    checkpoint = Checkpointer(tmp_path)
    for step in (1, 2):
        path = checkpoint.save(step, state(step))
        day = 86_400 * (-1 if step == 2 else 1)
        for each in (path, *path.iterdir()):
            os.utime(each, (time.time() + day, time.time() + day))
    live = state(0)
    assert Checkpointer(tmp_path).load(live) == 2
    assert (live["m"]["x"] == 2).all()


def test_a_copied_checkpoint_is_one(tmp_path: Path) -> None:
    """google/orbax#394: a copy lacked the marker, was taken for a temporary directory, and deleted."""
    path = Checkpointer(tmp_path / "a").save(7, state(7))
    shutil.copytree(path, tmp_path / "b" / path.name)
    copied = Checkpointer(tmp_path / "b")
    assert copied.load(state(0)) == 7
    copied.save(8, state(8))
    assert [entry.step for entry in list_checkpoints(tmp_path / "b")] == [7, 8]


@given(
    steps=st.sets(st.integers(0, 30), min_size=1),
    damaged=st.sets(st.integers(0, 30)),
    keep=st.integers(1, 5),
)
def test_retention_never_deletes_the_newest_nor_the_last_good_ones(
    steps: set[int], damaged: set[int], keep: int
) -> None:
    """huggingface/transformers#25129: the retention deleted every checkpoint."""
    newest = max(steps)
    gone = to_delete(sorted(steps), keep=keep, newest=newest, damaged=damaged)
    left = steps - set(gone)
    assert newest in left
    good = sorted(step for step in steps if step not in damaged or step == newest)
    assert set(good[-keep:]) <= left
    assert to_delete(sorted(steps), keep=None, newest=newest, damaged=damaged) == []


@pytest.mark.parametrize(
    "name", ["step-100.backup", "step-1e3", "step-0000000010", ".step-000000009.orig", "step-000000005 "]
)
def test_what_only_looks_like_a_checkpoint_is_never_touched(tmp_path: Path, name: str) -> None:
    """pytorch/torchtitan#4292: step-100.backup was parsed as step 100, loaded or purged."""
    shutil.copytree(Checkpointer(tmp_path / "other").save(5, state(5)), tmp_path / "root" / name)
    checkpoint = Checkpointer(tmp_path / "root", keep=1)
    assert checkpoint.load(state(0)) is None
    for step in (6, 7):
        checkpoint.save(step, state(step))
    assert (tmp_path / "root" / name / "COMMIT").exists()
    assert [entry.step for entry in list_checkpoints(tmp_path / "root")] == [7]
