"""What a rank wants to save, as a tree of plain values and a list of tensors.

Apart from writing because the description is what ranks compare: replicated state must be described alike on every
rank, or the plan of one rank would be wrong for another. Also the blob of state that only one rank has.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from hpc_train.checkpoint import strict_json, values
from hpc_train.checkpoint.layout import Spec
from hpc_train.checkpoint.tensors import describe_tensor, host_bytes, identity
from hpc_train.errors import CheckpointError

__all__ = ["BLOB_FORMAT", "BLOB_VERSION", "Blob", "Description", "describe", "first_difference", "make_blob"]

BLOB_FORMAT = "hpc-train rank state"
BLOB_VERSION = 1
RESERVED = ("__pad_", "__rank_", "__metadata__")
ALIGN = 16


@dataclass(frozen=True)
class Description:
    """A state taken apart.

    Attributes:  tree: typed JSON of the whole state, tensors by ordinal.   specs, tensors: by ordinal; `tensors` are
    the live objects.   aliases: (name, ordinal) of further names of a tensor already listed.
    """

    tree: Any
    specs: list[Spec]
    tensors: list[Any] = field(repr=False)
    aliases: list[tuple[str, int]]

    def lines(self) -> list[str]:
        """One text per tensor and per plain value, for finding where two ranks differ."""
        found = [f"tensor {spec.name!r} dtype {spec.dtype} shape {list(spec.shape)}" for spec in self.specs]
        found += [f"tensor {name!r} is the same memory as {self.specs[i].name!r}" for name, i in self.aliases]
        _flatten(self.tree, "", found)
        return found

    def digest(self) -> str:
        """sha256 over everything that all ranks must agree on (not the tensors' content)."""
        specs = [[spec.name, spec.dtype, list(spec.shape)] for spec in self.specs]
        return hashlib.sha256(strict_json.write([specs, self.aliases, self.tree])).hexdigest()


def describe(state: dict[str, Any]) -> Description:
    """Take a state apart. Reads no tensor content.

    Args:  state: named parts; an object with `state_dict()` stands for what that returns.
    Raises: CheckpointError naming the path of what cannot be saved.
    """
    if type(state) is not dict:
        raise CheckpointError(f"the state is a {type(state).__name__}; it must be a dict of named parts")
    specs: list[Spec] = []
    tensors: list[Any] = []
    aliases: list[tuple[str, int]] = []
    seen: dict[tuple[Any, ...], int] = {}
    names: set[str] = set()

    def leaf(value: Any, path: str) -> tuple[str, int] | None:
        described = describe_tensor(value, path)
        if described is None:
            return None
        kind, spec = described
        if path in names or path.startswith(RESERVED):
            raise CheckpointError(f"state {path!r}: the name is used twice or reserved; rename the part or key")
        names.add(path)
        place = identity(value)
        if place is not None and place in seen:
            aliases.append((path, seen[place]))
            return kind, seen[place]
        if place is not None:
            seen[place] = len(specs)
        specs.append(spec)
        tensors.append(value)
        return kind, len(specs) - 1

    tree = values.encode({name: part_content(name, part) for name, part in state.items()}, leaf)
    return Description(tree, specs, tensors, aliases)


def part_content(name: Any, part: Any) -> Any:
    """What a part stands for: the result of its `state_dict()`, or itself.

    Raises: CheckpointError if the part's own code fails, or its name cannot be one.
    """
    if type(name) is not str or not name:
        raise CheckpointError(f"the state has a part named {name!r}; names must be non-empty texts")
    method = getattr(part, "state_dict", None)
    if not callable(method):
        return part
    try:
        return method()
    except Exception as error:
        raise CheckpointError(f"state {name!r}: its state_dict() failed: {type(error).__name__}: {error}") from error


def first_difference(root: Sequence[str], mine: Sequence[str]) -> str:
    """Where this rank's description first leaves rank 0's, as a text."""
    for theirs, ours in zip(root, mine, strict=False):
        if theirs != ours:
            return f"{ours}, on rank 0: {theirs}"
    longer = mine[len(root) :] or root[len(mine) :]
    if longer:
        return f"{longer[0]} is there on {'this rank' if len(mine) > len(root) else 'rank 0'} only"
    return "the order of keys"


def _flatten(node: Any, path: str, found: list[str]) -> None:
    if type(node) is dict and node:
        for key, item in node.items():
            _flatten(item, values.child(path, key), found)
    elif type(node) is list and node:
        for i, item in enumerate(node):
            _flatten(item, values.child(path, i), found)
    else:
        found.append(f"value {path!r} = {node!r:.80}")


class Blob:
    """One rank's own state as bytes, without a copy of its tensors: `view` gathers the range that is asked for.

    Content: 8 bytes little-endian length of a JSON object padded with spaces, the object (format, version, rank,
    world_size, tensors [[name, dtype, shape, offset behind the object]], state), then the tensors.
    """

    def __init__(self, segments: list[tuple[int, int, Callable[[], memoryview]]], nbytes: int) -> None:
        self._segments = segments  # (first byte, end, how to get the bytes), by rising position
        self.nbytes = nbytes

    def view(self, start: int, stop: int) -> bytearray:
        """Bytes start … stop of the blob."""
        out = bytearray(stop - start)
        for offset, end, get in self._segments:
            first, last = max(start, offset), min(stop, end)
            if first < last:
                out[first - start : last - start] = get()[first - offset : last - offset]
        return out


def make_blob(per_rank: dict[str, Any], *, rank: int, world_size: int) -> Blob:
    """The blob of this rank's own state.

    Raises: CheckpointError as `describe` does.
    """
    description = describe(per_rank)
    offsets, position = [], 0
    for spec in description.specs:
        offsets.append(position)
        position += spec.nbytes + -spec.nbytes % ALIGN
    record = {
        "format": BLOB_FORMAT,
        "version": BLOB_VERSION,
        "rank": rank,
        "world_size": world_size,
        "tensors": [[s.name, s.dtype, list(s.shape), at] for s, at in zip(description.specs, offsets, strict=True)],
        "state": description.tree,
    }
    text = strict_json.write(record)
    text += b" " * (-(8 + len(text)) % ALIGN)
    head = len(text).to_bytes(8, "little") + text
    segments: list[tuple[int, int, Callable[[], memoryview]]] = [(0, len(head), lambda: memoryview(head))]
    for tensor, spec, offset in zip(description.tensors, description.specs, offsets, strict=True):
        first = len(head) + offset
        segments.append((first, first + spec.nbytes, partial(host_bytes, tensor)))
    return Blob(segments, len(head) + position)
