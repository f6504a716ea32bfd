"""Damage to any file of a dataset, one kind after another: verify names the file, and no load gives a wrong sample."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from click.testing import CliRunner, Result

from hpc_train.cli.data import command
from hpc_train.data import Manifest, ShardStream
from hpc_train.errors import DataError
from tests.data.datasets import arrays_of, flip_bit, make_dataset

NUM_SAMPLES = 53
NUM_FILES = 3  # the manifest and two shards
Dataset = tuple[Path, Manifest]


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return make_dataset(tmp_path / "set", NUM_SAMPLES, shard_samples=30)


def file_of(dataset: Dataset, number: int) -> Path:
    return sorted(dataset[0].iterdir())[number]


def verify(path: Path) -> Result:
    return CliRunner().invoke(command, ["verify", str(path)])


def load_all(path: Path) -> dict[str, npt.NDArray[np.generic]]:
    stream = ShardStream(path, global_batch=1, shuffle=False)
    try:
        batches = list(stream)
    finally:
        stream.close()
    return {name: np.concatenate([batch[name] for batch in batches]) for name in arrays_of(1)}


def assert_never_wrong(path: Path) -> None:
    """A load fails, or gives what was packed."""
    try:
        loaded = load_all(path)
    except DataError:
        return
    packed = arrays_of(NUM_SAMPLES)
    assert all(np.array_equal(loaded[name], packed[name]) for name in packed)


@pytest.mark.parametrize("number", range(NUM_FILES))
def test_one_flipped_bit_anywhere_is_found_and_its_file_named(dataset: Dataset, number: int) -> None:
    path = file_of(dataset, number)
    size = path.stat().st_size
    random = np.random.default_rng(number)
    for offset in [0, size - 1, *random.integers(0, size, 8).tolist()]:
        flip_bit(path, offset)
        done = verify(dataset[0])
        assert done.exit_code == 65, f"{path.name} at {offset}: {done.output}"
        assert path.name in done.output
        assert_never_wrong(dataset[0])
        flip_bit(path, offset)
    assert verify(dataset[0]).exit_code == 0


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
    "zeros of the same length": lambda p: p.write_bytes(bytes(p.stat().st_size)),
}


@pytest.mark.parametrize("number", range(NUM_FILES))
@pytest.mark.parametrize("kind", DAMAGE)
def test_a_file_that_is_not_what_was_written_is_named(dataset: Dataset, kind: str, number: int) -> None:
    path = file_of(dataset, number)
    DAMAGE[kind](path)
    done = verify(dataset[0])
    assert done.exit_code == 65
    assert path.name in done.output
    assert_never_wrong(dataset[0])


def test_shards_that_changed_places_are_both_named(tmp_path: Path) -> None:
    path, manifest = make_dataset(tmp_path / "set", 60, shard_samples=30)  # two of one size
    one, two = (path / shard.name for shard in manifest.shards)
    one.rename(path / "aside")
    two.rename(one)
    (path / "aside").rename(two)
    done = verify(path)
    assert done.exit_code == 65
    assert one.name in done.output and two.name in done.output
    with pytest.raises(DataError, match="does not match its checksum"):
        load_all(path)


def test_files_that_do_not_belong_are_named(dataset: Dataset) -> None:
    shutil.copy(file_of(dataset, 1), dataset[0] / "copy.h5")
    (dataset[0] / "notes.txt").touch()
    done = verify(dataset[0])
    assert done.exit_code == 0
    assert "warning: 'copy.h5' is not part of the dataset\nwarning: 'notes.txt' is not part" in done.output
