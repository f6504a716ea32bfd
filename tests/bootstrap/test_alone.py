"""A piece that is given no World among several ranks is refused: each rank would take itself for the whole run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

MAKE = {
    "Checkpointer": "import hpc_train; hpc_train.Checkpointer(sys.argv[1])",
    "ShardStream": "import hpc_train; hpc_train.ShardStream(sys.argv[1], global_batch=4)",
}


def made(piece: str, path: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-c", f"import sys; {MAKE[piece]}", str(path)]
    return subprocess.run(argv, env={**os.environ, **environ}, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize("piece", MAKE)
@pytest.mark.parametrize("name", ["WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS"])
def test_a_piece_without_world_among_several_ranks_is_refused(piece: str, name: str, tmp_path: Path) -> None:
    done = made(piece, tmp_path, **{name: "2"})
    assert done.returncode != 0
    assert f"UsageError: {piece} was given no world, but this is one of 2 ranks" in done.stderr
    assert "pass world=hpc_train.init()" in done.stderr


def test_a_piece_without_world_works_in_one_process(tmp_path: Path) -> None:
    assert made("Checkpointer", tmp_path, WORLD_SIZE="1").returncode == 0
