"""Commands that people type on a login node import nothing heavy: asked of the real commands."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

HEAVY = ["torch", "mpi4py", "h5py", "numpy"]
# Runs the program in process, as `python -m hpc_train` does, and tells afterwards what it imported.
PROBE = f"""
import json, runpy, sys
try:
    runpy.run_module("hpc_train", run_name="__main__", alter_sys=True)
    code = 0
except SystemExit as leaving:
    code = leaving.code or 0
print(json.dumps({{"code": code, "heavy": [name for name in {HEAVY} if name in sys.modules]}}), file=sys.stderr)
"""


def heavy_imports(*words: str, cwd: Path) -> list[str]:
    """Heavy packages that one command imported; the command itself must succeed."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *words], cwd=cwd, capture_output=True, text=True, timeout=60, check=False
    )
    told = json.loads(done.stderr.splitlines()[-1])
    assert told["code"] == 0, done.stdout + done.stderr
    heavy: list[str] = told["heavy"]
    return heavy


@pytest.fixture
def job(tmp_path: Path) -> Path:
    """A folder with a job that could run."""
    (tmp_path / "job.toml").write_text('[program]\ncommand = ["python", "train.py"]\n')
    (tmp_path / "train.py").write_text("print('training')\n")
    return tmp_path


@pytest.mark.parametrize(
    "words",
    [
        ["--help"],
        ["submit", "--help"],
        ["submit", "job.toml", "--dry-run"],
        ["submit", "job.toml", "--site", "local", "--dry-run"],
        ["status"],
        ["status", "--json"],
        ["why", "--help"],
        ["logs", "--help"],
        ["cancel", "--help"],
        ["requeue", "--help"],
        ["clean"],
        ["site", "list"],
        ["schema", "job"],
        ["checkpoint", "--help"],
        ["data", "--help"],
    ],
    ids=" ".join,
)
def test_a_login_side_command_imports_nothing_heavy(words: list[str], job: Path) -> None:
    assert heavy_imports(*words, cwd=job) == []


def test_the_probe_sees_a_heavy_import(tmp_path: Path) -> None:
    (tmp_path / "hpc_train.py").write_text("import numpy\n")
    assert heavy_imports(cwd=tmp_path) == ["numpy"]
