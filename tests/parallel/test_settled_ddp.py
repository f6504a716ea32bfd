"""Interrupted and resumed equals never interrupted, under DDP."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.ranks import run_cases


@pytest.mark.mpi
def test_ddp_resumes_bit_for_bit_on_four_ranks(tmp_path: Path) -> None:
    run_cases("tests.parallel.ddp_cases", 4, tmp_path)
