"""Progress: a heartbeat and a journal line a step."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from hpc_train.bootstrap.solo import AttachedSoloWorld
from hpc_train.errors import UsageError
from hpc_train.launch.page import Page, attach_page
from hpc_train.observe.progress import DIGEST_MODULUS, Progress
from hpc_train.run.journal import read_journal
from hpc_train.run.layout import RunDir
from hpc_train.world import SoloWorld


def fields(run: RunDir, name: str) -> list[dict[str, Any]]:
    return [event.fields for event in read_journal(run) if event.event == name]


def test_a_step_is_journalled_with_what_was_given(run: RunDir, world: AttachedSoloWorld) -> None:
    progress = Progress(world, total_steps=9)
    progress.step(1, loss=0.5, digest=DIGEST_MODULUS + 7, samples=64)
    assert fields(run, "progress") == [{"total_steps": 9, "num_ranks": 1}]
    (step,) = fields(run, "step")
    assert (step["step"], step["loss"], step["digest"], step["samples"]) == (1, 0.5, 7, 64)
    assert step["seconds"] >= 0


def test_a_loss_may_be_anything_that_is_a_number(run: RunDir, world: AttachedSoloWorld) -> None:
    class Scalar:
        def __float__(self) -> float:
            return 1.5

    progress = Progress(world)
    progress.step(1, loss=Scalar())  # as a tensor of one element
    progress.step(2, loss=math.nan)
    progress.step(3)
    losses = [step["loss"] for step in fields(run, "step")]
    assert losses[0] == 1.5
    assert math.isnan(losses[1])
    assert losses[2] is None


def test_a_step_is_a_heartbeat(world: AttachedSoloWorld) -> None:
    page = Page()
    attach_page(page)
    progress = Progress(world)
    progress.step(41)
    progress.step(42)
    assert (page.read().beats, page.read().step) == (2, 42)


def test_outside_a_run_progress_costs_nothing() -> None:
    Progress(SoloWorld(), total_steps=3).step(1, loss=1.0, digest=5)


def test_other_ranks_do_not_even_look_at_the_loss(run: RunDir, world: AttachedSoloWorld) -> None:
    class Untouchable:
        def __float__(self) -> float:
            raise AssertionError("a GPU would have to be waited for")

    world.rank = 1
    Progress(world).step(1, loss=Untouchable())


def test_numbers_may_be_of_any_type(run: RunDir, world: AttachedSoloWorld) -> None:
    progress = Progress(world, total_steps=np.int64(10))
    progress.step(np.int32(1), loss=np.float32(0.5), digest=np.int64(7), samples=np.int64(64))
    progress.step(torch.tensor(2), loss=torch.tensor(0.25, requires_grad=True))
    progress.step(3, loss=np.array(0.125))
    assert fields(run, "progress") == [{"total_steps": 10, "num_ranks": 1}]
    found = [(step["step"], step["loss"], step["digest"], step["samples"]) for step in fields(run, "step")]
    assert found == [(1, 0.5, 7, 64), (2, 0.25, None, 0), (3, 0.125, None, 0)]


@pytest.mark.parametrize("number", [1.5, 2.0, -1, 1 << 63, "3", True, None])
def test_a_step_that_is_none_is_told_and_not_written(run: RunDir, world: AttachedSoloWorld, number: Any) -> None:
    page = Page()
    attach_page(page)
    progress = Progress(world, total_steps=(1 << 63) - 1)
    before = page.read().beats
    with pytest.raises(UsageError, match=r"Progress\.step: step = .*; allowed: a whole number from 0 to 9223372036854"):
        progress.step(number)
    assert fields(run, "step") == [] and page.read().beats == before
    if number is not None:
        with pytest.raises(UsageError, match="Progress: total_steps = "):
            Progress(world, total_steps=number)
    assert len(fields(run, "progress")) == 1
