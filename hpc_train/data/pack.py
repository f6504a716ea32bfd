"""Packing: files of bytes, or arrays in memory, become a dataset.

Apart from the writers because this is where samples are cut: what a sample is, and how many there are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from hpc_train.data.dataset_writer import (
    DatasetShape,
    check_output,
    default_block_samples,
    default_shard_samples,
    write_dataset,
)
from hpc_train.data.manifest import Field, Manifest
from hpc_train.data.shard_writer import Rows
from hpc_train.data.sources import SourceList, SourceReader, list_sources
from hpc_train.errors import DataError, SpecError

__all__ = ["PackSummary", "pack_arrays", "pack_bytes"]

TOKENS = "tokens"
MAX_SEQUENCE = 1 << 27  # a block, at least one sample, must stay below 1 GiB


@dataclass(frozen=True)
class PackSummary:
    """What a pack made of its sources.

    Attributes:  num_bytes: bytes of the sources that are in samples.   num_dropped_bytes: the end that fills no sample.
    skipped: the first few of num_skipped files left out, with the reason.
    """

    manifest: Manifest
    num_files: int
    num_bytes: int
    num_dropped_bytes: int
    num_skipped: int
    skipped: tuple[str, ...]


def pack_bytes(
    out: str | Path,
    sources: Sequence[str | Path],
    *,
    sequence: int,
    block_samples: int | None = None,
    shard_samples: int | None = None,
    globs: Sequence[str] = ("*",),
    force: bool = False,
    on_progress: Callable[[int, int], None] | None = None,
) -> PackSummary:
    """Pack the bytes of files into a dataset with one field, `tokens`, uint8 (sequence + 1,).

    The files are joined as `cat` does. Sample k holds bytes [k*sequence, (k+1)*sequence]: input is row[:-1], target
    row[1:], and every byte but the very first is a target once. A last piece that fills no sample is dropped.
    Args:  block_samples, shard_samples: default to blocks of 64 KiB to 1 MiB and shards of about 1 GiB.
    globs: names to take below directories.   force: replace a dataset.   on_progress: called with bytes done and all.
    Returns: the summary; its manifest has byte_entropy_nats among the statistics: the entropy of single bytes, the
    loss of a model that knows only how often each byte occurs.
    Raises: SpecError for wrong sizes; DataError for missing or changing sources or too few bytes; CannotCreateError,
    NoSpaceError, PermissionDeniedError, StorageError. Nothing is left behind then. Memory: a few blocks.
    """
    if not 1 <= sequence <= MAX_SEQUENCE:
        raise SpecError(f"sequence = {sequence}: from 1 to {MAX_SEQUENCE} bytes are possible")
    directory = Path(out)
    check_output(directory, force=force)
    listing = list_sources([Path(source) for source in sources], globs=globs, exclude=directory)
    shape = _byte_shape(listing, sequence=sequence, block_samples=block_samples, shard_samples=shard_samples)
    counts = np.zeros(256, dtype=np.int64)
    with SourceReader(listing.files) as reader:
        manifest = write_dataset(
            directory,
            _cut_rows(reader, counts, shape, on_progress=on_progress),
            shape,
            force=force,
            provenance=_provenance(listing, sequence),
            statistics=lambda: {"byte_entropy_nats": _entropy_nats(counts)},
        )
    num_bytes = shape.num_samples * sequence + 1
    return PackSummary(
        manifest=manifest,
        num_files=len(listing.files),
        num_bytes=num_bytes,
        num_dropped_bytes=listing.num_bytes - num_bytes,
        num_skipped=listing.num_skipped,
        skipped=tuple(listing.skipped),
    )


def pack_arrays(
    out: str | Path,
    arrays: Mapping[str, npt.NDArray[Any]],
    *,
    block_samples: int | None = None,
    shard_samples: int | None = None,
    force: bool = False,
) -> Manifest:
    """Pack arrays into a dataset: one field per array, sample k is row k of each.

    Args:  arrays: by field name, each (n, ...) with the same n >= 1; memory-mapped ones are read block by block.
    Returns: the manifest.   Raises: as `pack_bytes`.
    """
    lengths = {name: len(array) if array.ndim else 0 for name, array in arrays.items()}
    num_samples = next(iter(lengths.values()), 0)
    if num_samples < 1 or set(lengths.values()) != {num_samples}:
        raise SpecError(f"arrays of lengths {lengths}: at least one array is needed, and all of one length >= 1")
    fields = {name: Field(dtype=array.dtype.name, shape=array.shape[1:]) for name, array in arrays.items()}
    sample_bytes = max(1, sum(array.nbytes for array in arrays.values()) // num_samples)
    rows = block_samples or default_block_samples(num_samples, sample_bytes)
    shape = DatasetShape(
        fields=fields,
        num_samples=num_samples,
        block_samples=rows,
        shard_samples=shard_samples or default_shard_samples(rows, sample_bytes),
    )
    blocks = (
        {name: np.asarray(array[first : first + rows]) for name, array in arrays.items()}
        for first in range(0, num_samples, rows)
    )
    return write_dataset(
        Path(out),
        blocks,
        shape,
        force=force,
        provenance={"packed_by": "hpc_train.data.pack_arrays"},
        statistics=dict,
    )


def _byte_shape(
    listing: SourceList, *, sequence: int, block_samples: int | None, shard_samples: int | None
) -> DatasetShape:
    row_bytes = sequence + 1
    num_samples = (listing.num_bytes - 1) // sequence
    if num_samples < 1:
        skipped = f" ({listing.num_skipped} were skipped, first {listing.skipped[0]})" if listing.num_skipped else ""
        raise DataError(
            f"{len(listing.files)} files with {listing.num_bytes} bytes do not fill one sample of {row_bytes}; "
            f"name more sources{skipped}"
        )
    block_samples = block_samples or default_block_samples(num_samples, row_bytes)
    return DatasetShape(
        fields={TOKENS: Field(dtype="uint8", shape=(row_bytes,))},
        num_samples=num_samples,
        block_samples=block_samples,
        shard_samples=shard_samples or default_shard_samples(block_samples, row_bytes),
    )


def _cut_rows(
    reader: SourceReader,
    counts: npt.NDArray[np.int64],
    shape: DatasetShape,
    *,
    on_progress: Callable[[int, int], None] | None,
) -> Iterator[Rows]:
    """Blocks of overlapping rows; adds to `counts` how often each byte value occurs."""
    sequence = shape.fields[TOKENS].shape[0] - 1
    buffer = np.empty(shape.block_samples * sequence + 1, dtype=np.uint8)
    reader.read_into(buffer[:1].data)
    counts[buffer[0]] += 1
    for first in range(0, shape.num_samples, shape.block_samples):
        num_rows = min(shape.block_samples, shape.num_samples - first)
        end = num_rows * sequence + 1
        reader.read_into(buffer[1:end].data)
        counts += np.bincount(buffer[1:end], minlength=256)
        yield {
            TOKENS: np.lib.stride_tricks.as_strided(buffer, (num_rows, sequence + 1), (sequence, 1), writeable=False)
        }
        buffer[0] = buffer[end - 1]
        if on_progress is not None:
            on_progress((first + num_rows) * sequence, shape.num_samples * sequence)


def _entropy_nats(counts: npt.NDArray[np.int64]) -> float:
    """Shannon entropy of a histogram, in nats."""
    share = counts[counts > 0] / counts.sum()
    return float(-(share * np.log(share)).sum()) + 0.0  # + 0.0: one byte value alone gives -0.0


def _provenance(listing: SourceList, sequence: int) -> dict[str, str | int | float]:
    return {
        "packed_by": "hpc-train data pack",
        "sequence": sequence,
        "num_source_files": len(listing.files),
        "num_source_bytes": listing.num_bytes,
        "num_skipped_files": listing.num_skipped,
    }
