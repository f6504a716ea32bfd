"""Cases for several ranks: what a session decides is the same on all of them, errors too."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpc_train.errors import CannotCreateError, CheckpointError, UsageError
from hpc_train.integrations.completion import complete_checkpoints, mark_complete
from hpc_train.integrations.session import Session
from hpc_train.world import World


def _write(world: World, path: Path) -> None:
    """Each rank its own file, as the Trainer's random states are."""
    path.mkdir(exist_ok=True)
    (path / f"rng_state_{world.rank}.pth").write_bytes(bytes(world.rank + 1))
    world.barrier()


def _write_two(world: World, tmp_path: Path) -> None:
    """Complete checkpoints of steps 4 and 8."""
    if world.rank == 0:
        for step in (4, 8):
            path = tmp_path / f"checkpoint-{step}"
            path.mkdir()
            mark_complete(path, step)
    world.barrier()


def case_a_commit_is_seen_complete_by_all_ranks_at_once(world: World, tmp_path: Path) -> None:
    session = Session(world, tmp_path, step=0, total_steps=10)
    path = tmp_path / "checkpoint-4"
    session.begin_save(path)
    _write(world, path)
    session.commit(path, 4)
    assert complete_checkpoints(tmp_path) == [(4, path)]
    world.barrier()
    session.begin_save(path)  # written over: not complete until the next commit
    assert complete_checkpoints(tmp_path) == []
    world.barrier()


def case_a_commit_that_fails_fails_on_all_ranks(world: World, tmp_path: Path) -> None:
    session = Session(world, tmp_path, step=0, total_steps=10)
    with pytest.raises(CannotCreateError, match=r"cannot flush .*checkpoint-4 on .*: No such file"):
        session.commit(tmp_path / "checkpoint-4", 4)


def case_ranks_that_resumed_from_different_steps_refuse(world: World, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"steps \[4, 5\]" if world.size > 1 else "unused"):
        Session(world, tmp_path, step=4 if world.rank else 5, total_steps=10)


def case_a_fresh_start_beside_progress_is_refused_on_all_ranks(world: World, tmp_path: Path) -> None:
    _write_two(world, tmp_path)
    with pytest.raises(UsageError, match=r"complete at step 8, but this training starts from nothing.*newest_check"):
        Session(world, tmp_path, step=0, total_steps=10)


def case_going_back_to_an_older_step_gives_up_the_later_ones(world: World, tmp_path: Path) -> None:
    _write_two(world, tmp_path)
    Session(world, tmp_path, step=4, total_steps=10)
    # Else a crash before step 8 would go on from another past.
    assert [step for step, _ in complete_checkpoints(tmp_path)] == [4]
    assert (tmp_path / "checkpoint-8").is_dir()


def case_beside_the_checkpoints_of_another_run_nothing_begins(world: World, tmp_path: Path) -> None:
    os.environ["HPC_TRAIN_RUN_DIR"] = "/r/a"
    try:
        _write_two(world, tmp_path)
        os.environ["HPC_TRAIN_RUN_DIR"] = "/r/b"
        with pytest.raises(UsageError, match=r"checkpoint-4 is of run a, and this is run b"):
            Session(world, tmp_path, step=4, total_steps=10)
    finally:
        del os.environ["HPC_TRAIN_RUN_DIR"]
    assert [step for step, _ in complete_checkpoints(tmp_path)] == [4, 8]
