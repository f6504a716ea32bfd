"""`if rank == 0: checkpoint.save(...)`: told in words, by whoever can tell."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.launch.attempts import make_run, run_attempt, write_program
from tests.support.ranks import Mpi, on_both_mpis

pytestmark = pytest.mark.mpi

SAVES_ALONE = """
import hpc_train
world = hpc_train.init(process_group=False)
from mpi4py import MPI
checkpoint = hpc_train.Checkpointer(world=world)
progress = hpc_train.Progress(world, total_steps=9)
for step in range(1, 4):
    progress.step(step)
    world.barrier()
if world.rank == 0:
    checkpoint.save(3, {"m": {"v": 1}})
"""


def lines_of(text: str, start: str) -> int:
    """The number of the line that begins so."""
    return [line.strip().startswith(start) for line in text.splitlines()].index(True) + 1


@on_both_mpis
def test_ranks_that_go_on_with_our_collectives_end_the_run_at_once(mpi: Mpi, tmp_path: Path) -> None:
    text = SAVES_ALONE + "world.barrier()  # the others\n"
    program = write_program(tmp_path / "train.py", text)
    run = make_run(tmp_path / "run", ["python", str(program)], python=mpi.python)
    ended = run_attempt(run, mpi=mpi)
    assert (ended.decision.failure, ended.word, ended.decision.step) == ("usage", "stop", 3)
    saving, waiting = lines_of(text, "checkpoint.save"), lines_of(text, "world.barrier()  #")
    told = f"rank 0 in checkpoint.save ({program}:{saving}); ranks 1-2 in world.barrier ({program}:{waiting})"
    assert f"UsageError: the ranks are in different calls that each wait for all ranks: {told}" in ended.decision.reason
    assert not list((run.path / "checkpoints").glob("*"))


@on_both_mpis
def test_where_the_others_wait_elsewhere_the_hang_says_who_is_where(mpi: Mpi, tmp_path: Path) -> None:
    text = SAVES_ALONE + "MPI.COMM_WORLD.Barrier()  # as in the group of DistributedDataParallel\n"
    program = write_program(tmp_path / "train.py", text)
    run = make_run(tmp_path / "run", ["python", str(program)], python=mpi.python, hang_timeout_s=4)
    ended = run_attempt(run, mpi=mpi)
    assert (ended.decision.failure, ended.decision.step) == ("hang", 3)
    saving, waiting = lines_of(text, "checkpoint.save"), lines_of(text, "MPI.COMM_WORLD")
    assert f"in checkpoint.save ({program}:{saving}), which all ranks must call" in ended.decision.reason
    assert f"in MPI.COMM_WORLD.Barrier ({program}:{waiting})" in ended.decision.reason
    assert "rank 0 in checkpoint.save" in ended.decision.reason or ended.decision.rank == 0
