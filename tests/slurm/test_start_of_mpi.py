"""Under real srun over several nodes, no rank speaks to another before all have left MPI_Init."""

from __future__ import annotations

import sys
from pathlib import Path

from hpc_train.bootstrap.pmix import await_all_started
from tests.support.cluster import SlurmCluster
from tests.support.ranks import MPICH, OPENMPI, Mpi

# Rank 3, alone on its node, is the last to come; each tells how long it has waited for it.
PROGRAM = """
import time
from mpi4py import MPI
from hpc_train.bootstrap.pmix import await_all_started
MPI.COMM_WORLD.Barrier()
for late in range(2):
    time.sleep(4.0 if MPI.COMM_WORLD.rank == 3 else 0.0)
    began = time.monotonic()
    is_there = await_all_started(MPI.__file__)
    print(MPI.COMM_WORLD.rank, is_there, time.monotonic() - began, flush=True)
    MPI.COMM_WORLD.Barrier()
"""


def waits(cluster: SlurmCluster, job_dir: Path, mpi: Mpi, protocol: str) -> list[tuple[int, str, float]]:
    (job_dir / "wait.py").write_text(PROGRAM)
    argv = ["srun", "-N4", "-n4", "--ntasks-per-node=1", f"--mpi={protocol}", mpi.python, "wait.py"]
    done = cluster.run(argv, cwd=job_dir, timeout=120)
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in done.stdout.splitlines()]
    assert len(lines) == 8
    return [(int(rank), is_there, float(seconds)) for rank, is_there, seconds in lines]


def test_every_node_waits_for_the_last_one(cluster: SlurmCluster, job_dir: Path) -> None:
    # A plain PMIx_Fence is over at once here, on all nodes but the last one's.
    for rank, is_there, seconds in waits(cluster, job_dir, OPENMPI, "pmix"):
        assert is_there == "True"
        assert seconds < 2.0 if rank == 3 else seconds > 2.0


def test_an_mpi_that_does_not_start_by_pmix_waits_for_nothing(cluster: SlurmCluster, job_dir: Path) -> None:
    for _, is_there, seconds in waits(cluster, job_dir, MPICH, "pmi2"):
        assert is_there == "False" and seconds < 2.0


def test_without_mpi_there_is_nothing_to_wait_for() -> None:
    assert not await_all_started(sys.executable) and not await_all_started("/nowhere")
