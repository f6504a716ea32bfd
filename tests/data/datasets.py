"""Small datasets and ranks without MPI, for the tests of the data room."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from hpc_train.data import Manifest, pack_arrays
from hpc_train.world import SoloWorld

T = TypeVar("T")


def arrays_of(num_samples: int) -> dict[str, npt.NDArray[Any]]:
    """Fields of three kinds in which every sample is told apart by its content."""
    number = np.arange(num_samples)
    return {
        "image": ((number[:, None, None] * 7 + np.arange(6).reshape(2, 3)) % 65521).astype(np.uint16),
        "label": number.astype(np.int64),
        "weight": (number / 3).astype(np.float32),
    }


def make_dataset(
    path: Path, num_samples: int = 203, *, block_samples: int = 5, shard_samples: int = 50
) -> tuple[Path, Manifest]:
    """A dataset of several shards with a short last block, and its manifest."""
    manifest = pack_arrays(path, arrays_of(num_samples), block_samples=block_samples, shard_samples=shard_samples)
    return path, manifest


class SimulatedWorld(SoloWorld):
    """One of several ranks that live one after another in this process: rank 0 must come first.

    What rank 0 broadcasts is kept on a board that the others read in the same order.
    """

    def __init__(self, rank: int, size: int, board: list[Any]) -> None:
        super().__init__()
        self.rank = rank
        self.size = size
        self.phases: list[str] = []
        self._board = board
        self._num_read = 0

    def broadcast(self, value: T, root: int = 0) -> T:
        if self.rank == root:
            self._board.append(value)
            return value
        self._num_read += 1
        result: T = self._board[self._num_read - 1]
        return result

    @contextlib.contextmanager
    def phase(self, name: str, limit_s: float | None = None) -> Iterator[None]:
        self.phases.append(name)
        yield


def simulated_worlds(size: int) -> list[SimulatedWorld]:
    """All ranks of a simulated world, in rank order."""
    board: list[Any] = []
    return [SimulatedWorld(rank, size, board) for rank in range(size)]


def flip_bit(path: Path, offset: int) -> None:
    """Change one bit of a file in place."""
    with path.open("r+b") as file:
        file.seek(offset)
        byte = file.read(1)[0]
        file.seek(offset)
        file.write(bytes([byte ^ 4]))


def byte_of(manifest: Manifest, shard: int, field: str, row: int) -> int:
    """The file offset of a row of a field in a shard."""
    return manifest.shards[shard].fields[field].offset + row * manifest.fields[field].row_bytes
