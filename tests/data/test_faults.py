"""Damage on storage: found, tried again, named; never zeros, never a hang."""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest

from hpc_train.data import Manifest, ShardStream
from hpc_train.errors import DataError
from tests.data.datasets import arrays_of, byte_of, flip_bit, make_dataset

Dataset = tuple[Path, Manifest]


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return make_dataset(tmp_path / "set", 203)


def read_all(path: Path, *, check_crc: bool = True) -> int:
    """Read an epoch; the number of batches."""
    return len(list(ShardStream(path, global_batch=8, lanes=4, as_numpy=True, check_crc=check_crc)))


def test_a_flipped_bit_is_named_by_shard_block_and_samples(dataset: Dataset) -> None:
    path, manifest = dataset
    shard = manifest.shards[2]
    flip_bit(path / shard.name, byte_of(manifest, 2, "image", 17) + 3)
    with pytest.raises(DataError, match=rf"{shard.name}: block 23 \(samples 115 to 119\): field image .* checksum"):
        read_all(path)
    assert read_all(path, check_crc=False) == 25


def test_truncated_before_the_start_is_found_by_size(dataset: Dataset) -> None:
    path, manifest = dataset
    os.truncate(path / manifest.shards[1].name, 1000)
    with pytest.raises(DataError, match=rf"{manifest.shards[1].name}: 1000 bytes, the manifest says \d+"):
        ShardStream(path, global_batch=8)


@pytest.mark.parametrize("shard_samples", [5, 205])  # the file is opened after the cut, and before it
def test_truncated_during_the_run_is_an_error_not_zeros(tmp_path: Path, shard_samples: int) -> None:
    path, manifest = make_dataset(tmp_path / "set", 203, shard_samples=shard_samples)
    stream = ShardStream(path, global_batch=8, lanes=2, prefetch=1, as_numpy=True, check_crc=False)
    labels = arrays_of(203)["label"]
    with pytest.raises(DataError, match=r"the file (ends at byte|has) .*3 times"):
        for batch in stream:
            assert (batch["label"] == labels[stream.batch_ids]).all()
            for shard in manifest.shards:
                os.truncate(path / shard.name, 2060)


@pytest.mark.parametrize("damage", ["missing", "empty", "directory", "pipe"])
def test_a_shard_that_is_no_file_of_its_size_is_refused_at_the_start(dataset: Dataset, damage: str) -> None:
    path, manifest = dataset
    shard = path / manifest.shards[3].name
    shard.unlink()
    if damage == "empty":
        shard.touch()
    elif damage == "directory":
        shard.mkdir()
    elif damage == "pipe":
        os.mkfifo(shard)
    with pytest.raises(DataError, match=f"damaged: {shard.name}: "):
        ShardStream(path, global_batch=8)


def test_a_shard_replaced_between_epochs_is_noticed(dataset: Dataset) -> None:
    path, manifest = dataset
    stream = ShardStream(path, global_batch=8, lanes=4, as_numpy=True, check_crc=False)
    list(stream)
    shard = path / manifest.shards[0].name
    copy = shard.with_suffix(".copy")
    copy.write_bytes(shard.read_bytes())
    copy.rename(shard)
    with pytest.raises(DataError, match=f"{shard.name}: .* was replaced by another one"):
        list(stream)


def test_a_stale_handle_is_opened_again_by_its_path(dataset: Dataset, tmp_path: Path) -> None:
    # What ESTALE asks for: here the open file's number is made to mean an empty file behind the reader's back.
    path, manifest = dataset
    (tmp_path / "empty").touch()
    stream = ShardStream(path, global_batch=8, lanes=4, shuffle=False, prefetch=1, as_numpy=True)
    labels: list[int] = []
    for batch in stream:
        labels += batch["label"].tolist()
        if stream.step == 1:
            first = str((path / manifest.shards[0].name).resolve())
            (number,) = [int(fd.name) for fd in Path("/proc/self/fd").iterdir() if os.path.realpath(fd) == first]
            with (tmp_path / "empty").open() as empty:
                os.dup2(empty.fileno(), number)
    assert labels == list(range(200))
    assert stream.num_retries == 1


def test_a_shard_that_grew_between_epochs_is_refused(dataset: Dataset) -> None:
    path, manifest = dataset
    stream = ShardStream(path, global_batch=8, lanes=4, as_numpy=True)
    list(stream)
    with (path / manifest.shards[1].name).open("ab") as file:
        file.write(b"more")
    with pytest.raises(DataError, match="the manifest says"):
        list(stream)


def test_a_shard_of_another_pack_in_its_place_is_noticed(dataset: Dataset, tmp_path: Path) -> None:
    path, manifest = dataset
    other, other_manifest = make_dataset(tmp_path / "other", 203, shard_samples=100)
    source = (other / other_manifest.shards[0].name).read_bytes()
    target = path / manifest.shards[0].name
    target.write_bytes(source[: target.stat().st_size].ljust(target.stat().st_size, b"\0"))
    with pytest.raises(DataError, match="does not match its checksum"):
        read_all(path)


def test_damage_that_heals_is_read_again_and_counted(dataset: Dataset) -> None:
    path, manifest = dataset
    offset = byte_of(manifest, 0, "label", 0)
    shard = path / manifest.shards[0].name
    flip_bit(shard, offset)
    stream = ShardStream(path, global_batch=8, lanes=4, shuffle=False, as_numpy=True)

    def heal() -> None:
        while stream.num_retries < 1:  # counted before the pause in which it heals
            time.sleep(0.001)
        flip_bit(shard, offset)

    healer = threading.Thread(target=heal, daemon=True)
    healer.start()
    labels = [label for batch in stream for label in batch["label"].tolist()]
    healer.join(10)
    assert labels == list(range(200))
    assert stream.num_retries >= 1


def test_after_an_error_the_position_stands_and_the_thread_is_gone(dataset: Dataset) -> None:
    path, manifest = dataset
    offset = byte_of(manifest, 2, "label", 20)
    flip_bit(path / manifest.shards[2].name, offset)
    stream = ShardStream(path, global_batch=8, lanes=4, shuffle=False, as_numpy=True)
    with pytest.raises(DataError):
        list(stream)
    step = stream.step
    assert step == 15  # samples 0 to 119; block 24, of batch 15, begins with sample 120
    assert not [thread for thread in threading.enumerate() if thread.name == "hpc-train-data"]
    flip_bit(path / manifest.shards[2].name, offset)
    assert [batch["label"][0] for batch in stream] == list(range(step * 8, 200, 8))


def test_few_files_may_be_open_and_all_shards_are_read(tmp_path: Path) -> None:
    # 101 shards with a limit of 64 open files, most of which other parts of the program hold.
    path, _ = make_dataset(tmp_path / "many", 203, block_samples=1, shard_samples=2)
    program = f"""
        import os, resource
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        from hpc_train.data import ShardStream
        stream = ShardStream({str(path)!r}, global_batch=7, lanes=7, as_numpy=True)
        held = []
        for number, batch in enumerate(stream):
            if number == 2:
                while len(held) < 40:
                    try:
                        held.append(os.open("/dev/null", os.O_RDONLY))
                    except OSError:
                        break
        print(number)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=60, cwd=Path.cwd()
    )
    assert done.stdout.strip() == "28", done.stderr


@pytest.mark.parametrize("end", ["pass", "raise SystemExit(7)", "raise ValueError('program')"])
def test_the_interpreter_ends_at_once_in_the_middle_of_a_loop(dataset: Dataset, end: str) -> None:
    program = f"""
        from hpc_train.data import ShardStream
        stream = ShardStream({str(dataset[0])!r}, global_batch=8, prefetch=1, as_numpy=True)
        iterator = iter(stream)
        next(iterator)
        {end}
    """
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=30, cwd=Path.cwd()
    )
    assert done.returncode == {"p": 0, "raise S": 7}.get(end[:7] if end[0] == "r" else "p", 1)
    assert "Fatal" not in done.stderr
    assert time.monotonic() - began < 15


def test_memory_stays_within_its_bound(tmp_path: Path) -> None:
    # 64 MB of data, windows of 1 MB: reading all of it must not keep it.
    import numpy as np

    from hpc_train.data import pack_arrays

    pack_arrays(tmp_path / "big", {"x": np.zeros((64_000, 1000), np.uint8)}, block_samples=250)
    stream = ShardStream(tmp_path / "big", global_batch=64, lanes=2, as_numpy=True)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in stream:
        pass
    grown_bytes = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert stream.max_buffer_bytes < 4_000_000
    assert grown_bytes < 24_000_000
