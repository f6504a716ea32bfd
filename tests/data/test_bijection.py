"""The keyed bijection is one, mixes, and never changes."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from hpc_train.data.bijection import derive_key, mix64, permute

KEYS = st.integers(0, (1 << 64) - 1)


@given(size=st.integers(1, 3000), key=KEYS)
@settings(max_examples=60, deadline=None)
def test_every_value_is_reached_once(size: int, key: int) -> None:
    assert sorted(permute(np.arange(size), size, key)) == list(range(size))


@given(size=st.integers(1 << 40, 1 << 62), key=KEYS, start=st.integers(0, 1 << 39))
@settings(max_examples=30, deadline=None)
def test_huge_domains_stay_inside_and_apart(size: int, key: int, start: int) -> None:
    result = permute(np.arange(start, start + 500), size, key)
    assert result.min() >= 0
    assert result.max() < size
    assert len(np.unique(result)) == 500


@given(sizes=st.lists(st.integers(1, 40), min_size=1, max_size=8), key=KEYS)
@settings(max_examples=40, deadline=None)
def test_many_domains_and_keys_at_once_equal_one_at_a_time(sizes: list[int], key: int) -> None:
    keys = mix64(np.arange(len(sizes), dtype=np.uint64) + np.uint64(key))
    values = np.concatenate([np.arange(size) for size in sizes])
    together = permute(values, np.repeat(sizes, sizes), np.repeat(keys, sizes))
    apart = [permute(np.arange(size), size, int(one)) for size, one in zip(sizes, keys, strict=True)]
    assert together.tolist() == np.concatenate(apart).tolist()


def reference_permute(value: int, size: int, key: int) -> int:
    """The same in plain numbers, written from the description in docs/data.md."""
    mask = (1 << 64) - 1

    def mix(x: int) -> int:
        x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & mask
        x = (x ^ (x >> 27)) * 0x94D049BB133111EB & mask
        return x ^ (x >> 31)

    num_bits = (size - 1).bit_length()
    num_low = (num_bits + 1) // 2
    while True:
        high, low = value >> num_low, value & ((1 << num_low) - 1)
        for number in range(8):
            round_key = mix(key + 0x9E3779B97F4A7C15 * (number + 1) & mask)
            if number % 2 == 0:
                high ^= mix(low ^ round_key) & ((1 << (num_bits // 2)) - 1)
            else:
                low ^= mix(high ^ round_key) & ((1 << num_low) - 1)
        value = high << num_low | low
        if value < size:
            return value


@given(size=st.integers(1, 1 << 50), key=KEYS, values=st.lists(st.integers(0, 1 << 50), min_size=1, max_size=5))
@settings(max_examples=100, deadline=None)
def test_it_is_the_documented_function(size: int, key: int, values: list[int]) -> None:
    inside = [value % size for value in values]
    expected = [reference_permute(value, size, key) for value in inside]
    assert permute(np.array(inside), size, key).tolist() == expected


def test_no_values_give_no_values() -> None:
    assert permute(np.empty(0, dtype=np.int64), 5, 1).tolist() == []


def test_places_are_mixed_evenly() -> None:
    # 2000 keys send each of 10 values to each of 10 places about 200 times; 27.9 is chi-square's 0.1 % point for 9.
    counts = np.zeros((10, 10))
    for key in range(2000):
        counts[np.arange(10), permute(np.arange(10), 10, derive_key("test", key))] += 1
    chi_square = ((counts - 200) ** 2 / 200).sum(axis=1)
    assert np.median(chi_square) < 15
    assert chi_square.max() < 40


def test_neighbours_are_torn_apart() -> None:
    steps = np.abs(np.diff(permute(np.arange(100_000), 100_000, 7)))
    assert 30_000 < steps.mean() < 37_000  # a third of the domain for independent places


def test_values_are_those_of_the_first_version() -> None:
    # A change here changes the order of every run that exists.
    assert derive_key("window", 7, 0) == DERIVED
    assert permute(np.arange(12), 12, 12345).tolist() == PERMUTED
    assert [hex(value) for value in mix64(np.array([1, 2], dtype=np.uint64)).tolist()] == MIXED


DERIVED = 14726337612961968317
PERMUTED = [11, 2, 0, 5, 1, 7, 9, 8, 3, 6, 10, 4]
MIXED = ["0x5692161d100b05e5", "0xdbd238973a2b148a"]
