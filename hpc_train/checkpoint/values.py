"""Plain values as typed JSON: what is saved beside tensors comes back with the same types, and can run no code.

Apart because it is the whole of what "state" may be: None, bool, int, float, str, bytes, list, tuple, dict (str or int
keys), OrderedDict, Counter, and tensors by reference. Anything else is refused by name when saving, so that a
checkpoint never needs pickle. Standard library only.

A value that JSON has is itself. The others are an object with the key "~": {"~": tag, "v": content} with tag
float ("nan", "inf", "-inf"), bytes (base64), tuple, dict, OrderedDict, Counter (lists; pairs for dicts), tensor or
array (an ordinal). A dict whose keys are str other than "~" is a plain JSON object.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any

from hpc_train.errors import CheckpointError

__all__ = ["MAX_DEPTH", "TensorRef", "child", "decode", "encode"]

MAX_DEPTH = 64  # real states have 3 to 8 levels; deeper is a mistake or an attack
MAX_INT_BITS = 4096  # Python refuses to read integers of more than 4300 digits
_MISSING = object()
_DICTS: dict[str, type] = {"dict": dict, "OrderedDict": OrderedDict, "Counter": Counter}

Leaf = Callable[[Any, str], tuple[str, int] | None]
TensorRef = Callable[[str, int, Any, str], Any]


def child(path: str, key: Any) -> str:
    """Path of an entry: names joined by dots, as torch names the tensors of a module."""
    return f"{path}.{key}" if path else str(key)


def encode(value: Any, leaf: Leaf, path: str = "", depth: int = 0) -> Any:
    """JSON-ready form of a value.

    Args:  leaf: called with (value, path); returns ("tensor" | "array", ordinal) for what is stored as a tensor.
    Raises: CheckpointError naming the path for a type that is not allowed, a bad key, or nesting beyond MAX_DEPTH.
    """
    if depth > MAX_DEPTH:
        raise CheckpointError(f"state {path[:80]!r}: nested deeper than {MAX_DEPTH} levels (does it contain itself?)")
    kind = type(value)
    if value is None or kind is bool or kind is str:
        return value
    if kind is int:
        if value.bit_length() > MAX_INT_BITS:
            raise CheckpointError(f"state {path!r}: an int of {value.bit_length()} bits; at most {MAX_INT_BITS}")
        return value
    if kind is float:
        return value if math.isfinite(value) else {"~": "float", "v": repr(value)}
    if kind is bytes:
        return {"~": "bytes", "v": base64.b64encode(value).decode()}
    if kind is list:
        return [encode(item, leaf, child(path, i), depth + 1) for i, item in enumerate(value)]
    if kind is tuple:
        return {"~": "tuple", "v": [encode(item, leaf, child(path, i), depth + 1) for i, item in enumerate(value)]}
    if kind in (dict, OrderedDict, Counter):
        return _encode_dict(value, leaf, path, depth)
    reference = leaf(value, path)
    if reference is None:
        raise CheckpointError(
            f"state {path!r}: {kind.__module__}.{kind.__qualname__} cannot be saved; allowed are tensors, arrays, None,"
            " bool, int, float, str, bytes, list, tuple and dict: convert it, or leave it out of the state"
        )
    return {"~": reference[0], "v": reference[1]}


def _encode_dict(value: dict[Any, Any], leaf: Leaf, path: str, depth: int) -> Any:
    for key in value:
        if type(key) not in (str, int):
            raise CheckpointError(f"state {path!r}: key {key!r} is a {type(key).__name__}; keys must be str or int")
    pairs = [(key, encode(item, leaf, child(path, key), depth + 1)) for key, item in value.items()]
    if type(value) is dict and all(type(key) is str and key != "~" for key in value):
        return dict(pairs)
    return {"~": type(value).__name__, "v": [[key, item] for key, item in pairs]}


def decode(node: Any, tensor: TensorRef, *, template: Any = None, strict: bool = False, path: str = "") -> Any:
    """The value of a JSON form; tensors come from `tensor(kind, ordinal, template, path)`.

    Args:  template: the live value at the same place, so that tensors can be restored into its memory.
        strict: refuse a dict of the template whose keys the saved one lacks.
    Raises: CheckpointError for a form that `encode` does not make, or a key that is missing.
    """
    if node is None or type(node) in (bool, int, float, str):
        return node
    if type(node) is list:
        return _decode_items(node, tensor, template if type(template) is list else None, strict, path)
    if type(node) is not dict:
        raise CheckpointError(f"saved state {path!r}: {type(node).__name__} is not part of the format")
    if "~" not in node:
        return _decode_pairs(list(node.items()), dict, tensor, template=template, strict=strict, path=path)
    tag, content = node.get("~"), node.get("v", _MISSING)
    if len(node) != 2 or content is _MISSING or type(tag) is not str:
        raise CheckpointError(f"saved state {path!r}: malformed value")
    if tag in ("tensor", "array") and type(content) is int:
        return tensor(tag, content, template, path)
    if tag == "float" and content in ("nan", "inf", "-inf"):
        return float(content)
    if tag == "bytes" and type(content) is str:
        return _decode_bytes(content, path)
    if tag == "tuple" and type(content) is list:
        return tuple(_decode_items(content, tensor, template if type(template) is tuple else None, strict, path))
    if tag in _DICTS and type(content) is list:
        if not all(type(pair) is list and len(pair) == 2 and type(pair[0]) in (str, int) for pair in content):
            raise CheckpointError(f"saved state {path!r}: malformed {tag}")
        pairs = [(key, item) for key, item in content]
        return _decode_pairs(pairs, _DICTS[tag], tensor, template=template, strict=strict, path=path)
    raise CheckpointError(f"saved state {path!r}: malformed value with tag {tag[:40]!r}")


def _decode_items(items: list[Any], tensor: TensorRef, template: Any, strict: bool, path: str) -> list[Any]:
    if template is None or len(template) != len(items):
        template = [None] * len(items)
    return [
        decode(item, tensor, template=template[i], strict=strict, path=child(path, i)) for i, item in enumerate(items)
    ]


def _decode_pairs(
    pairs: list[tuple[Any, Any]], kind: type, tensor: TensorRef, *, template: Any, strict: bool, path: str
) -> Any:
    live = template if isinstance(template, dict) else {}
    result = kind()
    for key, item in pairs:
        result[key] = decode(item, tensor, template=live.get(key), strict=strict, path=child(path, key))
    if len(result) != len(pairs):
        raise CheckpointError(f"saved state {path!r}: a key appears twice")
    missing = [key for key in live if key not in result] if strict else []
    if missing:
        raise CheckpointError(
            f"state {child(path, missing[0])!r} is not in the checkpoint (nor are {len(missing) - 1} others beside it);"
            f" saved there: {', '.join(map(str, list(result)[:8])) or 'nothing'}"
        )
    return result


def _decode_bytes(text: str, path: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise CheckpointError(f"saved state {path!r}: bytes are not base64") from error
