"""The program of docs/frameworks.md that saves by itself: alone as before; killed under hpc-train, it goes on."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpc_train.launch.processes import find_ranks
from hpc_train.run.journal import last_commit, read_journal
from hpc_train.run.layout import AttemptDir
from tests.launch.attempts import make_run, run_attempt
from tests.support.ranks import mpi_environment, mpirun_argv

PAGE = Path(__file__).parents[2] / "docs" / "frameworks.md"
LOOP = "while step < 1000:"


@pytest.fixture(scope="module")
def program() -> str:
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    (found,) = [block for block in blocks if "hpc_train.commit(" in block]
    return str(found)


def test_with_plain_python_it_runs_and_leaves_only_what_it_saves(program: str, tmp_path: Path) -> None:
    argv = [sys.executable, "-c", program]
    for began in (0, 1000):
        done = subprocess.run(argv, cwd=tmp_path, env=mpi_environment(), capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stdout) == (0, f"rank 0 begins at step {began}\n"), done.stderr
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["newest.pt", "saved"]


@pytest.mark.mpi
def test_killed_after_a_commit_it_goes_on_from_there(program: str, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(program.replace(LOOP, "while True:"))  # until it is killed
    run = make_run(tmp_path / "run", ["python", str(path)], num_ranks=2, ranks_per_node=2, max_failures=1)

    def kill(_: int, attempt: AttemptDir) -> None:
        deadline = time.monotonic() + 60
        while last_commit(read_journal(run)) is None:
            assert time.monotonic() < deadline
            time.sleep(0.02)
        victim = next(found for found in find_ranks(run.path) if found.rank == 1)
        os.kill(victim.program, signal.SIGKILL)

    killed = run_attempt(run, launcher=mpirun_argv(2), meanwhile=kill)
    assert (killed.decision.failure, killed.decision.made_progress, killed.word) == ("killed", True, "again"), (
        killed.log
    )
    path.write_text(program)
    ended = run_attempt(run, launcher=mpirun_argv(2))
    assert ended.word == "done", ended.log
    assert f"rank 1 begins at step {killed.decision.last_commit}\n" in ended.log
    newest = [event.fields for event in read_journal(run) if event.event == "commit"][-1]
    assert (newest["step"], newest["path"]) == (max(1000, killed.decision.last_commit or 0), "saved/newest.pt")
