"""A save that is killed, torn, refused or lied to at any system call leaves the old checkpoint or the new one."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CHECKOUT = HERE.parents[1]


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    library = tmp_path_factory.mktemp("shim") / "faults.so"
    argv = ["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", str(library), str(HERE / "faults.c"), "-ldl"]
    subprocess.run(argv, check=True, timeout=60)
    return library


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """In memory where the machine allows it: thousands of fsyncs on a busy disk would take minutes."""
    memory = Path("/dev/shm")
    if not os.access(memory, os.W_OK):
        yield tmp_path
        return
    path = Path(tempfile.mkdtemp(prefix="hpc-train-crashes-", dir=memory))
    yield path
    shutil.rmtree(path)


def sweep(shim: Path, root: Path, mode: str, what: str, error: int = 0) -> list[str]:
    """What became of the save with a fault at its 1st, 2nd, … call; the program checks the promises itself."""
    argv = [sys.executable, str(HERE / "crash_program.py"), str(root), mode, what, str(error)]
    environment = {**os.environ, "LD_PRELOAD": str(shim), "PYTHONPATH": str(CHECKOUT), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    words: list[str] = json.loads(done.stdout)
    assert len(words) > 20  # fewer: the shim did not see the save
    return words


@pytest.mark.parametrize("what", ["new", "replace", "replace-by-two-renames"])
@pytest.mark.parametrize("mode", ["kill", "torn"])
def test_killed_at_any_call_the_old_or_the_new_checkpoint_loads(shim: Path, folder: Path, mode: str, what: str) -> None:
    assert set(sweep(shim, folder, mode, what)) == {"killed"}


@pytest.mark.parametrize(
    ("code", "what", "expected"),
    [
        (errno.EIO, "new", "StorageError"),
        (errno.EIO, "replace-by-two-renames", "StorageError"),
        (errno.ENOSPC, "new", "NoSpaceError"),
        (errno.EDQUOT, "replace", "NoSpaceError"),
    ],
)
def test_any_failing_call_is_a_typed_error_and_leaves_the_old_checkpoint(
    shim: Path, folder: Path, code: int, what: str, expected: str
) -> None:
    words = sweep(shim, folder, "fail", what, code)
    assert set(words) == {expected, "saved"}  # saved: calls after the commit may fail without harm
    assert words.count(expected) > 12


def test_a_write_that_reports_success_without_writing_is_never_committed(shim: Path, folder: Path) -> None:
    assert "StorageError" in sweep(shim, folder, "lie", "new")
