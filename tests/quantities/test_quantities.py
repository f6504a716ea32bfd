"""Times and sizes mean to us exactly what they mean to Slurm, and nothing else is taken."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_train.errors import SpecError
from hpc_train.quantities import (
    MAX_SECONDS,
    divisors,
    format_bytes,
    format_counts,
    format_duration,
    format_memory,
    format_ranks,
    format_walltime,
    parse_duration,
    parse_memory,
    parse_walltime,
    shown,
)

MINUTE, HOUR, DAY = 60, 3600, 86400

WALLTIMES = [
    ("90", 90 * MINUTE),  # a bare number is minutes
    ("12:34", 12 * MINUTE + 34),  # two fields are minutes and seconds, not hours (openff-evaluator#418)
    ("2:00:00", 2 * HOUR),
    ("3-0", 3 * DAY),
    ("3-0:00", 3 * DAY),  # toil#5433 read three hours
    ("1-12", DAY + 12 * HOUR),
    ("1-12:30", DAY + 12 * HOUR + 30 * MINUTE),
    ("1-12:30:15", DAY + 12 * HOUR + 30 * MINUTE + 15),
    ("0:90", 90),  # fields may exceed 59
    ("1:90:00", HOUR + 90 * MINUTE),
    ("0-36", 36 * HOUR),
    ("0:30", 30),  # kept exact; Slurm makes it one minute
    ("007", 7 * MINUTE),
    ("0", None),  # qbatch#246: no limit, not zero seconds
    ("00:00:00", None),
    ("0-0", None),
    ("-1", None),
    ("INFINITE", None),
    ("unlimited", None),
    ("Unlimited", None),
]

BAD_TIMES = [
    "", " ", "90 ", " 90", "9 0", "+90", "-2", "1.5", "1h", "2h30m", "90m", "1:2:3:4", "1-", "-5:00", "1-2-3",
    "1-2:3:4:5", ":30", "30:", "1::2", "1-:30", "1:30-2", "٩٠", "９０",
    "1_000", "1e3", "0x10", "90\n", "\t90", "NaN", "inf", "none",
    "9" * 11, "24856-0", "99999999999:00", "1" * 10_000,
]  # fmt: skip


@pytest.mark.parametrize(("text", "seconds"), WALLTIMES)
def test_walltime_is_read_as_slurm_reads_it(text: str, seconds: int | None) -> None:
    assert parse_walltime(text) == seconds


@pytest.mark.parametrize("text", BAD_TIMES)
def test_other_walltimes_are_refused_in_one_short_line_that_says_what_is_allowed(text: str) -> None:
    with pytest.raises(SpecError, match="wall time") as caught:
        parse_walltime(text)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


@given(st.one_of(st.none(), st.integers(1, MAX_SECONDS)))
def test_walltime_survives_writing_and_reading(seconds: int | None) -> None:
    assert parse_walltime(format_walltime(seconds)) == seconds


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (1, "0-00:00:01"),
        (DAY + 2 * HOUR + 3 * MINUTE + 4, "1-02:03:04"),
        (400 * DAY, "400-00:00:00"),
        (None, "UNLIMITED"),
    ],
)
def test_walltime_is_written_with_days(seconds: int | None, text: str) -> None:
    assert format_walltime(seconds) == text


@pytest.mark.parametrize("seconds", [0, -1, MAX_SECONDS + 1])
def test_a_walltime_that_slurm_would_read_otherwise_is_not_written(seconds: int) -> None:
    with pytest.raises(SpecError):
        format_walltime(seconds)


@given(st.text(alphabet="0123456789-:", max_size=14))
def test_whatever_looks_like_a_walltime_is_read_or_refused(text: str) -> None:
    try:
        seconds = parse_walltime(text)
    except SpecError:
        return
    assert seconds is None or 1 <= seconds <= MAX_SECONDS


MEMORIES = [
    ("100", 100 << 20),  # megabytes
    ("100K", 100 << 10),  # kept exact; Slurm makes it one megabyte
    ("100M", 100 << 20),
    ("480G", 480 << 30),
    ("2T", 2 << 40),
    ("480g", 480 << 30),
    ("480GB", 480 << 30),
    ("480gb", 480 << 30),
    ("494000MB", 494000 << 20),
    ("0", 0),  # all of the node
    ("0G", 0),
]


@pytest.mark.parametrize(("text", "num_bytes"), MEMORIES)
def test_memory_is_read_as_slurm_reads_it(text: str, num_bytes: int) -> None:
    assert parse_memory(text) == num_bytes


@pytest.mark.parametrize(
    "text",
    ["", "1.5G", "4GiB", "4Gi", "G", "GB", "100B", "-1", "-1G", "+1G", " 1G", "1G ", "1 G", "1G\n", "1P", "1E", "1e3M",
     "٤G", "1Ｇ", "1K" + "B" * 9, "9" * 19 + "T", "9" * 30, "0x10", "1,000", "1_000M",
     "1\u212a"],  # KELVIN SIGN lowers to k
)  # fmt: skip
def test_other_memory_sizes_are_refused(text: str) -> None:
    with pytest.raises(SpecError, match="memory"):
        parse_memory(text)


@given(st.integers(0, 2**53 - 1))
def test_memory_survives_writing_and_reading_in_whole_kilobytes(num_kilobytes: int) -> None:
    assert parse_memory(format_memory(num_kilobytes * 1024)) == num_kilobytes * 1024


@given(st.integers(0, 2**60))
def test_memory_is_never_written_smaller(num_bytes: int) -> None:
    assert num_bytes <= parse_memory(format_memory(num_bytes)) < num_bytes + 1024


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("20m", 1200),
        ("2h", 7200),
        ("1h30m", 5400),
        ("2d", 2 * DAY),
        ("1d2h3m4s", 93784),
        ("0s", 0),
        ("90m", 5400),
    ],
)
def test_duration_is_read(text: str, seconds: int) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        "",
        "90",
        "m",
        "1m1h",
        "1.5h",
        "-5m",
        "+5m",
        "5 m",
        " 5m",
        "5m ",
        "5M",
        "5min",
        "1h1h",
        "٥m",
        "5m\n",
        "9" * 11 + "s",
    ],
)
def test_other_durations_are_refused(text: str) -> None:
    with pytest.raises(SpecError, match="duration"):
        parse_duration(text)


@given(st.integers(0, MAX_SECONDS))
def test_duration_survives_writing_and_reading(seconds: int) -> None:
    assert parse_duration(format_duration(seconds)) == seconds


@pytest.mark.parametrize(
    ("seconds", "text"), [(2.5, "2.5s"), (9.99, "10.0s"), (61.4, "1m1s"), (-3.0, "-3s"), (0, "0s")]
)
def test_durations_are_shown_to_people(seconds: float, text: str) -> None:
    assert format_duration(seconds) == text


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "0.98 KiB"), (1536, "1.50 KiB"), (1 << 30, "1.00 GiB"), (123 << 20, "123 MiB"),
     (10 * (1 << 20), "10.0 MiB"), (1 << 70, "1024 EiB"), (-2048, "-2.00 KiB")],
)  # fmt: skip
def test_sizes_are_shown_to_people(num_bytes: int, text: str) -> None:
    assert format_bytes(num_bytes) == text


@pytest.mark.parametrize("value", ["x" * 1000, "a\nb\x1b[2J", "\u2028"])
def test_a_value_in_an_error_is_one_short_printable_line(value: str) -> None:
    text = shown(value)
    assert len(text) <= 60
    assert text.isprintable()


@given(number=st.integers(1, 20_000))
def test_divisors(number: int) -> None:
    assert divisors(number) == [value for value in range(1, number + 1) if number % value == 0]


def test_a_long_list_of_counts_is_cut_in_the_middle() -> None:
    assert format_counts([1, 2, 4]) == "1, 2, 4"
    assert format_counts(range(1, 100)).endswith("15, 16, ..., 96, 97, 98, 99")


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([3], "rank 3"),
        ([5, 0, 2, 3, 4], "ranks 0, 2-5"),
        (range(8), "ranks 0-7"),
        (range(0, 40, 2), "ranks 0, 2, 4, 6, 8, 10, 12, 14, ... (20 in all)"),
    ],
)
def test_ranks_are_shown_to_people(ranks: Sequence[int], text: str) -> None:
    assert format_ranks(ranks) == text
