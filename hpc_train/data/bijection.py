"""Keyed bijections on [0, n): a shuffle that is computed per index instead of stored.

Apart from the order of samples because it knows nothing of data: a pure function on numbers, with O(1) memory where
`numpy.random.permutation` of 10^9 samples takes 8 GB.

Sources: the Feistel network (Luby & Rackoff, SIAM J. Comput. 17(2), 1988), cycle walking onto a domain that is not a
power of two (Black & Rogaway, "Ciphers with Arbitrary Finite Domains", CT-RSA 2002, method 2), and the finaliser of
SplitMix64 as round function (Steele, Lea & Flood, OOPSLA 2014; its constants are "Mix13" of Stafford, 2011).
This is shuffling, not cryptography: the keys are 64 bits and the aim is statistical mixing.
"""

from __future__ import annotations

import hashlib
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["Int64Array", "UInt64Array", "derive_key", "mix64", "permute"]

UInt64Array: TypeAlias = npt.NDArray[np.uint64]
Int64Array: TypeAlias = npt.NDArray[np.int64]

# Eight rounds: each half is changed four times, the number that Luby and Rackoff need for a strong permutation.
# Changing it changes the order of every existing run: it needs a new version of the stream's state.
NUM_ROUNDS = 8

_GOLDEN = 0x9E3779B97F4A7C15
_MASK64 = (1 << 64) - 1


def mix64(values: UInt64Array) -> UInt64Array:
    """SplitMix64's finaliser, element by element: a bijection on 64-bit numbers that scatters neighbours.

    Args:  values: uint64, any shape; not changed.   Returns: uint64, the same shape.
    """
    x = values ^ (values >> np.uint64(30))
    x *= np.uint64(0xBF58476D1CE4E5B9)
    x ^= x >> np.uint64(27)
    x *= np.uint64(0x94D049BB133111EB)
    x ^= x >> np.uint64(31)
    return x


def derive_key(purpose: str, *numbers: int) -> int:
    """A 64-bit key from a purpose and whole numbers in [0, 2^63): BLAKE2b, so that related inputs give unrelated keys.

    Equal on every machine and Python version.
    """
    text = "\0".join([purpose, *map(str, numbers)])
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def permute(values: Int64Array, size: Int64Array | int, key: UInt64Array | int) -> Int64Array:
    """Where a keyed bijection on [0, size) sends each value.

    Args:  values: int64 (n,), each in [0, size).   size: the domain, one for all or int64 (n,), >= 1, <= 2^62.
    key: one for all or uint64 (n,); every key is a bijection of its own.
    Returns: int64 (n,), each in [0, size).   Cost: O(n), about 0.1 microseconds a value; memory O(n).
    Invariant: tests/data/test_bijection.py::test_every_value_is_reached_once.
    """
    sizes = np.broadcast_to(np.asarray(size, dtype=np.int64), values.shape)
    keys = np.broadcast_to(np.asarray(key, dtype=np.uint64), values.shape)
    if values.size == 0:
        return values.copy()
    result = np.empty(values.shape, dtype=np.int64)
    bits = _bit_lengths(sizes)
    # Few domains occur at a time (full windows, one last window), so each is done with scalar shifts and masks.
    for num_bits in np.unique(bits):
        chosen = np.flatnonzero(bits == num_bits)
        result[chosen] = _walk(values[chosen].astype(np.uint64), sizes[chosen], keys[chosen], int(num_bits))
    return result


def _bit_lengths(sizes: Int64Array) -> Int64Array:
    """Bits that hold size - 1; exact (a float logarithm is not, near powers of two)."""
    distinct, where = np.unique(sizes, return_inverse=True)
    lengths = np.array([(int(size) - 1).bit_length() for size in distinct], dtype=np.int64)
    return lengths[where]


def _walk(values: UInt64Array, sizes: Int64Array, keys: UInt64Array, num_bits: int) -> Int64Array:
    """Cycle walking: encipher again whatever left the domain. The cipher's domain is less than twice as large."""
    round_keys = [mix64(keys + np.uint64(_GOLDEN * (number + 1) & _MASK64)) for number in range(NUM_ROUNDS)]
    limits = sizes.astype(np.uint64)
    result = _feistel(values, round_keys, num_bits)
    outside = np.flatnonzero(result >= limits)
    while outside.size:
        again = _feistel(result[outside], [keys_of_round[outside] for keys_of_round in round_keys], num_bits)
        result[outside] = again
        outside = outside[again >= limits[outside]]
    return result.astype(np.int64)


def _feistel(values: UInt64Array, round_keys: list[UInt64Array], num_bits: int) -> UInt64Array:
    """An unbalanced Feistel network on num_bits bits: each half is changed in turn by a function of the other."""
    low_bits = np.uint64((num_bits + 1) // 2)
    low_mask = np.uint64((1 << ((num_bits + 1) // 2)) - 1)
    high_mask = np.uint64((1 << (num_bits // 2)) - 1)
    high, low = values >> low_bits, values & low_mask
    for number, key in enumerate(round_keys):
        if number % 2 == 0:
            high = high ^ (mix64(low ^ key) & high_mask)
        else:
            low = low ^ (mix64(high ^ key) & low_mask)
    return (high << low_bits) | low
