"""Times, sizes, durations and counts as people and Slurm write them, to exact numbers and back.

Apart from the rooms because a wall time read one way at submit and another way in the batch script ends a run early:
one grammar, taken from Slurm, for all. Standard library only.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from hpc_train.errors import SpecError

__all__ = [
    "MAX_SECONDS",
    "divisors",
    "format_bytes",
    "format_counts",
    "format_duration",
    "format_memory",
    "format_ranks",
    "format_walltime",
    "parse_duration",
    "parse_memory",
    "parse_walltime",
    "shown",
]

MAX_SECONDS = 2**31 - 1  # Slurm adds the fields up in a C int: beyond it the limit it takes is not the one written
MAX_MEMORY = 2**63 - 1

# Only ASCII digits: int() and \d also take other scripts' digits, which Slurm does not.
_WALLTIME = re.compile(
    r"(?:(?P<d>[0-9]{1,10})-(?P<dh>[0-9]{1,10})(?::(?P<dm>[0-9]{1,10})(?::(?P<ds>[0-9]{1,10}))?)?"
    r"|(?P<h>[0-9]{1,10}):(?P<hm>[0-9]{1,10}):(?P<hs>[0-9]{1,10})"
    r"|(?P<m>[0-9]{1,10})(?::(?P<ms>[0-9]{1,10}))?)"
)
_UNITS_S = {"d": 86400, "dh": 3600, "dm": 60, "ds": 1, "h": 3600, "hm": 60, "hs": 1, "m": 60, "ms": 1}
_MEMORY = re.compile(r"([0-9]{1,19})(?:([KMGT])B?)?", re.IGNORECASE)
_SHIFT = {"K": 10, "M": 20, "G": 30, "T": 40}
_DURATION = re.compile(r"(?:([0-9]{1,10})d)?(?:([0-9]{1,10})h)?(?:([0-9]{1,10})m)?(?:([0-9]{1,10})s)?")
_NO_LIMIT = {"-1", "infinite", "unlimited"}


def parse_walltime(text: str) -> int | None:
    """Seconds of a time limit in Slurm's grammar; None: no limit.

    Allowed: `M`, `M:S`, `H:M:S`, `D-H`, `D-H:M`, `D-H:M:S` (fields may exceed 59), `-1`, `INFINITE` and `UNLIMITED` in
    any case; zero, however written, is no limit too. Seconds stay exact here; Slurm itself rounds them up to minutes.
    Raises: SpecError for anything else, blanks and signs included, and for more than 2**31 - 1 seconds.
    Source: Slurm, src/common/parse_time.c (time_str2secs) and sbatch(1), --time.
    """
    if isinstance(text, str):
        if text.lower() in _NO_LIMIT:
            return None
        match = _WALLTIME.fullmatch(text)
        if match:
            seconds = sum(int(value) * _UNITS_S[field] for field, value in match.groupdict(default="0").items())
            if seconds > MAX_SECONDS:
                raise SpecError(f"wall time {text!r} is longer than Slurm can hold (68 years); ask for less")
            return seconds or None
    raise SpecError(
        f"wall time {shown(text)} is not understood; write minutes (`90`), M:S, H:M:S (`2:00:00`), D-H (`1-12`), "
        "D-H:M or D-H:M:S, or UNLIMITED"
    )


def format_walltime(seconds: int | None) -> str:
    """`D-HH:MM:SS` for Slurm, `UNLIMITED` for None. Inverse: parse_walltime(format_walltime(x)) == x.

    Raises: SpecError unless 1 <= seconds < 2**31: zero would mean no limit to Slurm.
    """
    if seconds is None:
        return "UNLIMITED"
    if not 1 <= seconds <= MAX_SECONDS:
        raise SpecError(f"a wall time of {seconds} s cannot be written; 1 to {MAX_SECONDS} s can, or None for no limit")
    minutes, second = divmod(seconds, 60)
    hours, minute = divmod(minutes, 60)
    day, hour = divmod(hours, 24)
    return f"{day}-{hour:02}:{minute:02}:{second:02}"


def parse_memory(text: str) -> int:
    """Bytes of a memory size in Slurm's grammar: an integer and K, M, G or T, with or without `B`, in any case.

    Factors are 1024. Without a unit: megabytes. Bytes stay exact here; Slurm itself rounds K up to megabytes. `0`
    means all of a node's memory to Slurm's --mem.
    Raises: SpecError for fractions (`1.5G`), `GiB`, blanks, signs and more than 2**63 - 1 bytes.
    Source: Slurm, src/common/proc_args.c (str_to_mbytes) and sbatch(1), --mem.
    """
    # isascii: without it IGNORECASE takes the KELVIN SIGN for a k
    match = _MEMORY.fullmatch(text) if isinstance(text, str) and text.isascii() else None
    if match is None:
        raise SpecError(
            f"memory {shown(text)} is not understood; write an integer and K, M, G or T (`480G`, `1536M`); "
            "no unit means megabytes, fractions and `GiB` are not allowed"
        )
    size = int(match[1]) << _SHIFT[(match[2] or "M").upper()]
    if size > MAX_MEMORY:
        raise SpecError(f"memory {text!r} is more than {MAX_MEMORY} bytes; ask for less")
    return size


def format_memory(num_bytes: int) -> str:
    """The size for Slurm in the largest unit that divides it; a rest below one K is rounded up to it.

    Inverse: parse_memory(format_memory(x)) == x for every multiple of 1024.
    Raises: SpecError if negative or above 2**63 - 1 bytes.
    """
    if not 0 <= num_bytes <= MAX_MEMORY:
        raise SpecError(f"a memory size of {num_bytes} bytes cannot be written; 0 to {MAX_MEMORY} can")
    if num_bytes == 0:
        return "0"
    for unit in "TGM":
        if num_bytes % (1 << _SHIFT[unit]) == 0:
            return f"{num_bytes >> _SHIFT[unit]}{unit}"
    return f"{-(-num_bytes // 1024)}K"


def parse_duration(text: str) -> int:
    """Seconds of a duration such as `90s`, `20m`, `1h30m` or `2d`: integers with d, h, m, s, in that order.

    A bare number is refused: it would be minutes to Slurm and seconds to nearly everything else.
    Raises: SpecError for anything else and for more than 2**31 - 1 seconds.
    """
    match = _DURATION.fullmatch(text) if isinstance(text, str) and text else None
    if match is None:
        raise SpecError(
            f"duration {shown(text)} is not understood; write integers with d, h, m and s: `90s`, `20m`, `1h30m`, `2d`"
        )
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    total = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    if total > MAX_SECONDS:
        raise SpecError(f"duration {text!r} is longer than {MAX_SECONDS} s; write less")
    return total


def format_duration(seconds: float) -> str:
    """A duration for people and job files: `1h30m`, `45s`, `2d`; fractions show below ten seconds only (`2.5s`).

    Inverse for whole seconds: parse_duration(format_duration(x)) == x. Negative durations get a leading minus.
    """
    if seconds < 0:
        return "-" + format_duration(-seconds)
    if seconds < 10 and seconds != int(seconds):
        return f"{seconds:.1f}s"
    rest = round(seconds)
    parts = []
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, rest = divmod(rest, length)
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts) or "0s"


def format_bytes(num_bytes: float) -> str:
    """A size for people, binary units, three digits: `1.50 GiB`, `512 B`. Not meant to be parsed."""
    size, unit = float(num_bytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB", "PiB", "EiB"):
        # 999.5: rounded to three digits it would show as 1000 or 1e+03
        if abs(size) < 999.5:
            break
        size, unit = size / 1024, larger
    if unit == "B":
        return f"{size:.0f} B"
    digits = 2 if abs(size) < 9.995 else 1 if abs(size) < 99.95 else 0
    return f"{size:.{digits}f} {unit}"


def shown(value: object, limit: int = 60) -> str:
    """The value as Python writes it (control characters visible), cut so that an error stays one short line."""
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit - 10]}…{text[-1]}"


def divisors(number: int) -> list[int]:
    """All divisors of a positive whole number, rising. Cost: O(sqrt(number))."""
    low = [value for value in range(1, math.isqrt(number) + 1) if number % value == 0]
    return low + [number // value for value in reversed(low) if value * value != number]


def format_counts(numbers: Sequence[int]) -> str:
    """A list of numbers for a message; a long one is cut in the middle."""
    if len(numbers) > 24:
        return ", ".join(map(str, numbers[:16])) + ", ..., " + ", ".join(map(str, numbers[-4:]))
    return ", ".join(map(str, numbers))


def format_ranks(ranks: Sequence[int]) -> str:
    """Ranks for a message: "rank 3", "ranks 0, 2-5"; many that do not follow each other are cut."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    parts = [f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    shown_parts = [*parts[:8], f"... ({len(ranks)} in all)"] if len(parts) > 9 else parts
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(shown_parts)}"
