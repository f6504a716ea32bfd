"""Plain values come back with the same types and content, and only what is allowed goes in."""

from __future__ import annotations

import json
import math
from collections import Counter, OrderedDict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpc_train.checkpoint.values import decode, encode
from hpc_train.errors import CheckpointError

KEYS = st.one_of(st.text(max_size=5), st.integers(), st.just("~"))
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=9), st.binary(max_size=9)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(KEYS, inner, max_size=4),
        st.dictionaries(KEYS, inner, max_size=3).map(OrderedDict),
        st.dictionaries(KEYS, st.integers(), max_size=3).map(Counter),
    ),
    max_leaves=20,
)


def no_tensor(value: Any, path: str) -> None:
    return None


def refuse(kind: str, ordinal: int, template: Any, path: str) -> Any:
    raise CheckpointError(f"{path}: no tensors here")


def through_json(value: Any) -> Any:
    return decode(json.loads(json.dumps(encode(value, no_tensor), allow_nan=False)), refuse)


def same(one: Any, other: Any) -> bool:
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return math.copysign(1, one) == math.copysign(1, other) and (one == other or (one != one and other != other))
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        pairs = zip(one.items(), other.items(), strict=False)
        return len(one) == len(other) and all(same(a, c) and same(b, d) for (a, b), (c, d) in pairs)
    return bool(one == other)


@settings(max_examples=300, deadline=None)
@given(VALUES)
def test_values_come_back_with_type_order_and_content(value: Any) -> None:
    if isinstance(value, float) and math.isnan(value):
        assert math.isnan(through_json(value))
    else:
        assert same(through_json(value), value) or "nan" in repr(value)


@pytest.mark.parametrize(
    "value",
    [
        {1, 2},  # a set has no order
        object(),
        lambda: 0,
        {1.5: 0},
        {True: 0},  # would come back as 1
        {None: 0},
        1 << 5000,  # Python refuses to read it back
        2j,
        bytearray(b"x"),
    ],
)
def test_other_values_are_refused_with_their_path(value: Any) -> None:
    with pytest.raises(CheckpointError, match=r"'part\.deep'"):
        encode({"part": {"deep": value}}, no_tensor)


def test_a_value_that_contains_itself_is_refused() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(CheckpointError, match="contain itself"):
        encode(loop, no_tensor)


@pytest.mark.parametrize(
    "node",
    [
        {"~": "pickle", "v": "gASV"},
        {"~": "tuple", "v": {}},
        {"~": "float", "v": "1e400"},
        {"~": "bytes", "v": "%%"},
        {"~": "dict", "v": [[1]]},
        {"~": "dict", "v": [[1, 0], [1, 0]]},
        {"~": "dict", "v": [[[], 0]]},
        {"~": ["tuple"], "v": []},
        {"~": "tuple"},
        {"~": "tensor", "v": True},
        {"~": "tensor", "v": 1.0},
        {"~": "tuple", "v": [], "x": 0},
    ],
)
def test_forms_that_are_not_ours_are_refused(node: Any) -> None:
    with pytest.raises(CheckpointError):
        decode(node, refuse)
