"""Storage that refuses: locks that others hold or that are not there, files that may not be read, reads that fail."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import h5py
import pytest

from hpc_train.data import Manifest, verify_dataset
from tests.data.datasets import make_dataset
from tests.data.shim import build_shim, run_under

Dataset = tuple[Path, Manifest]


@pytest.fixture(scope="module")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_shim(tmp_path_factory.mktemp("shim"))


@pytest.fixture
def dataset(tmp_path: Path) -> Dataset:
    return make_dataset(tmp_path / "set", 203)


HOLD = """
import fcntl, sys
file = open(sys.argv[1])
fcntl.flock(file, fcntl.LOCK_EX)
print("held", flush=True)
input()
"""


@pytest.fixture
def locked(dataset: Dataset) -> Iterator[Path]:
    """The first shard, while another process holds its exclusive lock, as a writer of HDF5 files does."""
    path = dataset[0] / dataset[1].shards[0].name
    argv = [sys.executable, "-c", HOLD, str(path)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield path
        process.communicate("\n", timeout=30)


def test_a_lock_that_another_process_holds_does_not_hinder_verify(locked: Path) -> None:
    with pytest.raises(BlockingIOError):
        h5py.File(locked, "r", locking=True)  # the library's own way
    assert verify_dataset(locked.parent).problems == []


def test_packing_and_verifying_need_no_locks(shim: Path, tmp_path: Path) -> None:
    (tmp_path / "text").write_bytes(b"some text " * 500)
    lines = run_under(
        shim,
        """
        from pathlib import Path
        import h5py
        from hpc_train.data import pack_bytes, verify_dataset
        shim.no_locks(1)
        try:
            h5py.File("other.h5", "w", locking=True)
        except OSError as error:
            print("No locks available" in str(error))
        print(pack_bytes(Path("set"), [Path("text")], sequence=10, block_samples=20).manifest.num_samples)
        print(verify_dataset(Path("set")).problems, shim.num_locks() > 0)
        """,
        cwd=tmp_path,
    )
    assert lines == ["True", "499", "[] True"]


READ_ALL = """
import errno
from hpc_train.data import ShardStream
from hpc_train.errors import DataError
stream = ShardStream("set", global_batch=8, lanes=4, shuffle=False, as_numpy=True)
shim.fail_reads({num_reads}, errno.EIO)
try:
    labels = [int(label) for batch in stream for label in batch["label"]]
    print("as written" if labels == list(range(200)) else labels)
except DataError as error:
    print(error)
print(stream.num_retries)
"""


@pytest.mark.parametrize("num_reads", [1, 2])
def test_reads_that_fail_with_eio_are_tried_again(shim: Path, dataset: Dataset, num_reads: int) -> None:
    lines = run_under(shim, READ_ALL.format(num_reads=num_reads), cwd=dataset[0].parent)
    assert lines == ["as written", str(num_reads)]


def test_reads_that_go_on_failing_are_an_error_that_names_block_and_cause(shim: Path, dataset: Dataset) -> None:
    message, retries = run_under(shim, READ_ALL.format(num_reads=1 << 30), cwd=dataset[0].parent)
    assert f"{dataset[1].shards[0].name}: block 0 (samples 0 to 4): Input/output error (EIO), 3 times on " in message
    assert retries == "2"


def test_a_shard_that_may_not_be_read_is_told_at_once(dataset: Dataset) -> None:
    path, manifest = dataset
    name = manifest.shards[0].name
    (path / name).chmod(0)
    for directory in (path, path.parent):
        directory.chmod(0o755)
    # What the unprivileged user needs is imported and listed before: it may not see the folders around.
    program = """
import os
from hpc_train.data import ShardStream
from hpc_train.errors import PermissionDeniedError
stream = ShardStream("set", global_batch=8, lanes=4, shuffle=False, as_numpy=True)
if os.geteuid() == 0:
    os.setresuid(65534, 65534, 65534)
try:
    next(iter(stream))
except PermissionDeniedError as error:
    print(error)
    print(os.getuid(), stream.num_retries)
"""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    argv = [sys.executable, "-c", program]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60, cwd=path.parent)
    message, rest = done.stdout.splitlines()
    uid, retries = rest.split()
    assert f"set/{name}: block 0 (samples 0 to 4): Permission denied for user {uid} on {os.uname().nodename}" in message
    assert uid != "0" and retries == "0"
