"""A run directory of an older or newer format: every command, the batch shell's words and the ranks refuse it alike."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpc_train.files import read_json, write_json
from hpc_train.run.layout import LAUNCH_FORMAT, RunDir
from tests.run.records import make_run

CALLS = (
    ["status"], ["why"], ["logs"], ["cancel"], ["requeue"], ["checkpoint", "list"], ["checkpoint", "inspect"],
    ["checkpoint", "verify"], ["begin"], ["decide"], ["supervise"],
)  # fmt: skip
MORE = {
    "begin": ["--submission", "0"],
    "decide": ["--submission", "0", "--attempt", "0", "--code", "1"],
    "supervise": ["--submission", "0"],
}


def call(words: list[str]) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    argv = [sys.executable, "-m", "hpc_train", *words]
    return subprocess.run(argv, env=environ, cwd="/", capture_output=True, text=True, timeout=60)


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    made = make_run(tmp_path / "run")
    (made.path / "checkpoints").mkdir()
    return made


@pytest.mark.parametrize("words", CALLS, ids=" ".join)
@pytest.mark.parametrize("version", [0, 2, "1"])
def test_a_run_of_another_version_is_refused(run: RunDir, words: list[str], version: object) -> None:
    write_json(run.record, {**read_json(run.record), "version": version})
    before = sorted(run.path.rglob("*"))
    done = call([*words, str(run.path), *MORE.get(words[0], [])])
    assert done.returncode == 78, done
    assert f"run format version {version!r}, this hpc-train reads version 1" in done.stderr
    assert done.stderr.count("\n") == 1 and done.stdout == ""
    assert sorted(run.path.rglob("*")) == before


def test_a_rank_refuses_a_launch_record_of_another_version(run: RunDir) -> None:
    launch = run.submission(0).launch
    write_json(launch, {**read_json(launch), "format": LAUNCH_FORMAT, "version": 2, "launcher": "none"})
    run.attempt(0).path.mkdir()
    done = call(["run", str(run.path), "--submission", "0", "--attempt", "0"])
    assert done.returncode == 78
    assert "launch.json: format 'hpc-train-launch', version 2; the hpc-train of this node reads" in done.stderr
