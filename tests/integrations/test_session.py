"""A session over real ranks, and the World that it is made from."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_train.errors import UsageError
from hpc_train.integrations.session import find_world
from tests.support.ranks import run_cases


@pytest.mark.mpi
def test_all_ranks_decide_alike(tmp_path: Path) -> None:
    run_cases("tests.integrations.mpi_cases", 2, tmp_path)


def test_a_framework_that_trains_on_each_rank_alone_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    # transformers' Trainer does so on CPUs without use_cpu=True: all ranks then write over each other's files.
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(UsageError, match="4 ranks were started, but the framework trains on 1 together: set this"):
        find_world(1, "set this")
    monkeypatch.setenv("WORLD_SIZE", "1")
    assert find_world(1, "").size == 1
