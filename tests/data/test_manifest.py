"""The manifest: what is written is read back, and nothing hostile gets through, slow or large."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpc_train.data import Manifest, ShardStream, read_manifest
from hpc_train.data.manifest import decode_manifest, encode_manifest, manifest_path
from hpc_train.errors import DataError
from tests.data.datasets import make_dataset


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Manifest]:
    return make_dataset(tmp_path_factory.mktemp("data") / "set", 103)


def test_what_is_written_is_read_back(good: tuple[Path, Manifest]) -> None:
    assert read_manifest(good[0]) == good[1] == decode_manifest(encode_manifest(good[1]), "here")


def test_hash_is_of_the_samples_not_of_names_and_places(good: tuple[Path, Manifest]) -> None:
    record = json.loads(encode_manifest(good[1]))
    del record["self_crc32"]
    record["uuid"] = "0" * 32
    record["provenance"] = {"by": "hand"}
    record["shards"][0]["name"] = "moved.h5"
    assert decode_manifest(json.dumps(record), "").hash == good[1].hash
    record["shards"][0]["fields"]["label"]["crc32"][0] ^= 1
    assert decode_manifest(json.dumps(record), "").hash != good[1].hash


def shard(record: dict[str, Any], number: int = 0) -> dict[str, Any]:
    found: dict[str, Any] = record["shards"][number]
    return found


HOSTILE: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "name leads out": (lambda m: shard(m).update(name="../../etc/passwd.h5"), "name"),
    "name is absolute": (lambda m: shard(m).update(name="/etc/x.h5"), "name"),
    "name with a newline": (lambda m: shard(m).update(name="x.h5\n"), "name"),
    "hidden name": (lambda m: shard(m).update(name=".h5"), "name"),
    "name twice": (lambda m: shard(m).update(name=shard(m, 1)["name"]), "listed twice"),
    "field leads out": (lambda m: m["fields"].update({"a/b": m["fields"]["label"]}), "fields"),
    "unknown key": (lambda m: m.update(extra=1), "extra"),
    "unknown key in a shard": (lambda m: shard(m).update(extra=1), "extra"),
    "missing key": (lambda m: m.pop("shards"), "shards"),
    "no shards": (lambda m: m.update(shards=[]), "shards"),
    "no fields": (lambda m: m.update(fields={}), "fields"),
    "other fields in a shard": (lambda m: shard(m)["fields"].pop("label"), "fields are"),
    "unknown dtype": (lambda m: m["fields"]["label"].update(dtype="object"), "dtype = 'object'"),
    "big-endian dtype": (lambda m: m["fields"]["label"].update(dtype=">i8"), "dtype = '>i8'"),
    "huge shape": (lambda m: m["fields"]["label"].update(shape=[1 << 31] * 8), "larger than"),
    "zero in a shape": (lambda m: m["fields"]["label"].update(shape=[0]), "shape"),
    "deep shape": (lambda m: m["fields"]["label"].update(shape=[1] * 9), "shape"),
    "negative count": (lambda m: shard(m).update(num_samples=-5), "num_samples"),
    "huge count": (lambda m: shard(m).update(num_samples=1 << 62), "num_samples"),
    "count beyond 64 bits": (lambda m: shard(m).update(num_samples=10**30), "num_samples"),
    "count is a text": (lambda m: shard(m).update(num_samples="50"), "num_samples"),
    "count is a float": (lambda m: shard(m).update(num_samples=50.5), "num_samples"),
    "count is true": (lambda m: shard(m).update(num_samples=True), "num_samples"),
    "broken block in the middle": (lambda m: shard(m).update(num_samples=49), "not whole blocks"),
    "block of nothing": (lambda m: m.update(block_samples=0), "block_samples"),
    "huge block": (lambda m: m.update(block_samples=1 << 40), "larger than"),
    "checksum too many": (lambda m: shard(m)["fields"]["label"]["crc32"].append(1), "11 checksums for 10 blocks"),
    "checksum too large": (lambda m: shard(m)["fields"]["label"]["crc32"].__setitem__(0, 1 << 32), "crc32"),
    "bytes behind the end": (lambda m: shard(m)["fields"]["label"].update(offset=1 << 40), "of a file of"),
    "fields overlap": (
        lambda m: shard(m)["fields"]["weight"].update(offset=shard(m)["fields"]["label"]["offset"] + 8),
        "overlaps",
    ),
    "infinite statistics": (lambda m: m.update(statistics={"x": 1e308 * 10}), "damaged"),
    "newer version": (lambda m: m.update(version=2, shards="other"), "version = 2, but this hpc-train reads version 1"),
    "another format": (lambda m: m.update(format="x"), "format = 'x'"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_content_is_one_data_error(good: tuple[Path, Manifest], name: str) -> None:
    record = json.loads(encode_manifest(good[1]))
    change, message = HOSTILE[name]
    change(record)
    with pytest.raises(DataError, match=message):
        decode_manifest(json.dumps(record), "manifest.json")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "{",
        '{"format": "hpc-train-dataset", "version": 1, "version": 1}',
        "[" * 100_000,
        '{"a":' * 50_000,
        '{"format": "hpc-train-dataset", "version": ' + "9" * 100_000 + "}",
        '{"format": "hpc-train-dataset", "version": NaN}',
        "\ufeff{}",
        "\0" * 50,
    ],
    ids=range(11),
)
def test_text_that_is_no_manifest_is_one_data_error(text: str) -> None:
    with pytest.raises(DataError, match=r"manifest\.json: "):
        decode_manifest(text, "manifest.json")


def test_a_key_given_twice_is_refused(good: tuple[Path, Manifest]) -> None:
    text = encode_manifest(good[1]).rstrip().removesuffix("}") + ',"block_samples":5}'
    with pytest.raises(DataError, match="twice"):
        decode_manifest(text, "manifest.json")


@given(position=st.integers(0, 10**6), byte=st.integers(0, 127))
@settings(max_examples=150, deadline=None)
def test_any_changed_byte_is_found(good: tuple[Path, Manifest], position: int, byte: int) -> None:
    text = encode_manifest(good[1])
    position %= len(text)
    changed = text[:position] + chr(byte) + text[position + 1 :]
    if changed != text:
        with pytest.raises(DataError):
            decode_manifest(changed, "manifest.json")


def test_a_manifest_from_before_checksums_of_itself_is_read(good: tuple[Path, Manifest]) -> None:
    record = json.loads(encode_manifest(good[1]))
    del record["self_crc32"]
    assert decode_manifest(json.dumps(record), "manifest.json") == good[1]


def test_a_note_may_be_called_like_the_checksum(good: tuple[Path, Manifest]) -> None:
    noted = msgspec.structs.replace(good[1], provenance={"self_crc32": "00000000"})
    assert decode_manifest(encode_manifest(noted), "manifest.json") == noted


@pytest.mark.parametrize("filler", ["[[],", "0,", '{"a":0},', '"x",'])
def test_a_large_hostile_file_costs_little_time_and_memory(tmp_path: Path, filler: str) -> None:
    size = (60 << 20) // len(filler)
    manifest_path(tmp_path).write_text('{"format":"hpc-train-dataset","version":1,"shards":[' + filler * size)
    program = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))\n"
        "from hpc_train.data.manifest import read_manifest\n"
        "from hpc_train.errors import DataError\n"
        "try: read_manifest(sys.argv[1])\n"
        "except DataError as error: print('refused', len(str(error)) < 500)\n"
    )
    began = time.monotonic()
    argv = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, cwd=Path.cwd())
    assert done.stdout == "refused True\n", done.stderr
    assert time.monotonic() - began < 20


def test_what_is_not_a_dataset_is_told_apart(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere: no such directory"):
        read_manifest(tmp_path / "nowhere")
    with pytest.raises(DataError, match=r"no manifest\.json in it, so it is not a dataset"):
        ShardStream(tmp_path, global_batch=1)
    os.mkfifo(manifest_path(tmp_path))
    with pytest.raises(DataError, match="not a regular file"):
        read_manifest(tmp_path)


def test_a_manifest_larger_than_the_limit_is_not_read(tmp_path: Path) -> None:
    with manifest_path(tmp_path).open("wb") as file:
        file.truncate(1 << 40)  # a sparse file: its bytes are never asked for
    with pytest.raises(DataError, match="larger than"):
        read_manifest(tmp_path)
