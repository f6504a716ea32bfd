"""Slurm's host list notation: `n[08-10],gpu[1-2]x[3,5]-ib0` to names and back, and its counts `2(x3),1`.

Apart because node lists reach us from Slurm's variables, from its commands and from users, on nodes where scontrol
may be missing (containers). Standard library only. Order and duplicates are kept as `scontrol show hostnames` keeps
them; input that scontrol repairs by guessing (`n[1-2`, `a,,b`, `n1]`) is an error here.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Sequence

from hpc_train.errors import SpecError
from hpc_train.quantities import shown

__all__ = ["MAX_NAMES", "expand", "expand_counts", "fold"]

MAX_NAMES = 65_536  # Slurm's own largest range; a list that says more is a mistake or an attack
MAX_TEXT = 4 << 20
MAX_NAME = 253  # a full host name in DNS

_PART = re.compile(r"\[([^\[\]]*)\]|([A-Za-z0-9._-]+)")
_RANGE = re.compile(r"([0-9]{1,18})(?:-([0-9]{1,18}))?")
_COUNT = re.compile(r"([0-9]{1,9})(?:\(x([0-9]{1,9})\))?")
_NAME = re.compile(r"[A-Za-z0-9_.][A-Za-z0-9._-]*")
_TAIL = re.compile(r"(?:(.*[^0-9])|)([0-9]{1,18})")

# One bracket part is a list of (low, high, width); a literal part is its text.
_Ranges = list[tuple[int, int, int]]


def expand(text: str) -> list[str]:
    """The names of a host list, in the list's order, duplicates included.

    Several brackets per name and text after a bracket are allowed. Zero padding follows a range's first number.
    Raises: SpecError for an empty or malformed list (unclosed, nested or empty brackets, falling ranges, empty
    entries, characters no host name has) and for more than 65,536 names, before any is made.
    Source: Slurm, src/common/hostlist.c; invariant: tests/topology/test_hostlist.py compares with scontrol.
    """
    if not text or len(text) > MAX_TEXT:
        raise SpecError(
            f"host list {shown(text)} is {'too long' if text else 'empty'}; write names such as `n[1-4],m7`"
        )
    items = [_parse_item(item, text) for item in _split(text)]
    total = sum(math.prod(_num_values(part) for part in item if not isinstance(part, str)) for item in items)
    if total > MAX_NAMES:
        raise SpecError(f"host list {shown(text)} names too many hosts; at most {MAX_NAMES} are allowed")
    return [name for item in items for name in _names(item)]


def fold(names: Iterable[str]) -> str:
    """A host list of the names, shorter where neighbours count up: expand(fold(names)) == list(names).

    scontrol expands it to the same names. No names give the empty text (which `expand` refuses).
    Raises: SpecError for something that is not a host name.
    """
    groups: list[tuple[str, list[str]]] = []  # prefix and the numbers that follow each other
    for name in names:
        if not isinstance(name, str) or len(name) > MAX_NAME or not _NAME.fullmatch(name):
            raise SpecError(f"{shown(name)} is not a host name; letters, digits, `.`, `_` and `-` are allowed")
        match = _TAIL.fullmatch(name)
        prefix, number = (match[1] or "", match[2]) if match else (name, "")
        if groups and number and groups[-1][1] and groups[-1][0] == prefix:
            groups[-1][1].append(number)
        else:
            groups.append((prefix, [number] if number else []))
    return ",".join(prefix + _fold_numbers(numbers) for prefix, numbers in groups)


def expand_counts(text: str) -> list[int]:
    """One count per node from Slurm's form: `2(x3),1` gives [2, 2, 2, 1] (SLURM_TASKS_PER_NODE and its like).

    Raises: SpecError for anything else, for zero, and for more than 65,536 nodes, before the list is made.
    """
    pairs = []
    for item in text.split(",") if len(text) <= MAX_TEXT else [""]:
        match = _COUNT.fullmatch(item)
        pair = (int(match[1]), int(match[2] or 1)) if match else (0, 0)
        if 0 in pair:
            raise SpecError(f"counts {shown(text)} are not understood at {shown(item)}; Slurm writes `2(x3),1`")
        pairs.append(pair)
    if sum(times for _, times in pairs) > MAX_NAMES:
        raise SpecError(f"counts {shown(text)} are for more than {MAX_NAMES} nodes")
    return [count for count, times in pairs for _ in range(times)]


def _split(text: str) -> list[str]:
    """Entries between the commas outside brackets; blanks around an entry do not count."""
    items, depth, start = [], 0, 0
    for position, character in enumerate(text):
        if character == "[":
            depth += 1
        elif character == "]":
            depth -= 1
        elif character == "," and depth == 0:
            items.append(text[start:position])
            start = position + 1
        if depth not in (0, 1):
            raise SpecError(f"host list {shown(text)}: brackets do not match at character {position + 1}")
    if depth:
        raise SpecError(f"host list {shown(text)}: a bracket is not closed")
    items.append(text[start:])
    return [item.strip(" ") for item in items]


def _parse_item(item: str, text: str) -> list[str | _Ranges]:
    """One entry as literal texts and bracket ranges, in order."""
    parts: list[str | _Ranges] = []
    position = 0
    while match := _PART.match(item, position):
        parts.append(match[2] if match[1] is None else [_parse_range(entry, text) for entry in match[1].split(",")])
        position = match.end()
    if not parts or position != len(item) or item[0] == "-":
        raise SpecError(f"host list {shown(text)}: {shown(item)} is not a host name or range; write `n1` or `n[1-4]`")
    return parts


def _parse_range(entry: str, text: str) -> tuple[int, int, int]:
    match = _RANGE.fullmatch(entry)
    low, high = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
    if match is None or high < low:
        raise SpecError(f"host list {shown(text)}: {shown(entry)} is not a range; write `3` or `3-7` in brackets")
    return low, high, len(match[1])


def _num_values(ranges: _Ranges) -> int:
    return sum(high - low + 1 for low, high, _ in ranges)


def _values(ranges: _Ranges) -> list[str]:
    return [f"{number:0{width}}" for low, high, width in ranges for number in range(low, high + 1)]


def _names(item: Sequence[str | _Ranges]) -> list[str]:
    """All names of one entry, in Slurm's order.

    Slurm takes the last bracket as the fastest, then the first, the second … : with three brackets the middle one is
    the slowest (scontrol 22.05.8). Node order follows it, so it is kept.
    """
    brackets = [place for place, part in enumerate(item) if not isinstance(part, str)]
    slowest_first = [*brackets[-2::-1], *brackets[-1:]]
    choices = [_values(part) for part in (item[place] for place in slowest_first) if not isinstance(part, str)]
    names = []
    for chosen in itertools.product(*choices):
        values = dict(zip(slowest_first, chosen, strict=True))
        names.append("".join(part if isinstance(part, str) else values[place] for place, part in enumerate(item)))
    if names and len(names[0]) > MAX_NAME:
        raise SpecError(f"host name {shown(names[0])} is longer than {MAX_NAME} characters")
    return names


def _fold_numbers(numbers: list[str]) -> str:
    if len(numbers) <= 1:
        return "".join(numbers)
    ranges: list[list[str]] = []  # first and last number, as text
    for number in numbers:
        # the next number of a range must look as the range's padding would write it
        if ranges and number == f"{int(ranges[-1][1]) + 1:0{len(ranges[-1][0])}}":
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return "[" + ",".join(low if low == high else f"{low}-{high}" for low, high in ranges) + "]"
