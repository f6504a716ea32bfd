"""What is listed of checkpoints of which files are gone."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_train.checkpoint import Checkpointer, list_checkpoints


@pytest.mark.parametrize("how", ["missing", "cut short", "a directory"])
def test_a_checkpoint_without_its_index_is_listed_as_damaged_by_name(tmp_path: Path, how: str) -> None:
    checkpoint = Checkpointer(tmp_path, keep=2)
    for step in (50, 60):
        checkpoint.save(step, {"train": {"step": step}})
    index = tmp_path / "step-000000060" / "index.json"
    whole = index.read_bytes()
    index.unlink()
    if how == "cut short":
        index.write_bytes(whole[:-1])
    elif how == "a directory":
        index.mkdir()
    entries = list_checkpoints(tmp_path)
    assert [(each.step, each.status) for each in entries] == [(50, "committed"), (60, "damaged")]
    assert str(index) in (entries[1].problem or "")
    assert Checkpointer(tmp_path).load({"train": {"step": 0}}) == 50


def test_retention_lets_a_checkpoint_without_index_go(tmp_path: Path) -> None:
    checkpoint = Checkpointer(tmp_path, keep=1)
    checkpoint.save(1, {"train": {"step": 1}})
    (tmp_path / "step-000000001" / "index.json").unlink()
    checkpoint.save(2, {"train": {"step": 2}})
    assert [each.step for each in list_checkpoints(tmp_path)] == [2]
