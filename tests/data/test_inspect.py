"""`hpc-train data inspect`: what a dataset holds, without numpy or HDF5, and one sample as it was packed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result

from hpc_train.cli.data import command
from hpc_train.data import Manifest, pack_arrays, pack_bytes
from hpc_train.errors import HpcTrainError
from tests.data.datasets import arrays_of, byte_of, flip_bit, make_dataset

Dataset = tuple[Path, Manifest]


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return make_dataset(tmp_path / "a set", 203)


def run(*arguments: object) -> Result:
    return CliRunner().invoke(command, ["inspect", *map(str, arguments)])


def test_fields_shards_blocks_and_sources_are_shown(dataset: Dataset) -> None:
    path, manifest = dataset
    done = run(path)
    assert done.exit_code == 0, done.output
    for text in (
        "samples    203 of 24 bytes: 4,872 bytes",
        "blocks     41 of 5 samples",
        "field      image: uint16 [2, 3]",
        "field      label: int64\n",
        f"shard      {manifest.shards[4].name}: 3 samples",
        "source     packed_by: hpc_train.data.pack_arrays",
        manifest.hash,
    ):
        assert text in done.output


@pytest.mark.parametrize("number", [0, 4, 49, 50, 202])
def test_a_sample_is_decoded_as_it_was_packed(dataset: Dataset, number: int) -> None:
    done = run(dataset[0], "--json", "--sample", number)
    record = json.loads(done.output)
    assert (record["format"], record["version"]) == ("hpc-train-data-inspect", 1)
    packed = {name: array[number].tolist() for name, array in arrays_of(203).items()}
    assert record["sample"]["values"] == packed
    assert record["sample"]["block"] == number // 5


def test_every_dtype_of_the_format_is_decoded(tmp_path: Path) -> None:
    dtypes = ["bool", "u1", "i1", "u2", "i2", "f2", "u4", "i4", "f4", "u8", "i8", "f8"]
    arrays: dict[str, Any] = {f"a_{dtype}": (np.arange(6) % 2 * 3).astype(dtype).reshape(3, 2) for dtype in dtypes}
    arrays["a_f4"][1] = [np.nan, -np.inf]
    pack_arrays(tmp_path / "set", arrays)
    values = json.loads(run(tmp_path / "set", "--json", "--sample", 1).output)["sample"]["values"]
    assert values.pop("a_f4") == ["nan", "-inf"]
    assert values == {name: array[1].tolist() for name, array in arrays.items() if name != "a_f4"}


def test_packed_text_is_shown_as_text_that_no_terminal_obeys(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"hello \x1b[31mworld\n" * 9)
    pack_bytes(tmp_path / "set", [tmp_path / "text"], sequence=15)
    done = run(tmp_path / "set", "--sample", 0)
    assert "tokens as text: 'hello \\x1b[31mworl" in done.output
    assert "\x1b" not in done.output


@pytest.mark.parametrize(("number", "code"), [(203, 2), (-1, 2)])
def test_a_sample_that_is_not_there_is_refused(dataset: Dataset, number: int, code: int) -> None:
    done = run(dataset[0], f"--sample={number}")
    assert isinstance(done.exception, HpcTrainError) and done.exception.exit_code == code
    assert "samples 0 to 202" in str(done.exception)


def test_a_sample_of_a_damaged_block_is_not_shown(dataset: Dataset) -> None:
    path, manifest = dataset
    flip_bit(path / manifest.shards[1].name, byte_of(manifest, 1, "label", 7))
    assert run(path, "--sample", 54).exit_code == 0  # the block before
    done = run(path, "--sample", 55)
    assert isinstance(done.exception, HpcTrainError) and done.exception.exit_code == 65
    assert f"{manifest.shards[1].name}: field label, block 1" in str(done.exception)


def test_nothing_heavy_is_imported(dataset: Dataset) -> None:
    program = (
        "import sys\nfrom click.testing import CliRunner\nfrom hpc_train.cli.data import command\n"
        f"assert CliRunner().invoke(command, ['inspect', {str(dataset[0])!r}, '--sample', '3']).exit_code == 0\n"
        "assert not {'torch', 'numpy', 'mpi4py', 'h5py'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60, cwd=Path(__file__).parents[2])
