"""A run, and the World of its one rank."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_train.bootstrap.attachment import find_attachment
from hpc_train.bootstrap.solo import AttachedSoloWorld
from hpc_train.run.layout import RunDir
from hpc_train.run.ownership import take_ownership
from tests.run.records import make_run


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return make_run(tmp_path / "run")


@pytest.fixture
def world(run: RunDir) -> AttachedSoloWorld:
    owner = take_ownership(run)
    names = {"HPC_TRAIN_RUN_DIR": str(run.path), "HPC_TRAIN_ATTEMPT": "0", "HPC_TRAIN_TOKEN": owner.token}
    return AttachedSoloWorld(find_attachment(0, names))
