"""The rendered launch line under the real mpiruns: no rank is held to fewer cores than it was promised."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpc_train.run.layout import RunDir
from hpc_train.scheduler.script import render_script
from tests.scheduler.batch_stage import Stage
from tests.scheduler.making import load, plan_of
from tests.support.ranks import OPENMPI, Mpi, on_both_mpis

pytestmark = pytest.mark.mpi
SITE = 'extends = "local"\n[launch.extra_of]\nopenmpi = [{words}]\n'


def launch_line(directory: Path, mpi: Mpi, run: RunDir, *, words: str = '"--map-by", "ppr:2:node"') -> str:
    """The script of two ranks with four cores each."""
    mpi.mpirun_argv(1)  # fails where it is not there
    job = '[job]\nranks_per_node = 2\ncpus_per_rank = 4\n[program]\ncommand = ["true"]\n'
    loaded = load(directory, job, site=SITE.format(words=words))
    mpirun = str(Path(mpi.python).with_name("mpirun"))
    return render_script(plan_of(loaded, run, python=str(directory / "bin/python"), mpirun=mpirun, flavour=mpi.name))


@on_both_mpis
def test_each_rank_may_use_the_cores_it_was_promised(stage: Stage, tmp_path: Path, mpi: Mpi) -> None:
    stage.script.write_text(launch_line(tmp_path, mpi, stage.run))
    look = "import os; print(len(os.sched_getaffinity(0)))"
    stage.answers(begin='mkdir -p "$4/attempt-000/logs"; echo go 0 t', rank=f"exec {mpi.python} -c '{look}'")
    assert stage.finish()[0] == 0
    (log,) = (stage.run.attempt(0).path / "logs").iterdir()
    assert [int(line) for line in log.read_text().split()] == [len(os.sched_getaffinity(0))] * 2


@pytest.mark.parametrize("words", ['"--map-by", "slot:PE=2"', '"--bind-to", "core"', '"--bind-to=numa"'])
def test_a_site_that_binds_ranks_itself_is_not_contradicted(tmp_path: Path, words: str) -> None:
    assert "--bind-to none" not in launch_line(tmp_path, OPENMPI, RunDir(tmp_path / "r"), words=words)
