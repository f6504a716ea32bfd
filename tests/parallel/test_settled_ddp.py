"""Interrupted and resumed equals never interrupted, under DDP."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.ranks import run_cases


@pytest.mark.mpi
def test_ddp_resumes_bit_for_bit_on_four_ranks(tmp_path: Path) -> None:
    run_cases("tests.parallel.ddp_cases", 4, tmp_path)


ALONE = """
import torch, hpc_train
model = torch.nn.Linear(3, 1)
before = {name: value.clone() for name, value in model.state_dict().items()}
train = hpc_train.settled_ddp(model, lambda wrapped: wrapped(torch.ones(2, 3)).sum())
assert all(torch.equal(before[name], value) for name, value in train.module.state_dict().items())
train(torch.ones(2, 3)).sum().backward()
print(model.weight.grad.tolist())
"""


def test_a_program_can_be_tried_with_plain_python() -> None:
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout.strip()) == (0, "[[2.0, 2.0, 2.0]]"), done.stderr


def test_one_of_several_ranks_without_a_group_is_no_program_alone() -> None:
    environ = {**os.environ, "WORLD_SIZE": "2"}
    done = subprocess.run([sys.executable, "-c", ALONE], capture_output=True, text=True, timeout=120, env=environ)
    assert done.returncode != 0 and "settled_ddp was given no world, but this is one of 2 ranks" in done.stderr
