"""Writing a dataset: shards first, the manifest last, so that a directory is a dataset only when it is whole.

Apart from packing (which turns sources into blocks) because every packer needs the same care with the directory.
The shards of each pack have names of their own: a dataset that is replaced stays whole until the new manifest
takes the place of the old one, and a failure at any instant leaves it as it was.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import itertools
import os
import re
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hpc_train.data.manifest import (
    FORMAT,
    MAX_MANIFEST_BYTES,
    VERSION,
    Field,
    Manifest,
    Shard,
    check_fields,
    encode_manifest,
    manifest_path,
    read_manifest,
)
from hpc_train.data.shard_writer import Rows, write_shard
from hpc_train.errors import CannotCreateError, HpcTrainError, SpecError, from_os_error
from hpc_train.files import write_atomic

__all__ = ["DatasetShape", "check_output", "default_block_samples", "default_shard_samples", "write_dataset"]

# A block is what one read fetches: 1 MiB keeps parallel file systems busy; smaller data get smaller blocks,
# so that there are some thousands of them to shuffle, but not below 64 KiB.
MAX_DEFAULT_BLOCK_BYTES = 1 << 20
MIN_DEFAULT_BLOCK_BYTES = 64 << 10
WANTED_BLOCKS = 4096
DEFAULT_SHARD_BYTES = 1 << 30
CHECKSUM_TEXT_BYTES = 11  # ten digits and a comma

_OURS = re.compile(r"^(shard-[0-9a-f]{8}-[0-9]{5,}\.h5|\.(shard-.*\.h5|manifest\.json)\.[0-9a-f]{8}\.tmp)\Z")


def default_block_samples(num_samples: int, sample_bytes: int) -> int:
    """Samples per block where the caller names none: 64 KiB to 1 MiB, about 4096 blocks if the data allow."""
    wanted = min(max(num_samples * sample_bytes // WANTED_BLOCKS, MIN_DEFAULT_BLOCK_BYTES), MAX_DEFAULT_BLOCK_BYTES)
    return max(1, wanted // sample_bytes)


def default_shard_samples(block_samples: int, sample_bytes: int) -> int:
    """Samples per shard where the caller names none: whole blocks, about 1 GiB."""
    return max(1, DEFAULT_SHARD_BYTES // (block_samples * sample_bytes)) * block_samples


def check_output(directory: Path, *, force: bool) -> None:
    """Whether a dataset may be written to a directory, before any work is done.

    Raises: CannotCreateError if it is in use for something else, or without `force` for a dataset; and where another
    pack writes to it at this moment, which looks like the rest of one that was interrupted.
    """
    with contextlib.ExitStack() as stack, contextlib.suppress(FileNotFoundError):
        _lock(directory, stack)
    _list_replaced(directory, force=force)


def _lock(directory: Path, stack: contextlib.ExitStack) -> None:
    """Keep other packs out of a directory until the stack closes; without effect where the file system has no locks.

    Raises: CannotCreateError if there is one; FileNotFoundError.
    """
    try:
        fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise from_os_error(error, f"cannot write a dataset to {directory}") from error
    stack.callback(os.close, fd)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            remedy = "wait for it, or choose another directory"
            raise CannotCreateError(f"another pack writes to {directory} just now; {remedy}") from error


def _list_replaced(directory: Path, *, force: bool) -> list[Path]:
    """Files of an earlier dataset or of an interrupted pack that the new one replaces. Raises: as `check_output`."""
    try:
        names = sorted(path.name for path in directory.iterdir())
    except FileNotFoundError:
        return []
    except OSError as error:
        raise from_os_error(error, f"cannot write a dataset to {directory}") from error
    if not force:
        _refuse_dataset(directory)
    if names and not force:
        what = "the rest of an interrupted pack" if all(map(_OURS.match, names)) else f"other files ({names[0]}, ...)"
        raise CannotCreateError(f"{directory} holds {what}; choose another directory, or --force to write there anyway")
    return [directory / name for name in names if _OURS.match(name)]


@dataclass(frozen=True)
class DatasetShape:
    """What is known of a dataset before its first byte: fields, counts, and how they are cut.

    Raises: SpecError if these cannot make a dataset.
    """

    fields: dict[str, Field]
    num_samples: int
    block_samples: int
    shard_samples: int

    def __post_init__(self) -> None:
        block, shard = self.block_samples, self.shard_samples
        if block < 1 or shard < 1 or shard % block:
            raise SpecError(
                f"shard_samples = {shard} must be a positive multiple of block_samples = {block}: "
                f"for example {max(1, shard // max(block, 1)) * max(block, 1)}"
            )
        try:
            check_fields(self.fields, block)
        except ValueError as error:
            raise SpecError(f"{error}; choose smaller blocks or another dtype") from error
        num_checksums = -(-self.num_samples // block) * len(self.fields)
        if num_checksums * CHECKSUM_TEXT_BYTES > MAX_MANIFEST_BYTES:
            raise SpecError(
                f"block_samples = {block} makes {num_checksums} blocks, too many for one manifest; "
                f"ask for {block * (1 + num_checksums * CHECKSUM_TEXT_BYTES // MAX_MANIFEST_BYTES)} or more"
            )


def write_dataset(
    directory: Path,
    blocks: Iterator[Rows],
    shape: DatasetShape,
    *,
    force: bool,
    provenance: dict[str, str | int | float],
    statistics: Callable[[], dict[str, int | float]],
) -> Manifest:
    """Write a dataset from its blocks, all of block_samples but the last.

    Args:  statistics: asked after the last block.
    Returns: the manifest as written.
    Raises: NoSpaceError, CannotCreateError, PermissionDeniedError, StorageError, DataError.
    Everything this call made is removed then, also on Ctrl-C.
    """
    dataset_id = uuid.uuid4().hex
    undo = contextlib.ExitStack()
    with contextlib.ExitStack() as lock:
        try:
            _make_directories(directory, undo)
            _lock(directory, lock)
            replaced = _list_replaced(directory, force=force)
            manifest = Manifest(
                format=FORMAT,
                version=VERSION,
                uuid=dataset_id,
                block_samples=shape.block_samples,
                fields=shape.fields,
                shards=list(_write_shards(directory, blocks, shape, prefix=f"shard-{dataset_id[:8]}", undo=undo)),
                provenance=provenance,
                statistics=statistics(),
            )
            if not force:
                _refuse_dataset(directory)  # of another pack, where the file system has no locks
            with _typed_errors(manifest_path(directory)):
                write_atomic(manifest_path(directory), encode_manifest(manifest))
        except BaseException:
            # Ctrl-C can come after the rename of the manifest: from there on it is a dataset, nothing is taken back.
            if not _is_committed(directory, dataset_id):
                undo.close()
            raise
        for path in replaced:
            with contextlib.suppress(OSError):
                path.unlink()
    return manifest


def _refuse_dataset(directory: Path) -> None:
    if manifest_path(directory).exists():
        raise CannotCreateError(
            f"{directory} already holds a dataset; choose another directory, or --force to replace it"
        )


def _write_shards(
    directory: Path, blocks: Iterator[Rows], shape: DatasetShape, *, prefix: str, undo: contextlib.ExitStack
) -> Iterator[Shard]:
    for index, first in enumerate(range(0, shape.num_samples, shape.shard_samples)):
        count = min(shape.shard_samples, shape.num_samples - first)
        name = f"{prefix}-{index:05d}.h5"
        undo.callback((directory / name).unlink, missing_ok=True)
        chosen = itertools.islice(blocks, -(-count // shape.block_samples))
        with _typed_errors(directory / name):
            yield write_shard(directory, name, fields=shape.fields, num_samples=count, blocks=chosen)


@contextlib.contextmanager
def _typed_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise from_os_error(error, f"cannot write {path}") from error


def _is_committed(directory: Path, dataset_id: str) -> bool:
    try:
        return read_manifest(directory).uuid == dataset_id
    except HpcTrainError:
        return False


def _make_directories(directory: Path, undo: contextlib.ExitStack) -> None:
    """Make the directory and those above it; each that is new is removed again if packing fails."""
    missing = [path for path in (directory, *directory.parents) if not path.exists()]
    with _typed_errors(directory):
        for path in reversed(missing):
            path.mkdir(exist_ok=True)
            undo.callback(_remove_if_empty, path)


def _remove_if_empty(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.rmdir()
