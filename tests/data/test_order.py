"""The order of samples: complete, disjoint, the same for every world size, and never changed."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hpc_train.data.order import (
    SampleOrder,
    allowed_world_sizes,
    batch_digest,
    combine_digests,
    default_lanes,
)
from hpc_train.errors import DataError, SpecError


@st.composite
def orders(draw: st.DrawFn) -> SampleOrder:
    """Orders of all kinds: with and without full lanes, short blocks, windows that do not divide."""
    lanes = draw(st.integers(1, 8))
    global_batch = lanes * draw(st.integers(1, 4))
    return SampleOrder(
        num_samples=draw(st.integers(global_batch, 600)),
        block_samples=draw(st.integers(1, 20)),
        global_batch=global_batch,
        lanes=lanes,
        window=draw(st.integers(1, 4)),
        seed=draw(st.integers(0, 1 << 40)),
        shuffle=draw(st.booleans()),
    )


def epoch_ids(order: SampleOrder, epoch: int = 0) -> list[int]:
    """All ids of an epoch in the order of the global batches."""
    ids: list[int] = order.part_ids(epoch, 0, order.steps_per_epoch, rank=0, size=1).ravel().tolist()
    return ids


@given(order=orders(), epoch=st.integers(0, 5))
@settings(max_examples=150, deadline=None)
def test_an_epoch_holds_every_sample_once_but_for_the_dropped_rest(order: SampleOrder, epoch: int) -> None:
    ids = epoch_ids(order, epoch)
    assert len(set(ids)) == len(ids) == order.num_samples - order.num_dropped
    assert min(ids) >= 0
    assert max(ids) < order.num_samples
    assert order.num_dropped < order.global_batch


@given(order=orders(), step=st.integers(0, 10**6))
@settings(max_examples=100, deadline=None)
def test_ranks_in_order_give_the_ordered_global_batch(order: SampleOrder, step: int) -> None:
    step %= order.steps_per_epoch
    whole = order.batch_ids(1, step).tolist()
    for size in allowed_world_sizes(order.lanes):
        parts = [order.part_ids(1, step, 1, rank=rank, size=size)[0].tolist() for rank in range(size)]
        assert [*itertools.chain(*parts)] == whole


@given(order=orders(), first=st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_a_position_is_computed_not_replayed(order: SampleOrder, first: int) -> None:
    first %= order.steps_per_epoch
    rest = order.part_ids(0, first, order.steps_per_epoch - first, rank=0, size=1).ravel().tolist()
    assert rest == epoch_ids(order)[first * order.global_batch :]


@given(order=orders(), step=st.integers(0, 10**6))
@settings(max_examples=60, deadline=None)
def test_digest_shares_add_up_at_every_world_size(order: SampleOrder, step: int) -> None:
    step %= order.steps_per_epoch
    positions = np.arange(step * order.global_batch, (step + 1) * order.global_batch)
    whole = batch_digest(positions, order.batch_ids(0, step))
    for size in allowed_world_sizes(order.lanes):
        shares = []
        for rank in range(size):
            slots = order.slots(rank, size)
            ids = order.part_ids(0, step, 1, rank=rank, size=size)[0]
            shares.append(batch_digest(positions[slots.start : slots.stop], ids))
        assert combine_digests(shares) == whole


def test_digest_sees_a_sample_at_another_place_and_another_sample() -> None:
    positions, ids = np.arange(8), np.arange(100, 108)
    changed = ids.copy()
    changed[[2, 5]] = ids[[5, 2]]
    other = ids.copy()
    other[0] += 1
    digests = {batch_digest(positions, each) for each in (ids, changed, other)} | {batch_digest(positions + 8, ids)}
    assert len(digests) == 4


@given(order=orders())
@settings(max_examples=60, deadline=None)
def test_a_block_belongs_to_one_window_number_and_numbers_never_fall(order: SampleOrder) -> None:
    steps = order.steps_per_epoch
    windows = order.part_windows(0, steps, rank=0, size=1)
    blocks = order.part_ids(0, 0, steps, rank=0, size=1) // order.block_samples
    seen: dict[int, int] = {}
    for block, window in zip(blocks.ravel().tolist(), windows.ravel().tolist(), strict=True):
        assert seen.setdefault(block, window) == window
    assert (np.diff(windows.min(axis=1)) >= 0).all()


def test_epochs_and_seeds_differ_and_what_is_dropped_changes() -> None:
    order = SampleOrder(num_samples=1003, block_samples=10, global_batch=16, lanes=8)
    ids = [epoch_ids(order, epoch) for epoch in range(6)]
    assert len({tuple(each) for each in ids}) == 6
    assert epoch_ids(SampleOrder(**{**vars(order), "seed": 1})) != ids[0]
    dropped = [frozenset(range(1003)) - set(each) for each in ids]
    assert len(set(dropped)) > 3


def test_every_lane_is_busy_and_far_blocks_meet_in_a_batch() -> None:
    # datasets#8669: after a shuffle one worker had all data. Here each of 4 ranks reads a quarter of each batch.
    order = SampleOrder(num_samples=12_000, block_samples=10, global_batch=48, lanes=12)
    parts = [order.part_ids(0, 0, order.steps_per_epoch, rank=rank, size=4) for rank in range(4)]
    assert {part.shape for part in parts} == {(250, 12)}
    assert sorted(np.concatenate(parts, axis=None).tolist()) == list(range(12_000))
    thousands = order.batch_ids(0, 3) // 1000
    assert len(np.unique(thousands)) > 6  # of 12: sorted data are well spread over one batch


def test_few_ranks_share_a_block() -> None:
    # Read amplification: a rank must not read the blocks of all others, not even in the rest at the end.
    order = SampleOrder(num_samples=10_000 + 70, block_samples=10, global_batch=64, lanes=64)
    touched = 0
    for rank in range(16):
        ids = order.part_ids(0, 0, order.steps_per_epoch, rank=rank, size=16)
        touched += len(np.unique(ids // 10))
    assert touched <= 1007 + 3 * 16


def test_world_sizes_that_do_not_fit_are_refused_with_the_allowed_ones() -> None:
    order = SampleOrder(num_samples=100, block_samples=5, global_batch=24, lanes=12)
    with pytest.raises(SpecError, match=r"5 ranks .* 12 lanes .*run on 1, 2, 3, 4, 6, 12 ranks"):
        order.slots(0, 5)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("global_batch", 0, "global_batch = 0"),
        ("global_batch", True, "global_batch = True"),
        ("seed", -1, "seed = -1"),
        ("seed", 1.5, "seed = 1.5"),
        ("window", 0, "window = 0"),
        ("lanes", 5, "lanes = 5 does not divide global_batch = 16; choose one of 1, 2, 4, 8, 16"),
    ],
)
def test_values_out_of_range_are_refused(name: str, value: object, message: str) -> None:
    arguments = {"num_samples": 100, "block_samples": 5, "global_batch": 16, "lanes": 4, name: value}
    with pytest.raises(SpecError, match=message):
        SampleOrder(**arguments)  # type: ignore[arg-type]


def test_data_smaller_than_a_batch_are_refused() -> None:
    with pytest.raises(DataError, match=r"global_batch = 16 is larger than the dataset \(15 samples\)"):
        SampleOrder(num_samples=15, block_samples=5, global_batch=16, lanes=4)


@pytest.mark.parametrize(
    ("num_samples", "block_samples", "sample_bytes", "global_batch", "lanes"),
    [
        (10_000, 250, 256, 512, 512),  # 2.5 MB: any rank may hold it whole, so every divisor is open
        (10**7, 100, 1000, 512, 512),  # 100,000 blocks feed them all
        (10**6, 1000, 1000, 512, 128),  # 1,000 blocks: 4 for each of at most 249 lanes
        (10**8, 1000, 1000, 8192, 1024),  # 4096 lanes would hold 8 GiB on one rank
        (10**8, 100, 1000, 10_000, 2500),  # 5000 lanes are too many, 2500 divides
        (400, 100, 10**6, 512 // 2, 256),  # 4 blocks of 100 MB: whole
        (10**6, 1000, 1000, 509, 1),  # a prime: 509 lanes do not fit
    ],
)
def test_default_lanes(num_samples: int, block_samples: int, sample_bytes: int, global_batch: int, lanes: int) -> None:
    chosen = default_lanes(
        num_samples=num_samples,
        block_samples=block_samples,
        sample_bytes=sample_bytes,
        global_batch=global_batch,
        window=2,
    )
    assert chosen == lanes


def test_the_order_is_that_of_the_first_version() -> None:
    # Runs that resume rely on it: a change needs a new version of the stream's state.
    lanes = SampleOrder(num_samples=107, block_samples=5, global_batch=8, lanes=4, seed=7)
    assert [lanes.batch_ids(0, 0).tolist(), lanes.batch_ids(1, 12).tolist()] == LANES
    small = SampleOrder(num_samples=23, block_samples=10, global_batch=8, lanes=8, seed=7)
    assert small.batch_ids(2, 1).tolist() == SMALL
    assert batch_digest(np.arange(8), lanes.batch_ids(0, 0)) == DIGEST


LANES = [[27, 29, 58, 75, 15, 84, 13, 11], [63, 105, 104, 106, 75, 95, 39, 96]]
SMALL = [5, 22, 21, 1, 15, 18, 12, 13]
DIGEST = 5136620519159557002
