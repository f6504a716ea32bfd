"""JSON from a hostile hand: no duplicate keys, no NaN, bounded nesting; and the field checks around it.

Apart because COMMIT, the index and the blobs of ranks are all read this way. Standard library only.
"""

from __future__ import annotations

import json
from typing import Any

from hpc_train.errors import CheckpointError

__all__ = ["MAX_NUMBER", "field", "parse", "require_format", "write"]

MAX_NUMBER = 2**63 - 1


def parse(data: bytes | bytearray, where: str) -> dict[str, Any]:
    """The JSON object in `data`.

    Raises: CheckpointError naming `where` for anything that is not one strict JSON object in UTF-8.
    """
    try:
        value = json.loads(data.decode(), object_pairs_hook=_no_duplicates, parse_constant=_no_constant)
    except RecursionError as error:
        raise CheckpointError(f"{where}: nested too deeply") from error
    except (ValueError, UnicodeDecodeError) as error:
        raise CheckpointError(f"{where}: not valid JSON: {str(error)[:200]}") from error
    if type(value) is not dict:
        raise CheckpointError(f"{where}: not a JSON object")
    return value


def write(value: Any) -> bytes:
    """Compact JSON with keys in the order given; refuses NaN."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


def field(record: dict[str, Any], key: str, kind: type, where: str) -> Any:
    """One field of exactly this type; ints must lie in 0 … 2^63 - 1.

    Raises: CheckpointError naming the field if it is absent or something else.
    """
    value: Any = record.get(key)
    is_good = type(value) is kind
    if is_good and kind is int:
        is_good = 0 <= value <= MAX_NUMBER
    if not is_good:
        raise CheckpointError(f"{where}: field {key!r} is missing or not a valid {kind.__name__}")
    return value


def require_format(record: dict[str, Any], name: str, version: int, where: str) -> None:
    """Refuse a record of another format or a version this code does not know.

    Raises: CheckpointError.
    """
    if record.get("format") != name:
        raise CheckpointError(f"{where}: format is {str(record.get('format'))[:60]!r}, not {name!r}")
    given = field(record, "version", int, where)
    if given != version:
        raise CheckpointError(
            f"{where}: version {given}; this hpc-train reads version {version}: use the version that wrote it"
        )


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) != len(pairs):
        raise ValueError("a key appears twice in one object")
    return record


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not allowed")
