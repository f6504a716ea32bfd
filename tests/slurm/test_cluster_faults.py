"""A node of the cluster is cut off or frozen and comes back; what happens to it is seen from inside and from Slurm."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.cluster import SlurmCluster, wait_for

# Writes a growing file as long as it runs, from a node that can be named.
TICKING_JOB = """#!/bin/bash
#SBATCH --time=5 --output=/dev/null --open-mode=append
srun bash -c 'while :; do date +%s >>ticks; sleep 0.1; done'
"""


def node_of(cluster: SlurmCluster, name: str) -> dict[str, object]:
    """What `status --json` says of one node."""
    nodes = json.loads(cluster.tool("status", "--json").stdout)["nodes"]
    found: dict[str, object] = next(node for node in nodes if node["name"] == name)
    return found


@pytest.fixture
def ticking(cluster: SlurmCluster, job_dir: Path) -> Iterator[Callable[[], bool]]:
    """A job on n2; gives a function that says whether it still writes to the shared directory."""
    (job_dir / "job.sh").write_text(TICKING_JOB)
    cluster.wait_idle()
    submitted = cluster.run(["sbatch", "--parsable", "--nodelist=n2", "job.sh"], cwd=job_dir)
    assert submitted.returncode == 0, submitted.stderr
    ticks = job_dir / "ticks"
    wait_for("the job", ticks.exists, timeout=60)

    def is_ticking() -> bool:
        before = ticks.stat().st_size
        time.sleep(1.0)
        return ticks.stat().st_size > before

    yield is_ticking
    cluster.repair()
    cluster.run(["scancel", submitted.stdout.strip()])
    cluster.wait_idle()


def reaches(cluster: SlurmCluster, node: str) -> bool:
    """Whether a node answers another one."""
    ping = f"timeout 2 bash -c ': </dev/tcp/{node}/6818'"
    return cluster.run(["srun", "--nodelist=n7", "bash", "-c", ping], timeout=30).returncode == 0


def test_a_node_that_is_cut_off_lives_on_and_can_write(cluster: SlurmCluster, ticking: Callable[[], bool]) -> None:
    cluster.cut("n2")
    assert node_of(cluster, "n2")["cut"] is True and node_of(cluster, "n2")["alive"] is True
    assert not reaches(cluster, "n2") and ticking()
    cluster.join("n2")
    assert node_of(cluster, "n2")["cut"] is False
    assert reaches(cluster, "n2") and ticking()


def test_frozen_ranks_stand_still_while_slurm_answers(cluster: SlurmCluster, ticking: Callable[[], bool]) -> None:
    cluster.freeze("n2", only_ranks=True)
    assert not ticking() and node_of(cluster, "n2")["frozen"] is True
    assert cluster.run(["srun", "--nodelist=n2", "hostname"]).stdout == "n2\n"
    cluster.thaw("n2")
    assert ticking() and node_of(cluster, "n2")["frozen"] is False


def test_a_frozen_node_is_down_for_slurm_and_comes_back(cluster: SlurmCluster, ticking: Callable[[], bool]) -> None:
    cluster.freeze("n2")
    assert not ticking() and node_of(cluster, "n2")["frozen"] is True
    wait_for("Slurm notices", lambda: cluster.states()["n2"].startswith("down"), timeout=60)
    cluster.thaw("n2")
    wait_for("Slurm takes it back", lambda: "down" not in cluster.states()["n2"], timeout=60)


def test_a_crash_ends_every_other_trouble(cluster: SlurmCluster) -> None:
    cluster.wait_idle()
    cluster.cut("n2")
    cluster.freeze("n2")
    cluster.kill("n2", noticed=True)
    cluster.start("n2")
    node = node_of(cluster, "n2")
    assert (node["alive"], node["cut"], node["frozen"], node["state"]) == (True, False, False, "idle")


@pytest.mark.parametrize(
    ("verb", "once", "again"),
    [
        ("cut", "is cut off", "was cut off already"),
        ("join", "is on the network again", "was not cut off"),
        ("freeze", "processes stand still, slurmd among them", "processes stand still"),
        ("thaw", "processes go on", "was not frozen"),
    ],
)
def test_each_verb_may_be_given_twice(cluster: SlurmCluster, verb: str, once: str, again: str) -> None:
    done = [cluster.tool(verb, "n6"), cluster.tool(verb, "n6")]
    assert [one.returncode for one in done] == [0, 0]
    assert once in done[0].stdout and again in done[1].stdout


def test_what_cannot_be_done_is_one_line(cluster: SlurmCluster) -> None:
    unknown, idle = cluster.tool("cut", "n9"), cluster.tool("freeze", "n6", "--ranks")
    assert (unknown.returncode, idle.returncode) == (2, 2)
    assert "n1 to n8" in unknown.stderr and "no rank runs on n6" in idle.stderr
    cluster.kill("n6", noticed=True)
    dead = cluster.tool("freeze", "n6")
    cluster.start("n6")
    assert dead.returncode == 69 and dead.stderr.count("\n") == 1 and "start n6" in dead.stderr
