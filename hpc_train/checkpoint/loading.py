"""Restoring a state in place from one open checkpoint.

Apart from the choice of the checkpoint because it is local: match first (shapes, dtypes, keys; nothing is touched on a
mismatch), then read every byte with its CRC into the live tensors, then hand the plain values over.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass, field
from typing import Any

from hpc_train.checkpoint import values
from hpc_train.checkpoint.agreement import DamagedCheckpoint
from hpc_train.checkpoint.blob_reader import BlobTensors, read_blob
from hpc_train.checkpoint.boxes import scatter
from hpc_train.checkpoint.description import part_content
from hpc_train.checkpoint.dtypes import DTYPES
from hpc_train.checkpoint.layout import Spec
from hpc_train.checkpoint.reader import OpenCheckpoint
from hpc_train.checkpoint.resize import Resize
from hpc_train.checkpoint.tensors import Destination, describe_tensor, destination, identity, new_tensor
from hpc_train.errors import CheckpointError

__all__ = ["Restore"]

log = logging.getLogger(__name__)


@dataclass
class _Binding:
    """Where the tensors of one tree go. `places`: by ordinal, every destination (tied names share one)."""

    specs: list[Spec]
    places: dict[int, list[Destination]] = field(default_factory=dict)
    memory: dict[tuple[Any, ...], int] = field(default_factory=dict)
    fresh: dict[tuple[int, str], Any] = field(default_factory=dict)

    def bind(self, kind: str, ordinal: int, template: Any, path: str) -> Any:
        """The tensor that will hold a saved one: the live one at its place, else a new one."""
        if not 0 <= ordinal < len(self.specs):
            raise DamagedCheckpoint(f"saved state {path!r} refers to tensor {ordinal}; there are {len(self.specs)}")
        spec = self.specs[ordinal]
        live = describe_tensor(template, path)
        if live is None:
            return self._new(kind, ordinal, spec)
        if (live[1].dtype, live[1].shape) != (spec.dtype, spec.shape):
            raise CheckpointError(
                f"state {path!r}: the checkpoint has {spec.dtype} {list(spec.shape)}, the program has {live[1].dtype}"
                f" {list(live[1].shape)}; they must be equal (nothing is cast or reshaped on load)"
            )
        place = identity(template)
        known = self.memory.setdefault(place, ordinal) if place is not None else None
        if known is not None and known != ordinal:
            raise CheckpointError(
                f"state {path!r} shares memory with {self.specs[known].name!r} in the program, but they were saved as"
                " two tensors; untie them, or save from a program that ties them"
            )
        self.places.setdefault(ordinal, []).append(destination(template, spec))
        return template

    def _new(self, kind: str, ordinal: int, spec: Spec) -> Any:
        # One object per stored tensor: names that were tied stay tied.
        if (ordinal, kind) not in self.fresh:
            self.fresh[ordinal, kind] = made = new_tensor(kind, spec)
            self.places.setdefault(ordinal, []).append(destination(made, spec))
        return self.fresh[ordinal, kind]


@dataclass
class _Part:
    name: str
    live: Any
    loaded: Any


class Restore:
    """One restore on one rank, in three steps that a caller runs with an agreement after each. Not collective.

    Args:  checkpoint: open until `read` is done.   state, per_rank: as in `Checkpointer.load`.   resize: of a load on
    another number of ranks; every part of `per_rank` has `load_resized` then.
    """

    def __init__(
        self,
        checkpoint: OpenCheckpoint,
        state: dict[str, Any],
        per_rank: dict[str, Any] | None,
        resize: Resize | None = None,
    ) -> None:
        self._checkpoint = checkpoint
        self._state, self._per_rank = state, per_rank
        self._resize = resize
        self._parts: list[_Part] = []
        self._rank_parts: list[_Part] = []
        self._blob: BlobTensors | None = None
        index = checkpoint.index
        specs = [Spec(*columns) for columns in zip(index.names, index.dtypes, index.shapes, strict=True)]
        self._binding = _Binding(specs)

    def match(self, rank: int) -> None:
        """Find the live tensor for every saved one. Touches nothing.

        Raises: CheckpointError naming the path that does not fit; DamagedCheckpoint.
        """
        self._parts = _match_parts(self._state, self._checkpoint.index.state, self._binding, "the checkpoint")
        if self._per_rank is None:
            return
        saved = self._checkpoint.index.rank_states
        blob = next((blob for blob in saved if blob.rank == rank), None)
        if blob is None and saved and self._resize is not None and rank >= self._resize.saved:
            self._rank_parts = [_Part(name, live, None) for name, live in self._per_rank.items()]
            return
        if blob is None:
            raise CheckpointError(
                f"{self._checkpoint.path}: holds no state of rank {rank}, but per_rank was given; it was saved without:"
                " load without per_rank, too"
            )
        data = bytearray(blob.extent.nbytes)
        self._checkpoint.read_extent(blob.extent, memoryview(data), f"state of rank {rank}")
        self._blob = read_blob(data, rank=rank, world_size=self._checkpoint.index.world_size)
        self._blob_binding = _Binding(self._blob.specs)
        where = f"the state of rank {rank}"
        self._rank_parts = _match_parts(self._per_rank, self._blob.state, self._blob_binding, where)

    def read(self) -> None:
        """Read every tensor that was matched into place.

        Raises: DamagedCheckpoint naming file, tensor and chunk. The live tensors are a mixture then.
        """
        for ordinal, places in self._binding.places.items():
            first = places[0]
            self._read_tensor(ordinal, first.memory)
            _spread(places)
        if self._blob is not None:
            for ordinal, places in self._blob_binding.places.items():
                places[0].memory[:] = self._blob.bytes_of(ordinal)
                _spread(places)

    def _read_tensor(self, ordinal: int, target: memoryview) -> None:
        index = self._checkpoint.index
        what = f"tensor {index.names[ordinal]!r}"
        boxes = list(index.boxes(ordinal))
        if len(boxes) == 1:
            self._checkpoint.read_extent(boxes[0].extent, target, what)
            return
        itemsize = DTYPES[index.dtypes[ordinal]].itemsize
        for number, box in enumerate(boxes):
            part = bytearray(box.extent.nbytes)
            self._checkpoint.read_extent(box.extent, memoryview(part), f"{what}, box {number}")
            scatter(
                part,
                target,
                shape=index.shapes[ordinal],
                offset=box.offset,
                length=box.length,
                itemsize=itemsize,
            )

    def apply(self) -> None:
        """Hand plain values and objects over.

        Raises: CheckpointError if an object's `load_state_dict` refuses, or changes a dtype or shape in doing so.
        """
        for part in self._parts:
            _apply_part(part, self._state)
        for part in self._rank_parts:
            if self._resize is not None:
                _apply_resized(part, self._resize.seed)
            else:
                _apply_part(part, self._per_rank or {})


def _spread(places: list[Destination]) -> None:
    """Other live tensors of the same stored one get its bytes, then all are handed over."""
    for other in places[1:]:
        other.memory[:] = places[0].memory
    for place in places:
        place.finish()


def _match_parts(state: dict[str, Any], tree: Any, binding: _Binding, where: str) -> list[_Part]:
    if type(state) is not dict:
        raise CheckpointError(f"the state is a {type(state).__name__}; it must be a dict of named parts")
    if type(tree) is not dict or "~" in tree:
        raise DamagedCheckpoint(f"{where}: its state is not a dict of parts")
    parts = []
    for name, live in state.items():
        if name not in tree:
            raise CheckpointError(f"state {name!r} is not in {where}; saved there: {', '.join(tree) or 'nothing'}")
        is_object = callable(getattr(live, "state_dict", None))
        template = part_content(name, live)
        try:
            loaded = values.decode(tree[name], binding.bind, template=template, strict=not is_object, path=name)
        except RecursionError as error:
            raise DamagedCheckpoint(f"{where}: state {name!r} is nested too deeply") from error
        if isinstance(live, dict) and not isinstance(loaded, dict):
            raise CheckpointError(f"state {name!r} is a dict, in {where} it is a {type(loaded).__name__}")
        parts.append(_Part(name, live, loaded))
    left = [name for name in tree if name not in state]
    if left:
        log.info("not asked for and left in %s: %s", where, ", ".join(left))
    return parts


def _apply_part(part: _Part, owner: dict[str, Any]) -> None:
    if callable(getattr(part.live, "state_dict", None)):
        try:
            part.live.load_state_dict(part.loaded)
        except Exception as error:
            raise CheckpointError(
                f"state {part.name!r}: its load_state_dict() refused: {type(error).__name__}: {str(error)[:2000]}"
            ) from error
        _check_unchanged(part.loaded, part.live.state_dict(), part.name)
    elif isinstance(part.live, dict):
        _assign(part.live, part.loaded)
    else:
        owner[part.name] = part.loaded


def _apply_resized(part: _Part, seed: int) -> None:
    # A seed of its own for each part: two generators of one rank must not run alike either.
    own = int.from_bytes(hashlib.blake2b(f"{seed} {part.name}".encode(), digest_size=8).digest(), "little") >> 1
    try:
        part.live.load_resized(part.loaded, own)
    except Exception as error:
        raise CheckpointError(
            f"state {part.name!r}: its load_resized() refused: {type(error).__name__}: {str(error)[:2000]}"
        ) from error


def _assign(live: dict[Any, Any], loaded: dict[Any, Any]) -> None:
    """Values into a live dict, keeping its nested dicts (others may hold references to them)."""
    for key, value in loaded.items():
        if isinstance(value, dict) and isinstance(live.get(key), dict):
            _assign(live[key], value)
        else:
            live[key] = value


def _check_unchanged(loaded: Any, now: Any, path: str) -> None:
    """An object must not have cast what it was given: torch optimizers cast their state to the parameter's dtype."""
    if isinstance(loaded, dict) and isinstance(now, dict):
        for key, value in loaded.items():
            if key in now:
                _check_unchanged(value, now[key], values.child(path, key))
        return
    if isinstance(loaded, list | tuple) and isinstance(now, list | tuple) and len(loaded) == len(now):
        for i, (one, other) in enumerate(zip(loaded, now, strict=True)):
            _check_unchanged(one, other, values.child(path, i))
        return
    saved, live = describe_tensor(loaded, path), describe_tensor(now, path)
    if saved is not None and live is not None and saved[1] != live[1]:
        raise CheckpointError(
            f"state {path!r}: saved as {saved[1].dtype} {list(saved[1].shape)}, but its load_state_dict() made"
            f" {live[1].dtype} {list(live[1].shape)} of it; a resumed run would differ silently"
        )
