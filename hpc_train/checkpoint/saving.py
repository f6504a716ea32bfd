"""The save protocol: the row of collective steps that ends in one rename.

Apart from the class users hold because this order is the promise (docs/checkpoint.md): describe and compare, plan,
prepare, write + sync + read back on every rank, agree, then index, COMMIT and rename on rank 0.
"""

from __future__ import annotations

import array
import hashlib
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpc_train.checkpoint.agreement import agree, attempt, together
from hpc_train.checkpoint.checksum import crc32
from hpc_train.checkpoint.commit import Commit
from hpc_train.checkpoint.description import Blob, Description, describe, first_difference, make_blob
from hpc_train.checkpoint.index import MAX_INDEX_BYTES, Box, Extent, RankState, Tensor, encode_index
from hpc_train.checkpoint.layout import Layout, plan_layout
from hpc_train.checkpoint.names import MAX_STEP
from hpc_train.checkpoint.root import Root
from hpc_train.checkpoint.transfer import Sources, write_pieces
from hpc_train.checkpoint.writers import Writer, choose_writer
from hpc_train.errors import CheckpointError, NoSpaceError, UsageError
from hpc_train.world import World, on_root

__all__ = ["SaveRequest", "save"]

SLOWEST_BYTES_PER_S = 5_000_000  # below this a write counts as stuck; a busy shared file system gives more
GRACE_S = 600.0


@dataclass(frozen=True)
class _Plan:
    layout: Layout
    writer: type[Writer]
    world_size: int


@dataclass(frozen=True)
class SaveRequest:
    """What to save and by which rules. `newer_is_left`: a rollback was asked for, newer checkpoints are put aside.
    `run`, `attempt`: who saves, for people; "" and None outside a run."""

    step: int
    state: dict[str, Any]
    per_rank: dict[str, Any] | None
    keep: int | None
    writer: str
    damaged: frozenset[int]
    newer_is_left: bool
    run: str = ""
    attempt: int | None = None


def save(world: World, root: Root, request: SaveRequest) -> tuple[Path, int]:
    """Save a state. Collective.

    Returns: (final path, bytes of the checkpoint), the same on all ranks.
    Raises: the same typed error on all ranks; the in-progress directory is gone then, earlier checkpoints untouched.
    """
    description, blob = together(world, lambda: _describe(world, request), "cannot describe the state")
    _compare(world, request, description)
    sizes = () if blob is None else world.allgather(blob.nbytes)
    writer = together(world, lambda: choose_writer(request.writer, world), "cannot choose a writer")
    plan = _Plan(plan_layout(description.specs, sizes, world_size=world.size), writer, world.size)
    num_bytes = sum(plan.layout.file_nbytes)
    newer = on_root(world, lambda: _newer_steps(root, request))
    name = on_root(world, lambda: _prepare(world, root, request, (len(plan.layout.file_nbytes), num_bytes)))
    limit_s = GRACE_S + num_bytes / world.size / SLOWEST_BYTES_PER_S
    try:
        sources = Sources(plan.layout, description.tensors, blob)
        with world.phase("checkpoint write", limit_s):
            crcs = _write(world, root.path / name, plan, sources)
        with world.phase("checkpoint commit", limit_s):
            commit = on_root(
                world,
                lambda: _seal(
                    root, name, request, tree=description.tree, parts=_index(plan.layout, description, crcs), plan=plan
                ),
            )
            path = on_root(world, lambda: _publish(world, root, name, commit, newer))
    except Exception:
        # Every error above is the same on all ranks, so all come here together, with their files closed.
        if world.rank == 0:
            root.discard(name)
        raise
    if world.rank == 0:
        root.after_commit(commit, keep=request.keep, damaged=set(request.damaged) - {request.step})
    return path, commit.num_bytes


def _write(world: World, directory: Path, plan: _Plan, sources: Sources) -> list[bytes]:
    """Write this rank's part; every rank's CRCs, once all ranks have written, synced and read back."""
    mine = [piece for piece in plan.layout.pieces if piece.rank == world.rank]

    def write() -> list[int]:
        try:
            return write_pieces(directory, mine, sources, plan.writer)
        except NoSpaceError as error:
            needed = sum(plan.layout.file_nbytes)
            raise NoSpaceError(f"{error}; {needed:,} bytes are needed in {directory.parent} in all") from error

    crcs, error = attempt(write, f"cannot write {directory}")
    agree(world, error)
    return world.allgather(array.array("I", crcs or []).tobytes())


def _describe(world: World, request: SaveRequest) -> tuple[Description, Blob | None]:
    if type(request.step) is not int or not 0 <= request.step <= MAX_STEP:
        raise UsageError(f"step = {request.step!r}; allowed: an int from 0 to {MAX_STEP}")
    blob = None
    if request.per_rank is not None:
        blob = make_blob(request.per_rank, rank=world.rank, world_size=world.size)
    return describe(request.state), blob


def _compare(world: World, request: SaveRequest, description: Description) -> None:
    """All ranks must describe the same state. Only digests travel, and the full text only when they differ."""
    head = f"step {request.step}, per_rank {'given' if request.per_rank is not None else 'not given'}"
    digests = world.allgather(hashlib.sha256(f"{head} {description.digest()}".encode()).digest())
    if len(set(digests)) == 1:
        return
    lines = [head, *description.lines()]
    root_lines = world.broadcast(lines)
    error = None
    if digests[world.rank] != digests[0]:
        error = CheckpointError(
            f"the state differs from rank 0's: {first_difference(root_lines, lines)}; the state must be alike on all"
            " ranks, what only one rank has belongs into per_rank"
        )
    agree(world, error)


def _newer_steps(root: Root, request: SaveRequest) -> list[int]:
    """Good checkpoints of later steps than the one to save: only after a rollback may there be any."""
    newer = [step for step in root.committed_steps() if step > request.step and step not in request.damaged]
    if newer and not request.newer_is_left:
        raise CheckpointError(
            f"{root.path} holds step {newer[-1]}, newer than step {request.step} that is to be saved; was load()"
            " forgotten? To go back on purpose, load(state, step=…) first; else give another root"
        )
    return newer


def _index(layout: Layout, description: Description, crcs_by_rank: Sequence[bytes]) -> dict[str, Any]:
    """Arguments of `encode_index` that come from the plan and the CRCs of all ranks."""
    streams = []
    for raw in crcs_by_rank:
        column = array.array("I")
        column.frombytes(raw)
        streams.append(iter(column))
    crcs: dict[tuple[str, int], list[int]] = {}
    for piece in layout.pieces:
        value = next(streams[piece.rank])
        crcs.setdefault((piece.kind, piece.ordinal), []).append(value)
    tensors = []
    for ordinal, (spec, (file, offset)) in enumerate(zip(description.specs, layout.tensors, strict=True)):
        extent = Extent(file, offset, spec.nbytes, crcs.get(("tensor", ordinal), []))
        tensors.append(Tensor(spec.name, spec.dtype, spec.shape, [Box((0,) * len(spec.shape), spec.shape, extent)]))
    sizes: dict[int, int] = {}
    for piece in layout.pieces:
        if piece.kind == "rank":
            sizes[piece.ordinal] = sizes.get(piece.ordinal, 0) + piece.nbytes
    blobs = [
        RankState(rank, Extent(file, offset, sizes[rank], crcs["rank", rank]))
        for rank, (file, offset) in enumerate(layout.blobs)
    ]
    headers = [(len(header), crc32(header)) for header in layout.headers]
    return {"headers": headers, "tensors": tensors, "aliases": description.aliases, "rank_states": blobs}


def _prepare(world: World, root: Root, request: SaveRequest, size: tuple[int, int]) -> str:
    """The in-progress directory, by an attempt that still owns the run: it clears away what others have in progress.

    Rank 0 only.
    """
    world.fence()
    return root.prepare(request.step, *size)


def _seal(root: Root, name: str, request: SaveRequest, *, tree: Any, parts: dict[str, Any], plan: _Plan) -> Commit:
    """Write index and COMMIT of a save whose data is durable and checked. Rank 0 only."""
    data = encode_index(step=request.step, world_size=plan.world_size, state=tree, **parts)
    if len(data) > MAX_INDEX_BYTES:
        raise CheckpointError(
            f"the index would have {len(data)} bytes, at most {MAX_INDEX_BYTES} are allowed; the plain values in the"
            " state are too many: store them as tensors or arrays"
        )
    commit = Commit(
        step=request.step,
        save_id=secrets.token_hex(8),
        world_size=plan.world_size,
        created=int(time.time()),
        index_nbytes=len(data),
        index_sha256=hashlib.sha256(data).hexdigest(),
        file_nbytes=plan.layout.file_nbytes,
        writer=plan.writer.name,
        run=request.run,
        attempt=request.attempt,
    )
    root.seal(name, commit, data)
    return commit


def _publish(world: World, root: Root, name: str, commit: Commit, newer: list[int]) -> Path:
    """The commit instant, if this attempt still owns the run. Rank 0 only."""
    world.fence()
    root.set_aside(newer)
    return root.publish(name, commit.step)
