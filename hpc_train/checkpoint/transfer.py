"""Moving one rank's bytes: write its pieces, sync, read every one of them back and compare.

Apart from the protocol around it because nothing here is collective or knows what a commit is. Tensors that are
contiguous in host memory are written from there; small neighbours are gathered into one write of up to 8 MiB.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from hpc_train.checkpoint.checksum import CHUNK_BYTES, crc32
from hpc_train.checkpoint.description import Blob
from hpc_train.checkpoint.layout import Layout, Piece
from hpc_train.checkpoint.names import data_name
from hpc_train.checkpoint.tensors import host_bytes
from hpc_train.checkpoint.writers import Writer, open_existing
from hpc_train.errors import StorageError, from_os_error

__all__ = ["Sources", "write_pieces"]

GATHER_BELOW = 1 << 20  # larger pieces are written straight from the tensor


class Sources:
    """Bytes of a piece, from the tensors and the blob of this rank.

    Holds at most one materialised copy at a time: of the tensor read last, if it was not contiguous in host memory.
    """

    def __init__(self, layout: Layout, tensors: Sequence[Any], blob: Blob | None) -> None:
        self._layout, self._tensors, self._blob = layout, tensors, blob
        self._last: tuple[int, memoryview] | None = None

    def bytes_of(self, piece: Piece) -> memoryview:
        """What belongs at the piece's place."""
        if piece.kind == "pad":
            return memoryview(bytes(piece.nbytes))
        if piece.kind == "header":
            return memoryview(self._layout.headers[piece.ordinal])[piece.start : piece.start + piece.nbytes]
        stop = piece.start + piece.nbytes
        if piece.kind == "rank":
            assert self._blob is not None
            return memoryview(self._blob.view(piece.start, stop))
        if self._last is None or self._last[0] != piece.ordinal:
            self._last = None  # let go of the old copy before the next is made
            self._last = (piece.ordinal, host_bytes(self._tensors[piece.ordinal]))
        return self._last[1][piece.start : stop]


def write_pieces(
    directory: Path, pieces: Sequence[Piece], sources: Sources, make_writer: Callable[[Path], Writer]
) -> list[int]:
    """Write this rank's pieces, make them durable, read them back.

    Returns: CRC-32 of each piece, in order.
    Raises: NoSpaceError, StorageError, PermissionDeniedError; the files are closed then.
    """
    if not pieces:
        return []
    writer = make_writer(directory)
    try:
        crcs = _write(writer, pieces, sources)
        writer.sync()
    except BaseException:
        _close_quietly(writer)
        raise
    writer.close()
    _read_back(directory, pieces, crcs)
    return crcs


def _close_quietly(writer: Writer) -> None:
    try:
        writer.close()
    except StorageError:
        pass  # the first failure is the one to tell


def _runs(pieces: Sequence[Piece]) -> Iterator[list[Piece]]:
    """Pieces to be written in one call: single large ones, or small ones that touch, up to 8 MiB."""
    run: list[Piece] = []
    total = 0
    for piece in pieces:
        touches = bool(run) and run[-1].file == piece.file and run[-1].byte_offset + run[-1].nbytes == piece.byte_offset
        if run and not (touches and piece.nbytes < GATHER_BELOW and total + piece.nbytes <= CHUNK_BYTES):
            yield run
            run, total = [], 0
        run.append(piece)
        total += piece.nbytes
        if piece.nbytes >= GATHER_BELOW:
            yield run
            run, total = [], 0
    if run:
        yield run


def _write(writer: Writer, pieces: Sequence[Piece], sources: Sources) -> list[int]:
    crcs: list[int] = []
    for run in _runs(pieces):
        parts = [sources.bytes_of(piece) for piece in run]
        crcs += map(crc32, parts)
        data = parts[0] if len(parts) == 1 else memoryview(b"".join(parts))
        writer.write(run[0].file, run[0].byte_offset, data)
    return crcs


def _read_back(directory: Path, pieces: Sequence[Piece], crcs: Sequence[int]) -> None:
    """Compare what the file system returns with what was meant, whatever the writer said.

    Open MPI has reported success for writes to a full file system that never happened (4.1.4 and 5.0.11, OMPIO).
    """
    buffer = memoryview(bytearray(CHUNK_BYTES))
    fds: dict[int, int] = {}
    position = 0
    try:
        for run in _runs(pieces):
            file, offset = run[0].file, run[0].byte_offset
            path = directory / data_name(file)
            if file not in fds:
                fds[file] = open_existing(path, os.O_RDONLY)
            target = buffer[: sum(piece.nbytes for piece in run)]
            _pread_exactly(fds[file], target, offset, path)
            for piece in run:
                at = piece.byte_offset - offset
                if crc32(target[at : at + piece.nbytes]) != crcs[position]:
                    raise StorageError(
                        f"{path}: bytes {piece.byte_offset} to {piece.byte_offset + piece.nbytes} read back differ from"
                        " what was written; the file system or MPI-IO lost them: nothing was committed"
                    )
                position += 1
    finally:
        for fd in fds.values():
            os.close(fd)


def _pread_exactly(fd: int, target: memoryview, offset: int, path: Path) -> None:
    done = 0
    while done < len(target):
        try:
            count = os.preadv(fd, [target[done:]], offset + done)
        except OSError as error:
            raise from_os_error(error, f"cannot read back {path}") from error
        if count == 0:
            raise StorageError(f"{path}: ends at byte {offset + done}; what was written behind it is not there")
        done += count
