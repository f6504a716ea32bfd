"""Finding the ranks of a run on this machine: the program and its monitor, and nothing that only looks like them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from hpc_train.launch.processes import find_ranks


def test_a_launcher_and_its_child_are_no_rank(tmp_path: Path) -> None:
    # srun forks a child with its own command line, which holds the ranks', and the batch job's SLURM_PROCID is 0
    code = "import os, sys; pid = os.fork(); print(pid, flush=True) if pid else None; sys.stdin.read()"
    argv = [sys.executable, "-c", code, "--mpi=pmix", "python", "-u", "-m", "hpc_train", "run", str(tmp_path)]
    environ = {**os.environ, "SLURM_PROCID": "0"}
    launcher = subprocess.Popen(argv, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert launcher.stdout is not None and int(launcher.stdout.readline()) > 0
        assert find_ranks(tmp_path) == []
    finally:
        launcher.communicate(timeout=10)
