"""Which checkpoint of a framework is taken: only one that all ranks have finished, whatever was left half-written."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from hpc_train.errors import UsageError
from hpc_train.integrations.completion import (
    MARK,
    SUFFIX,
    complete_checkpoints,
    mark_complete,
    newest_checkpoint,
    unmark,
)


def write_checkpoint(path: Path, step: int | None) -> Path:
    """A directory as the Trainer makes it; marked if `step` is given."""
    (path / "shards").mkdir(parents=True)
    for name, size in (("model.bin", 100), ("rng_state_0.pth", 7), ("shards/0.pt", 9)):
        (path / name).write_bytes(bytes(size))
    if step is not None:
        mark_complete(path, step)
    return path


def test_at_the_first_start_there_is_nothing_to_resume_from(tmp_path: Path) -> None:
    # Lightning's own "hpc" path raises here (its report 20347); the first run must just begin.
    assert newest_checkpoint(tmp_path / "not there yet") is None
    assert newest_checkpoint(tmp_path) is None


def test_the_newest_is_that_of_the_highest_step_not_of_the_last_name(tmp_path: Path) -> None:
    for step in (9, 100, 20):
        write_checkpoint(tmp_path / f"checkpoint-{step}", step)
    assert newest_checkpoint(tmp_path) == str(tmp_path / "checkpoint-100")
    assert [step for step, _ in complete_checkpoints(tmp_path)] == [9, 20, 100]


@pytest.mark.parametrize(
    ("saved_by", "asked_by", "is_taken"),
    [("/r/a", "/r/a", True), ("/r/a", "/r/b/", False), ("/r/a", "", True), ("", "/r/b", True), ("", "", True)],
)
def test_the_checkpoint_of_another_run_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, saved_by: str, asked_by: str, is_taken: bool
) -> None:
    # A second submit of a program that saves into ./out found itself finished, trained nothing, and was "completed".
    monkeypatch.setenv("HPC_TRAIN_RUN_DIR", saved_by)
    path = write_checkpoint(tmp_path / "checkpoint-9", 9)
    monkeypatch.setenv("HPC_TRAIN_RUN_DIR", asked_by)
    if is_taken:
        assert newest_checkpoint(tmp_path) == str(path)
    else:
        with pytest.raises(UsageError, match=r"checkpoint-9 is of run a, and this is run b: .*hpc-train resume a"):
            newest_checkpoint(tmp_path)


def test_a_run_whose_directory_was_renamed_keeps_its_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HPC_TRAIN_RUN_DIR", str(tmp_path / "old"))
    write_checkpoint(tmp_path / "old/huggingface/checkpoint-9", 9)
    (tmp_path / "old").rename(tmp_path / "new")
    monkeypatch.setenv("HPC_TRAIN_RUN_DIR", str(tmp_path / "new"))
    assert newest_checkpoint(tmp_path / "new/huggingface") == str(tmp_path / "new/huggingface/checkpoint-9")


def test_a_file_is_marked_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "step-000000003.ckpt"
    path.write_bytes(bytes(11))
    assert newest_checkpoint(tmp_path) is None
    assert mark_complete(path, 3) == 11
    assert newest_checkpoint(tmp_path) == str(path)
    unmark(path)
    assert newest_checkpoint(tmp_path) is None
    assert path.exists()


DAMAGES = {
    "never finished": lambda path: (path / MARK).unlink(),
    "a file is gone: a retention that was cut short": lambda path: (path / "rng_state_0.pth").unlink(),
    "a file is shorter": lambda path: (path / "shards/0.pt").write_bytes(bytes(8)),
    "a file is empty: a node lost its caches": lambda path: (path / "model.bin").write_bytes(b""),
    "the mark is empty": lambda path: (path / MARK).write_bytes(b""),
    "the mark is of another version": lambda path: (path / MARK).write_text('{"format": "x", "version": 9}'),
    "the mark holds something else": lambda path: (path / MARK).write_text("[1, 2]"),
    "the mark is a directory": lambda path: ((path / MARK).unlink(), (path / MARK).mkdir()),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_or_unfinished_one_is_passed_over_for_the_one_before(
    tmp_path: Path, damage: object, caplog: pytest.LogCaptureFixture
) -> None:
    write_checkpoint(tmp_path / "checkpoint-10", 10)
    newer = write_checkpoint(tmp_path / "checkpoint-20", 20)
    assert callable(damage)
    damage(newer)
    with caplog.at_level(logging.WARNING):
        assert newest_checkpoint(tmp_path) == str(tmp_path / "checkpoint-10")
    assert bool(caplog.records) == (damage is not DAMAGES["never finished"])  # damage is told, not an unfinished save


def test_what_others_lay_there_is_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "README").write_text("x")
    (tmp_path / f"lost.ckpt{SUFFIX}").write_text("{}")
    (tmp_path / ".checkpoint-5.tmp").mkdir()
    assert newest_checkpoint(tmp_path) is None


def test_a_moved_directory_keeps_its_checkpoints(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    write_checkpoint(tmp_path / "a" / "checkpoint-1", 1)
    (tmp_path / "a").rename(tmp_path / "b")
    assert newest_checkpoint(tmp_path / "b") == str(tmp_path / "b" / "checkpoint-1")
