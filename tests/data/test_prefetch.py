"""Working ahead: in order, bounded, ended at once, errors carried."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator

import pytest

from hpc_train.data.prefetch import Prefetcher


def test_results_come_in_order_then_none_for_ever() -> None:
    prefetcher = Prefetcher(lambda: iter(range(5)), depth=2, name="test")
    assert [prefetcher.get() for _ in range(7)] == [0, 1, 2, 3, 4, None, None]
    prefetcher.close()


def test_it_never_works_further_ahead_than_its_depth() -> None:
    made: list[int] = []

    def produce() -> Iterator[int]:
        for number in itertools.count():
            made.append(number)
            yield number

    prefetcher = Prefetcher(produce, depth=3, name="test")
    deadline = time.monotonic() + 10
    while len(made) < 4 and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.1)
    assert len(made) == 4  # three in the queue, one waiting for a place
    prefetcher.close()


def test_an_endless_producer_ends_with_close() -> None:
    prefetcher = Prefetcher(itertools.count, depth=1, name="endless")
    assert prefetcher.get() == 0
    prefetcher.close()
    prefetcher.close()  # twice is once
    assert "endless" not in [thread.name for thread in threading.enumerate()]


def test_errors_reach_the_consumer_after_the_results_before_them() -> None:
    def produce() -> Iterator[int]:
        yield 1
        raise ValueError("broken")

    prefetcher = Prefetcher(produce, depth=4, name="test")
    assert prefetcher.get() == 1
    for _ in range(2):
        with pytest.raises(ValueError, match="broken"):
            prefetcher.get()
    prefetcher.close()
