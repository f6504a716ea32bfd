"""A short soak: runs that are broken again and again, by a planned seed, come to the very end of an undisturbed one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from soaking.breaking import return_drained
from soaking.lane import Grounds, Lane, Shape
from soaking.main import at_once
from soaking.plan import plan
from soaking.report import find_faults_of_ours, table
from tests.e2e.lab import WALK, Lab
from tests.support.cluster import SlurmCluster

SEED, FAULTS_S, LIMIT_S = 4, 110.0, 600.0
SHAPES = (Shape(nodes=2, ranks_per_node=2), Shape(nodes=1, ranks_per_node=2))


@pytest.fixture
def rested(cluster: SlurmCluster) -> Iterator[SlurmCluster]:
    """The cluster with every host in order, before and after."""
    cluster.run(["scancel", f"--user={cluster.user}"])
    cluster.repair()
    return_drained(cluster)
    cluster.wait_idle(timeout=120)
    yield cluster
    cluster.run(["scancel", f"--user={cluster.user}"])
    cluster.repair()
    return_drained(cluster)


@pytest.mark.timeout(LIMIT_S + 60)
def test_a_short_soak_finds_nothing(rested: SlurmCluster, slurm_lab: Lab, slurm_data: Path) -> None:
    said: list[str] = []
    grounds = Grounds(rested, slurm_lab, slurm_data, said.append, program=WALK)
    lanes = [
        Lane(grounds, shape, plan(SEED, number, num_nodes=shape.nodes, can_resize=False))
        for number, shape in enumerate(SHAPES)
    ]
    at_once([lane.prepare for lane in lanes], LIMIT_S)
    grounds.deadline = time.monotonic() + FAULTS_S
    at_once([lane.work for lane in lanes], LIMIT_S)
    cases = [case for lane in lanes for case in lane.cases]
    runs = [run for lane in lanes for run in lane.runs]
    told = "\n".join([*said, table(cases, runs)])
    assert [lane.error for lane in lanes] == ["", ""], told
    assert find_faults_of_ours(cases, runs) == [], told
    assert len(cases) >= 3, told
