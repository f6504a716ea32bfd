"""commit: what a program saved by its own means is a commit of its run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

import hpc_train
from hpc_train.bootstrap.solo import AttachedSoloWorld
from hpc_train.errors import Superseded, UsageError
from hpc_train.files import flush_file_system
from hpc_train.run.journal import read_journal
from hpc_train.run.layout import RunDir
from hpc_train.run.ownership import take_ownership
from hpc_train.run.space import describe_space
from tests.support.ranks import run_cases


def commits(run: RunDir) -> list[tuple[int, str]]:
    return [(event.fields["step"], event.fields["path"]) for event in read_journal(run) if event.event == "commit"]


def test_step_and_path_stand_in_the_journal(
    run: RunDir, world: AttachedSoloWorld, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (run.path / "saved").mkdir()
    (run.path / "saved/a.pt").touch()
    (tmp_path / "link").symlink_to(run.path)
    hpc_train.commit(world, 1, run.path / "saved" / "a.pt")
    hpc_train.commit(world, 2, str(tmp_path / "link" / "saved"))
    hpc_train.commit(world, 3, tmp_path)
    monkeypatch.chdir(run.path / "saved")
    hpc_train.commit(world, 4, "a.pt")
    # relative where the run's directory holds it: that can be renamed
    assert commits(run) == [(1, "saved/a.pt"), (2, "saved"), (3, str(tmp_path)), (4, "saved/a.pt")]
    assert describe_space(run, read_journal(run))[0].startswith(f"{run.path}/saved: ")


def test_what_does_not_exist_is_no_commit(run: RunDir, world: AttachedSoloWorld) -> None:
    with pytest.raises(UsageError, match=r"commit\(step=1\): .*a\.pt does not exist on .*: write the checkpoint under"):
        hpc_train.commit(world, 1, run.path / "a.pt")
    assert commits(run) == []


def test_a_step_of_another_library_is_written_as_a_plain_number(run: RunDir, world: AttachedSoloWorld) -> None:
    hpc_train.commit(world, np.int64(3), run.path)
    hpc_train.commit(world, torch.tensor(4), run.path)
    assert [step for step, _ in commits(run)] == [3, 4]


@pytest.mark.parametrize("step", [-1, True, 1.0, "1", None, 1 << 63])
def test_a_step_is_a_whole_number(run: RunDir, world: AttachedSoloWorld, step: int) -> None:
    with pytest.raises(UsageError, match=r"commit: step = .*; allowed: an int of 0 or more"):
        hpc_train.commit(world, step, run.path)
    assert commits(run) == []


def test_an_attempt_that_lost_the_run_commits_nothing(run: RunDir, world: AttachedSoloWorld) -> None:
    take_ownership(run)
    with pytest.raises(Superseded):
        hpc_train.commit(world, 1, run.path)
    assert commits(run) == []


def test_outside_a_run_nothing_is_written_but_a_wrong_path_is_still_told(tmp_path: Path) -> None:
    hpc_train.commit(hpc_train.SoloWorld(), 1, tmp_path)
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UsageError, match="does not exist"):
        hpc_train.commit(hpc_train.SoloWorld(), 1, tmp_path / "a.pt")


@pytest.mark.mpi
def test_all_ranks_hear_the_same(tmp_path: Path) -> None:
    run_cases("tests.observe.commit_cases", 2, tmp_path)


def test_a_flush_of_what_is_not_there_is_an_error(tmp_path: Path) -> None:
    flush_file_system(tmp_path)
    with pytest.raises(FileNotFoundError):
        flush_file_system(tmp_path / "nothing")
