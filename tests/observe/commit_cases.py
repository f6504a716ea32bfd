"""Cases of `commit` for several ranks: an error that one of them has is every rank's."""

from __future__ import annotations

from pathlib import Path

import pytest

import hpc_train
from hpc_train.errors import HpcTrainError, StorageError, UsageError
from hpc_train.world import World, on_nodes


def case_a_path_that_is_not_there_fails_on_all_ranks(world: World, tmp_path: Path) -> None:
    # rank 0's counts: where the others name files of their own, those need not be seen by all
    path = tmp_path / "gone.pt" if world.rank == 0 else tmp_path
    with pytest.raises(UsageError, match=r"commit\(step=3\): .*gone\.pt does not exist"):
        hpc_train.commit(world, 3, path)
    hpc_train.commit(world, 3, tmp_path if world.rank == 0 else path)


def case_ranks_that_are_not_at_one_step_all_hear_it(world: World, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="commit: step = 4 and 5; allowed: an int of 0 or more, the same on all ranks"):
        hpc_train.commit(world, 4 + (world.rank > 0), tmp_path)


def case_what_fails_on_a_node_fails_on_all_ranks(world: World, tmp_path: Path) -> None:
    def act() -> None:
        (tmp_path / f"acted-{world.rank}").touch()
        raise StorageError("cannot flush")

    with pytest.raises(HpcTrainError, match="cannot flush"):
        on_nodes(world, act)
    world.barrier()
    assert [path.name for path in tmp_path.iterdir()] == ["acted-0"]  # one rank of the node
