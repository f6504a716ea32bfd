"""`hpc_train.init()`, however the program was started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hpc_train.run.ownership import take_ownership
from tests.run.records import make_run
from tests.support.ranks import Mpi, mpi_environment, mpirun_argv, on_both_mpis

SAYS = """
import hpc_train
world = hpc_train.init({arguments})
print(f"{{type(world).__name__}} {{world.rank}}/{{world.size}} {{hpc_train.init() is world}}\\n", end="")
"""


def start(text: str, *launcher: str, python: str = sys.executable, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a program text."""
    argv = [*launcher, python, "-c", text]
    return subprocess.run(argv, env={**mpi_environment(), **environ}, capture_output=True, text=True, timeout=120)


def error_of(done: subprocess.CompletedProcess[str]) -> str:
    """The last line of a traceback."""
    assert done.returncode != 0
    return done.stderr.strip().splitlines()[-1]


def test_alone_without_torch_or_mpi() -> None:
    text = "import sys\n" + SAYS.format(arguments="") + "print('torch' in sys.modules, 'mpi4py' in sys.modules)"
    assert start(text).stdout.splitlines() == ["AttachedSoloWorld 0/1 True", "False False"]


@pytest.mark.mpi
@on_both_mpis
def test_by_hand_under_mpirun(mpi: Mpi) -> None:
    done = start(SAYS.format(arguments="process_group=False"), *mpi.mpirun_argv(2), python=mpi.python)
    assert sorted(done.stdout.splitlines()) == ["MpiWorld 0/2 True", "MpiWorld 1/2 True"], done.stderr


@pytest.mark.mpi
def test_under_mpirun_torch_has_its_group_without_any_address_in_the_environment() -> None:
    text = (
        SAYS.format(arguments="") + "import torch, torch.distributed as dist\nx = torch.ones(3)\ndist.all_reduce(x)\n"
    )
    text += "print(f'{int(x.sum())} {dist.get_backend()}\\n', end='')\nhpc_train.init().barrier()"
    done = start(text, *mpirun_argv(2))
    lines = sorted(done.stdout.splitlines())
    assert lines[:2] == ["6 gloo", "6 gloo"], done.stderr
    assert lines[2:] == ["MpiWorld 0/2 True", "MpiWorld 1/2 True"]


@pytest.mark.mpi
def test_an_mpi_that_makes_every_rank_a_world_of_its_own_is_refused_with_the_remedy() -> None:
    # As Open MPI 5 does under srun with pmi2: silently N times rank 0 of 1.
    done = start(SAYS.format(arguments=""), HPC_TRAIN_MPI="pmix", WORLD_SIZE="4", RANK="2")
    message = error_of(done)
    assert "SiteError: MPI says rank 0 of 1, but 4 ranks were declared (launch mode 'pmix')" in message
    assert "this MPI, Open MPI v5" in message
    assert "Set the site's launch.mpi, or launch.mpi_of" in message and "Open MPI: pmix, MPICH: pmi2" in message


def test_a_missing_mpi4py_names_the_install_line() -> None:
    text = "import sys; sys.modules['mpi4py'] = None\n" + SAYS.format(arguments="")
    message = error_of(start(text, HPC_TRAIN_MPI="pmix"))
    assert "SiteError: launch mode 'pmix' needs mpi4py" in message
    assert "pip install 'hpc-train[node,openmpi]'" in message


@pytest.mark.mpi
@pytest.mark.parametrize("thread_level", ["multiple", "serialized"])
def test_mpi_starts_by_the_programs_own_settings_and_ends_with_it(thread_level: str) -> None:
    text = f"import mpi4py; mpi4py.rc.thread_level = {thread_level!r}\n" + SAYS.format(arguments="process_group=False")
    text += (
        "from mpi4py import MPI\nprint(MPI.Query_thread() == getattr(MPI, 'THREAD_' + mpi4py.rc.thread_level.upper()))"
    )
    text += "\nprint(mpi4py.rc.initialize, mpi4py.rc.finalize)"  # as the program left them
    done = start(text, *mpirun_argv(1))  # Open MPI's mpirun fails where a rank does not finalise MPI
    assert (done.returncode, done.stdout.splitlines()) == (0, ["MpiWorld 0/1 True", "True", "True None"]), done.stderr


def test_several_ranks_with_neither_mpi_nor_an_address_are_refused() -> None:
    message = error_of(start(SAYS.format(arguments=""), WORLD_SIZE="2", RANK="0"))
    assert 'set [program] rendezvous = "torch" in the job file' in message


def test_a_rank_of_a_superseded_attempt_does_not_start(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    owner = take_ownership(run)
    take_ownership(run)
    names = {"HPC_TRAIN_RUN_DIR": str(run.path), "HPC_TRAIN_ATTEMPT": "0", "HPC_TRAIN_TOKEN": owner.token}
    assert "Superseded" in error_of(start(SAYS.format(arguments=""), **names))
