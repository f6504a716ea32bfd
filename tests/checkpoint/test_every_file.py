"""Damage to any file of a checkpoint, one kind after another: verify names the file, and no load gives wrong values."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from hpc_train.checkpoint import Checkpointer
from hpc_train.cli.checkpoint import command
from hpc_train.errors import CheckpointError

OF_CHECKPOINT = ("COMMIT", "data-00000.safetensors", "index.json")
OF_ROOT = ("LATEST", "owner.json")


def state(value: int) -> dict[str, Any]:
    return {"m": {"w": np.full(3000, value, np.float32), "odd": np.full(7, value, np.uint8), "n": value}}


def own(value: int) -> dict[str, Any]:
    return {"mine": {"x": np.full(11, value, np.int64)}}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    checkpoint = Checkpointer(tmp_path / "a root")
    for step in (1, 2):
        checkpoint.save(step, state(step), per_rank=own(step))
    return tmp_path / "a root"


def verify(path: Path) -> Result:
    return CliRunner().invoke(command, ["verify", str(path)])


def assert_never_wrong(root: Path) -> None:
    """A load gives one of the two states whole, with its step, or fails."""
    live, mine = state(0), own(0)
    try:
        step = Checkpointer(root).load(live, per_rank=mine)
    except CheckpointError:
        return
    assert step in (1, 2)
    for loaded, saved in ((live["m"], state(step)["m"]), (mine["mine"], own(step)["mine"])):
        assert all(np.array_equal(loaded[name], saved[name]) for name in saved)


def flip(path: Path, offset: int, bit: int = 2) -> None:
    raw = bytearray(path.read_bytes())
    raw[offset] ^= 1 << bit
    path.write_bytes(raw)


@pytest.mark.parametrize("name", OF_CHECKPOINT)
def test_one_flipped_bit_anywhere_is_found_and_its_file_named(root: Path, name: str) -> None:
    path = root / "step-000000002" / name
    size = path.stat().st_size
    random = np.random.default_rng(OF_CHECKPOINT.index(name))
    places = [(0, 0), (size - 1, 7), *zip(random.integers(0, size, 40), random.integers(0, 8, 40), strict=True)]
    for offset, bit in places:
        flip(path, int(offset), int(bit))
        done = verify(root)
        assert done.exit_code == 65, f"{name} at {offset}, bit {bit}: {done.output}"
        assert str(path) in done.output and "step-000000001: whole" in done.output
        assert_never_wrong(root)
        flip(path, int(offset), int(bit))
    assert verify(root).exit_code == 0


def replace_by(path: Path, make: Callable[[Path], object]) -> None:
    path.unlink()
    make(path)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "cut by one byte": lambda p: os.truncate(p, p.stat().st_size - 1),
    "cut to half": lambda p: os.truncate(p, p.stat().st_size // 2),
    "emptied": lambda p: os.truncate(p, 0),
    "longer": lambda p: p.write_bytes(p.read_bytes() + b"\n"),
    "gone": lambda p: p.unlink(),
    "a directory": lambda p: replace_by(p, Path.mkdir),
    "a pipe": lambda p: replace_by(p, os.mkfifo),
    "a link": lambda p: replace_by(p, lambda q: q.symlink_to(q.parents[1] / "step-000000001" / q.name)),
    "zeros of the same length": lambda p: p.write_bytes(bytes(p.stat().st_size)),
    "of the other checkpoint": lambda p: shutil.copy(p.parents[1] / "step-000000001" / p.name, p),
}


@pytest.mark.parametrize("name", OF_CHECKPOINT)
@pytest.mark.parametrize("kind", DAMAGE)
def test_a_file_that_is_not_what_was_written_is_named(root: Path, kind: str, name: str) -> None:
    path = root / "step-000000002" / name
    DAMAGE[kind](path)
    done = verify(root)
    assert done.exit_code == 65
    assert str(path) in done.output
    assert_never_wrong(root)


@pytest.mark.parametrize("name", OF_ROOT)
@pytest.mark.parametrize("kind", ["cut to half", "emptied", "a directory", "zeros of the same length"])
def test_a_damaged_record_of_the_root_is_named_and_does_no_harm(root: Path, kind: str, name: str) -> None:
    DAMAGE[kind](root / name)
    done = verify(root)
    assert done.exit_code == 0
    assert f"warning: {root / name}: damaged" in done.output
    assert Checkpointer(root).load(state(0)) == 2


def test_stale_advice_is_named(root: Path) -> None:
    shutil.rmtree(root / "step-000000002")
    assert f"warning: {root}/LATEST: says step 2, the newest is 1" in verify(root).output


def test_files_that_do_not_belong_are_named(root: Path) -> None:
    extra = root / "step-000000002" / "data-00001.safetensors"
    shutil.copy(extra.with_name("data-00000.safetensors"), extra)
    done = verify(root)
    assert done.exit_code == 0
    assert f"warning: {extra}: is not part of the checkpoint" in done.output


def test_each_of_several_damages_is_named(root: Path) -> None:
    step = root / "step-000000002"
    os.unlink(step / "data-00000.safetensors")
    flip(step / "index.json", 50)
    done = verify(step)
    assert done.exit_code == 65
    assert "data-00000.safetensors: No such file" in done.output and "index.json: its sha256" in done.output
