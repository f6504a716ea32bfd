"""The cases of mpi_cases.py under real mpirun."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.ranks import Mpi, on_both_mpis, run_cases


@pytest.mark.mpi
@pytest.mark.parametrize("num_ranks", [1, 2, 4])
@on_both_mpis
def test_streams_of_real_ranks(mpi: Mpi, num_ranks: int, tmp_path: Path) -> None:
    run_cases("tests.data.mpi_cases", num_ranks, tmp_path, mpi=mpi)
