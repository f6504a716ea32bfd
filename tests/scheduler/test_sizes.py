"""With how many ranks a run can go on is read from what its newest attempt said of its streams."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_train.errors import SpecError
from hpc_train.run.journal import Event
from hpc_train.scheduler.sizes import check_ranks, find_streams


def stream(attempt: int, **fields: Any) -> Event:
    return Event("stream", "rank0", attempt, 0.0, fields)


@pytest.mark.parametrize(
    ("events", "allowed"),
    [
        ([stream(0, global_batch=16, lanes=16)], [1, 2, 4, 8, 16]),
        ([stream(0, global_batch=64, lanes=4)], [1, 2, 4]),  # few blocks: fewer lanes than samples
        ([stream(0, global_batch=16, lanes=16), stream(0, global_batch=12, lanes=12)], [1, 2, 4]),  # both must fit
        ([stream(0, global_batch=16, lanes=16), stream(1, global_batch=6, lanes=6)], [1, 2, 3, 6]),  # the newest counts
        ([Event("step", "rank0", 0, 0.0, {"step": 1})], None),
        ([], None),
        # a journal is data: nothing in it may break the command, or keep it busy
        ([stream(0, global_batch="16", lanes=None)], None),
        ([stream(0, global_batch=True, lanes=0)], None),
        ([stream(0, global_batch=1 << 62, lanes=1 << 61)], None),
        ([stream(0)], None),
    ],
)
def test_every_stream_of_the_newest_attempt_counts(events: list[Event], allowed: list[int] | None) -> None:
    found = find_streams(events)
    assert (None if found is None else found.allowed_ranks) == allowed


@given(lanes=st.lists(st.integers(1, 400), min_size=1, max_size=3), ranks=st.integers(1, 50))
def test_a_size_is_refused_exactly_where_a_stream_would_refuse_it(lanes: list[int], ranks: int) -> None:
    found = find_streams([stream(0, global_batch=count, lanes=count) for count in lanes])
    assert found is not None
    if all(count % ranks == 0 for count in lanes):
        check_ranks(ranks, found, run="r", asked="")
    else:
        with pytest.raises(SpecError, match=f"allowed ranks 1.*asked {ranks}"):
            check_ranks(ranks, found, run="r", asked=f"{ranks} nodes x 1 ranks_per_node")
