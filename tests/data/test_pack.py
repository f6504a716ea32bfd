"""Packing: the bytes asked for, in a stated order, and on failure nothing that looks like a dataset."""

from __future__ import annotations

import math
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpc_train.data import ShardStream, pack_arrays, pack_bytes, read_manifest, verify_dataset
from hpc_train.data.dataset_writer import default_block_samples, default_shard_samples
from hpc_train.errors import CannotCreateError, DataError, NoSpaceError, SpecError
from tests.data.datasets import arrays_of, make_dataset


def rows_of(path: Path) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """All samples of a byte dataset, as the HDF5 library reads them."""
    parts = []
    for shard in read_manifest(path).shards:
        with h5py.File(path / shard.name) as file:
            parts.append(file["tokens"][()])
    return np.concatenate(parts)


@given(
    sizes=st.lists(st.integers(0, 400), min_size=1, max_size=4),
    sequence=st.integers(1, 50),
    block=st.integers(1, 9),
    blocks_per_shard=st.integers(1, 4),
)
@settings(max_examples=10, deadline=None)
def test_samples_are_the_bytes_in_order(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], sequence: int, block: int, blocks_per_shard: int
) -> None:
    directory = tmp_path_factory.mktemp("pack")
    sources = [directory / f"source-{number}" for number in range(len(sizes))]
    for number, (source, size) in enumerate(zip(sources, sizes, strict=True)):
        source.write_bytes(np.random.default_rng(number).integers(0, 256, size, dtype=np.uint8).tobytes())
    whole = b"".join(source.read_bytes() for source in sources)
    num_samples = (len(whole) - 1) // sequence
    options = {"sequence": sequence, "block_samples": block, "shard_samples": block * blocks_per_shard}
    if num_samples < 1:
        with pytest.raises(DataError, match="do not fill one sample"):
            pack_bytes(directory / "set", sources, **options)  # type: ignore[arg-type]
        return
    summary = pack_bytes(directory / "set", sources, **options)  # type: ignore[arg-type]
    expected = [list(whole[k * sequence : (k + 1) * sequence + 1]) for k in range(num_samples)]
    assert rows_of(directory / "set").tolist() == expected
    assert summary.num_bytes + summary.num_dropped_bytes == len(whole)
    assert len(summary.manifest.shards) == math.ceil(num_samples / (block * blocks_per_shard))


def test_entropy_is_that_of_single_bytes(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"aaab" * 100 + b"a")
    summary = pack_bytes(tmp_path / "set", [tmp_path / "text"], sequence=4)
    share_b = 100 / 401
    expected = -(share_b * math.log(share_b) + (1 - share_b) * math.log(1 - share_b))
    assert summary.manifest.statistics["byte_entropy_nats"] == pytest.approx(expected)
    (tmp_path / "same").write_bytes(b"a" * 50)
    again = pack_bytes(tmp_path / "set2", [tmp_path / "same"], sequence=4)
    assert math.copysign(1, again.manifest.statistics["byte_entropy_nats"]) == 1


def test_arrays_come_back_and_wrong_ones_are_refused(tmp_path: Path) -> None:
    arrays = arrays_of(57)
    pack_arrays(tmp_path / "set", arrays, block_samples=4, shard_samples=8)
    stream = ShardStream(tmp_path / "set", global_batch=57, shuffle=False, as_numpy=True)
    (batch,) = stream
    for name, array in arrays.items():
        np.testing.assert_array_equal(batch[name], array)
    with pytest.raises(SpecError, match="all of one length"):
        pack_arrays(tmp_path / "bad", {"a": np.zeros(3), "b": np.zeros(4)})
    with pytest.raises(SpecError, match="dtype = 'complex128'"):
        pack_arrays(tmp_path / "bad", {"a": np.zeros(3, dtype=complex)})
    for name, array, said in (
        ("a/b", np.zeros(3), "not a name"),
        (".", np.zeros(3), "not a name"),
        ("a", np.zeros((3, 0)), "no bytes"),
    ):
        with pytest.raises(SpecError, match=said):
            pack_arrays(tmp_path / "bad", {name: array})
    assert not (tmp_path / "bad").exists()


def test_big_endian_and_strided_arrays_are_stored_little_endian(tmp_path: Path) -> None:
    array = np.arange(20, dtype=">f4").reshape(10, 2)[::2]
    pack_arrays(tmp_path / "set", {"x": array, "flag": np.arange(5) % 2 == 0})
    (batch,) = ShardStream(tmp_path / "set", global_batch=5, shuffle=False, as_numpy=True)
    np.testing.assert_array_equal(batch["x"], array.astype("<f4"))
    assert batch["flag"].tolist() == [True, False, True, False, True]
    assert verify_dataset(tmp_path / "set").problems == []


def test_shards_are_plain_hdf5_with_the_stated_layout(tmp_path: Path) -> None:
    path, manifest = make_dataset(tmp_path / "set", 203)
    for shard in manifest.shards:
        raw = (path / shard.name).read_bytes()
        assert len(raw) == shard.size_bytes
        assert raw[8] == 0  # version 0 superblock: that of the earliest library
        with h5py.File(path / shard.name) as file:
            for name, extent in shard.fields.items():
                assert file[name].chunks is None
                assert file[name].id.get_offset() == extent.offset
                assert file[name].dtype.byteorder in "<=|"
    assert [shard.num_samples for shard in manifest.shards] == [50, 50, 50, 50, 3]


def test_large_fields_begin_on_a_mebibyte(tmp_path: Path) -> None:
    manifest = pack_arrays(tmp_path / "set", {"a": np.zeros((70, 1000), np.uint8), "b": np.ones((70, 1000), np.uint8)})
    assert {extent.offset % (1 << 20) for extent in manifest.shards[0].fields.values()} == {0}


def test_default_sizes_are_whole_blocks_of_good_size() -> None:
    for num_samples, sample_bytes in [(1, 1), (10**6, 257), (10**9, 4096), (10**5, 3 << 20)]:
        block = default_block_samples(num_samples, sample_bytes)
        assert block == 1 or block * sample_bytes <= 1 << 20
        assert default_shard_samples(block, sample_bytes) % block == 0


def tree(root: Path) -> Path:
    """A directory with what users really have in theirs."""
    (root / "b").mkdir(parents=True)
    (root / "b" / "2.txt").write_bytes(b"two.")
    (root / "b" / "10.txt").write_bytes(b"ten.")
    (root / "a.txt").write_bytes(b"aaaa")
    (root / "c.md").write_bytes(b"markdown")
    (root / ".git").mkdir()
    (root / ".git" / "x.txt").write_bytes(b"hidden")
    (root / "odd\nname 'q'.txt").write_bytes(b"odd.")
    (root / "loop.txt").symlink_to("loop.txt")
    (root / "broken.txt").symlink_to("nowhere")
    (root / "b" / "up").symlink_to("..")
    os.mkfifo(root / "pipe.txt")
    return root


def test_directories_are_walked_in_order_and_odd_things_are_skipped_and_counted(tmp_path: Path) -> None:
    summary = pack_bytes(tmp_path / "set", [tree(tmp_path / "src")], sequence=1, globs=["*.txt"])
    rows = rows_of(tmp_path / "set")
    assert bytes(rows[:, 0]) + bytes(rows[-1:, 1]) == b"aaaaten.two.odd."
    assert summary.num_skipped == 4  # the loop, the broken link, the pipe, and `up`, which leads to the top
    assert {line.rpartition(": ")[2] for line in summary.skipped} == {
        "Too many levels of symbolic links",
        "No such file or directory",
        "not a regular file",
        "a link that leads back to a directory above it",
    }


def test_output_inside_the_source_is_not_its_own_input(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_bytes(b"abcdefgh")
    first = pack_bytes(tmp_path / "set", [tmp_path], sequence=1)
    second = pack_bytes(tmp_path / "set", [tmp_path], sequence=1, force=True)
    assert first.manifest.hash == second.manifest.hash


def test_a_source_that_is_missing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"source .*nowhere: No such file or directory"):
        pack_bytes(tmp_path / "set", [tmp_path / "nowhere"], sequence=4)
    assert not (tmp_path / "set").exists()


def test_a_dataset_is_replaced_only_on_demand_and_in_one_step(tmp_path: Path) -> None:
    path, old = make_dataset(tmp_path / "set", 60)
    (tmp_path / "text").write_bytes(b"x" * 1000)
    with pytest.raises(CannotCreateError, match="already holds a dataset"):
        pack_bytes(path, [tmp_path / "text"], sequence=9)
    assert read_manifest(path) == old
    new = pack_bytes(path, [tmp_path / "text"], sequence=9, force=True).manifest
    assert read_manifest(path) == new
    assert {entry.name for entry in path.iterdir()} == {"manifest.json", *(shard.name for shard in new.shards)}


def test_a_failed_replacement_leaves_the_old_dataset_whole(tmp_path: Path) -> None:
    path, old = make_dataset(tmp_path / "set", 60)
    before = {entry.name for entry in path.iterdir()}
    source = tmp_path / "text"
    source.write_bytes(b"x" * 100_000)

    def shrink(done: int, total: int) -> None:
        os.truncate(source, 10)

    with pytest.raises(DataError, match="became shorter while it was being packed"):
        pack_bytes(path, [source], sequence=9, block_samples=10, shard_samples=50, force=True, on_progress=shrink)
    assert read_manifest(path) == old
    assert {entry.name for entry in path.iterdir()} == before
    assert verify_dataset(path).is_good


def test_other_files_in_the_output_are_not_touched_without_force(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "thesis.tex").write_text("dear")
    (tmp_path / "text").write_bytes(b"x" * 1000)
    with pytest.raises(CannotCreateError, match=r"holds other files \(thesis.tex"):
        pack_bytes(tmp_path / "set", [tmp_path / "text"], sequence=9)
    pack_bytes(tmp_path / "set", [tmp_path / "text"], sequence=9, force=True)
    assert (tmp_path / "set" / "thesis.tex").read_text() == "dear"


@pytest.mark.parametrize(("name", "value"), [("sequence", 0), ("shard_samples", 7), ("block_samples", -1)])
def test_wrong_sizes_are_refused(tmp_path: Path, name: str, value: int) -> None:
    (tmp_path / "text").write_bytes(b"x" * 1000)
    options: dict[str, Any] = {"sequence": 9, "block_samples": 5, "shard_samples": 10, name: value}
    with pytest.raises(SpecError, match=name):
        pack_bytes(tmp_path / "new" / "set", [tmp_path / "text"], **options)
    assert not (tmp_path / "new").exists()


def test_more_blocks_than_a_manifest_holds_are_refused_at_once(tmp_path: Path) -> None:
    many = np.broadcast_to(np.uint8(0), (10_000_000,))
    with pytest.raises(SpecError, match=r"block_samples = 1 makes 10000000 blocks, .* ask for 2 or more"):
        pack_arrays(tmp_path / "set", {"x": many}, block_samples=1)


def test_a_full_file_system_leaves_nothing_behind(tmp_path: Path) -> None:
    # A limit on file size stands for the full disk: the same errors, without needing root for a tmpfs.
    (tmp_path / "text").write_bytes(b"x" * 300_000)
    program = f"""
        import resource
        from pathlib import Path
        from hpc_train.data import pack_bytes
        from hpc_train.errors import NoSpaceError
        resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))
        try:
            pack_bytes({str(tmp_path / "deep" / "set")!r}, [{str(tmp_path / "text")!r}],
                       sequence=100, block_samples=10, shard_samples=500)
        except NoSpaceError as error:
            print(error.exit_code, "free space" in str(error))
    """
    argv = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=60, cwd=Path.cwd())
    assert done.stdout == "73 True\n", done.stderr
    assert not (tmp_path / "deep").exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a tmpfs needs root")
@pytest.mark.parametrize("size", ["4k", "64k", "400k"])
def test_a_full_disk_is_no_space_and_leaves_nothing_behind(tmp_path: Path, size: str) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    (tmp_path / "text").write_bytes(b"x" * 600_000)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(disk)], check=True)
    try:
        with pytest.raises(NoSpaceError):
            pack_bytes(disk / "set", [tmp_path / "text"], sequence=100, block_samples=10, shard_samples=500)
        assert list(disk.iterdir()) == []
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def test_ctrl_c_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"x" * 2_000_000)
    program = f"""
        import time
        from hpc_train.data import pack_bytes
        def slowly(done, total):
            print(done, flush=True)
            time.sleep(0.05)
        pack_bytes({str(tmp_path / "set")!r}, [{str(tmp_path / "text")!r}],
                   sequence=100, block_samples=10, shard_samples=50, on_progress=slowly)
    """
    argv = [sys.executable, "-c", textwrap.dedent(program)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=Path.cwd()) as process:
        assert process.stdout is not None
        for _ in range(12):
            process.stdout.readline()
        assert len(list((tmp_path / "set").iterdir())) > 1
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=30)
    assert not (tmp_path / "set").exists()


@pytest.mark.parametrize("force", [False, True])
def test_a_second_pack_leaves_the_directory_of_one_at_work_alone(tmp_path: Path, force: bool) -> None:
    """What one at work has written so far looks like the rest of an interrupted pack, which --force removes."""
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_bytes(b"a" * 20_000)
    second.write_bytes(b"b" * 20_000)
    refused = []

    def on_progress(done: int, total: int) -> None:
        before = sorted((tmp_path / "set").iterdir())
        with pytest.raises(CannotCreateError, match=r"another pack writes to .* wait for it"):
            pack_bytes(tmp_path / "set", [second], sequence=100, force=force)
        with pytest.raises(CannotCreateError, match="another pack writes to"):
            pack_arrays(tmp_path / "set", {"x": np.zeros(3)}, force=force)
        assert sorted((tmp_path / "set").iterdir()) == before
        refused.append(done)

    pack_bytes(tmp_path / "set", [first], sequence=100, block_samples=50, on_progress=on_progress)
    assert len(refused) > 2
    assert set(rows_of(tmp_path / "set").tobytes()) == set(b"a")
    assert verify_dataset(tmp_path / "set").warnings == []
    assert len(list((tmp_path / "set").iterdir())) == 2


def test_without_locks_the_second_pack_to_end_replaces_nothing_unasked(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"a" * 20_000)
    other = tmp_path / "other"
    pack_bytes(other, [tmp_path / "text"], sequence=9)

    def on_progress(done: int, total: int) -> None:
        if not (tmp_path / "set" / "manifest.json").exists():  # as another host's pack commits it
            for file in other.iterdir():
                (tmp_path / "set" / file.name).write_bytes(file.read_bytes())

    with pytest.raises(CannotCreateError, match="already holds a dataset"):
        pack_bytes(tmp_path / "set", [tmp_path / "text"], sequence=100, block_samples=50, on_progress=on_progress)
    assert sorted(path.name for path in (tmp_path / "set").iterdir()) == sorted(path.name for path in other.iterdir())
    assert verify_dataset(tmp_path / "set").warnings == []


def test_a_killed_pack_is_no_dataset_and_can_be_done_again(tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"x" * 20_000)
    program = f"""
        import os, signal
        from hpc_train.data import pack_bytes
        def kill(done, total):
            if done > 15_000:
                os.kill(os.getpid(), signal.SIGKILL)
        pack_bytes({str(tmp_path / "set")!r}, [{str(tmp_path / "text")!r}],
                   sequence=100, block_samples=10, shard_samples=50, on_progress=kill)
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], timeout=60, cwd=Path.cwd())
    assert len(list((tmp_path / "set").iterdir())) == 4
    with pytest.raises(DataError, match="so it is not a dataset"):
        read_manifest(tmp_path / "set")
    for entry in (tmp_path / "set").glob("shard-*.h5"):
        with h5py.File(entry) as file:  # no mark of an open writer is left in it
            assert file["tokens"].shape == (50, 101)
    with pytest.raises(CannotCreateError, match="the rest of an interrupted pack"):
        pack_bytes(tmp_path / "set", [tmp_path / "text"], sequence=100)
    pack_bytes(tmp_path / "set", [tmp_path / "text"], sequence=100, force=True)
    assert len(list((tmp_path / "set").iterdir())) == 2
    assert verify_dataset(tmp_path / "set").warnings == []
