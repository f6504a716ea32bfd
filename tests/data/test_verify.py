"""Verifying: every damaged thing is named, nothing else, and no file can crash it."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from click.testing import CliRunner

from hpc_train.cli.data import command
from hpc_train.data import Manifest, read_manifest, verify_dataset
from hpc_train.data.manifest import manifest_path
from tests.data.datasets import byte_of, flip_bit, make_dataset

Dataset = tuple[Path, Manifest]


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return make_dataset(tmp_path / "set", 203)


def test_a_good_dataset_has_no_problems(dataset: Dataset) -> None:
    report = verify_dataset(dataset[0])
    assert (report.problems, report.warnings) == ([], [])
    assert (report.num_samples, report.num_shards, report.num_blocks) == (203, 5, 41)


def test_every_damaged_thing_is_named_once(dataset: Dataset) -> None:
    path, manifest = dataset
    names = [shard.name for shard in manifest.shards]
    flip_bit(path / names[0], byte_of(manifest, 0, "image", 3))
    flip_bit(path / names[0], byte_of(manifest, 0, "image", 4))  # the same block
    flip_bit(path / names[1], byte_of(manifest, 1, "label", 49))
    (path / names[2]).unlink()
    (path / names[3]).write_bytes(b"")
    flip_bit(path / names[4], byte_of(manifest, 4, "weight", 2))
    (path / "other.h5").touch()
    report = verify_dataset(path)
    found = [(names.index(p.shard), p.kind, p.field, p.block, p.first_sample, p.last_sample) for p in report.problems]
    expected = [
        (0, "block", "image", 0, 0, 4),
        (1, "block", "label", 19, 95, 99),
        (2, "missing", "", -1, -1, -1),
        (4, "block", "weight", 40, 200, 202),
    ]
    assert [each for each in found if each[0] != 3] == expected
    assert {each[1] for each in found if each[0] == 3} == {"size", "block", "hdf5"}
    assert report.warnings == ["'other.h5' is not part of the dataset"]


@pytest.mark.parametrize("cut", [0, 100, 2048, 3000])
def test_a_truncated_shard_is_reported_at_any_length(dataset: Dataset, cut: int) -> None:
    path, manifest = dataset
    os.truncate(path / manifest.shards[0].name, cut)
    report = verify_dataset(path)
    assert report.problems[0].kind == "size"
    assert {problem.shard for problem in report.problems} == {manifest.shards[0].name}


def rewrite(make: Callable[[h5py.File, bytes], None]) -> Callable[[Path, Manifest], None]:
    """Replace the dataset `label` of the first shard by something else of the same samples."""

    def act(path: Path, manifest: Manifest) -> None:
        with h5py.File(path / manifest.shards[0].name, "r+") as file:
            data = file["label"][()]
            del file["label"]
            make(file, data)

    return act


def external(file: h5py.File, data: Any) -> None:
    file.create_dataset("label", shape=data.shape, dtype=data.dtype, external=[("/etc/passwd", 0, h5py.h5f.UNLIMITED)])


def virtual(file: h5py.File, data: Any) -> None:
    layout = h5py.VirtualLayout(shape=data.shape, dtype=data.dtype)
    layout[:] = h5py.VirtualSource("missing.h5", "x", shape=data.shape)
    file.create_virtual_dataset("label", layout)


def moved(file: h5py.File, data: Any) -> None:
    file.create_dataset("other", data=data)  # takes the place that became free
    file.create_dataset("label", data=data)


REPLACEMENTS: dict[str, tuple[Callable[[h5py.File, Any], object], str]] = {
    "external storage": (external, "virtual or external storage"),
    "virtual": (virtual, "virtual or external storage"),
    "external link": (lambda f, d: f.__setitem__("label", h5py.ExternalLink("/x.h5", "/y")), "ExternalLink"),
    "soft link": (lambda f, d: f.__setitem__("label", h5py.SoftLink("/label")), "SoftLink"),
    "group": (lambda f, d: f.create_group("label"), "not a dataset"),
    "chunked": (lambda f, d: f.create_dataset("label", data=d, chunks=(5,)), "chunked storage"),
    "big-endian": (lambda f, d: f.create_dataset("label", data=d.astype(">i8")), "dtype >i8"),
    "wrong dtype": (lambda f, d: f.create_dataset("label", data=d.astype("<i4")), "dtype <i4"),
    "wrong shape": (lambda f, d: f.create_dataset("label", data=d[:-1]), r"shape \(49,\)"),
    "moved": (moved, "data at byte"),
    "gone": (lambda f, d: None, "no dataset of this name"),
    "never written": (lambda f, d: f.create_dataset("label", (1 << 40,), np.float64), "shape"),
}


@pytest.mark.parametrize("name", REPLACEMENTS)
def test_what_the_hdf5_library_sees_must_be_what_the_manifest_says(dataset: Dataset, name: str) -> None:
    path, manifest = dataset
    make, message = REPLACEMENTS[name]
    rewrite(make)(path, manifest)  # type: ignore[arg-type]
    of_library = [problem.message for problem in verify_dataset(path).problems if problem.kind == "hdf5"]
    (text,) = of_library
    assert text.startswith(f"{manifest.shards[0].name}: field label: ")
    assert re.search(message, text), text


@pytest.mark.parametrize("seed", range(4))
def test_no_damage_to_the_hdf5_structures_crashes_verify(dataset: Dataset, seed: int) -> None:
    path, manifest = dataset
    shard = path / manifest.shards[0].name
    random = np.random.default_rng(seed)
    raw = bytearray(shard.read_bytes())
    for offset in random.integers(0, 2048, 200):
        raw[offset] = random.integers(0, 256)
    shard.write_bytes(raw)
    report = verify_dataset(path)
    assert {problem.kind for problem in report.problems} <= {"hdf5", "block", "structure"}
    assert not report.is_good


def run(*arguments: str) -> Any:
    return CliRunner().invoke(command, arguments)


def test_the_command_exits_0_or_65_and_names_the_damage(dataset: Dataset) -> None:
    path, manifest = dataset
    good = run("verify", str(path))
    assert (good.exit_code, good.output.startswith("good: ")) == (0, True)
    flip_bit(path / manifest.shards[1].name, byte_of(manifest, 1, "label", 7))
    bad = run("verify", str(path))
    assert bad.exit_code == 65
    assert f"damaged: {manifest.shards[1].name}: field label, block 11 (samples 55 to 59)" in bad.output
    as_json = run("verify", "--json", str(path))
    record = json.loads(as_json.output)
    assert as_json.exit_code == 65
    assert (record["format"], record["version"], record["is_good"]) == ("hpc-train-data-verify", 1, False)
    assert record["problems"][0]["block"] == 11


@pytest.mark.parametrize("text", ["", "{}", "[1", '{"format": "hpc-train-dataset", "version": 9}'])
def test_a_damaged_manifest_is_65(dataset: Dataset, text: str) -> None:
    manifest_path(dataset[0]).write_text(text)
    done = run("verify", "--json", str(dataset[0]))
    assert (done.exit_code, json.loads(done.output)["problems"][0]["kind"]) == (65, "manifest")


@pytest.mark.parametrize("kind", ["nothing", "file", "empty directory"])
def test_what_is_no_dataset_is_65(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "x y'\n"
    if kind == "file":
        path.touch()
    elif kind == "empty directory":
        path.mkdir()
    assert run("verify", str(path)).exit_code == 65


def test_a_module_in_the_current_directory_is_not_run(dataset: Dataset, monkeypatch: pytest.MonkeyPatch) -> None:
    (dataset[0] / "h5py.py").write_text("raise SystemExit('hostile code ran')")
    (dataset[0] / "json.py").write_text("raise SystemExit('hostile code ran')")
    monkeypatch.chdir(dataset[0])
    report = verify_dataset(".")
    extra = [f"{name!r} is not part of the dataset" for name in ("h5py.py", "json.py")]
    assert (report.problems, report.warnings) == ([], extra)


def test_pack_says_what_it_made_and_what_comes_next(tmp_path: Path) -> None:
    source, out = tmp_path / "src dir", tmp_path / "out 'dir'"
    source.mkdir()
    (source / "a.txt").write_text("hello " * 100)
    (source / "gone.txt").symlink_to("nowhere")
    done = run("pack", str(out), str(source), "--sequence", "16", "--block-samples", "4", "--shard-samples", "16")
    assert done.exit_code == 0, done.output
    assert "37 samples in 10 blocks and 3 shards; 7 bytes at the end fill no sample" in done.output
    assert "warning: 1 file or directory was skipped" in done.output
    assert "packed 1 file, 593 bytes" in done.output
    assert "entropy of single bytes: 1." in done.output
    assert "next: hpc-train data verify '" in done.output
    assert read_manifest(out).num_samples == 37


def test_help_and_usage_errors_import_nothing_heavy() -> None:
    import subprocess
    import sys

    program = (
        "import sys\nfrom hpc_train.cli.data import command\n"
        "for arguments in (['--help'], ['pack', '--help'], ['verify', '--help'], ['pack']):\n"
        "    try: command(arguments)\n"
        "    except SystemExit: pass\n"
        "print([name for name in ('torch', 'numpy', 'h5py', 'mpi4py', 'rich') if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, cwd=Path.cwd(), check=True
    )
    assert done.stderr.splitlines()[-1] == "[]"
