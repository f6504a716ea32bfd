"""The real Slurm cluster of tools/slurm-cluster, brought up once for all tests that ask for it.

    def test_something(cluster: SlurmCluster, job_dir: Path) -> None:
        assert cluster.run(["srun", "-N2", "hostname"], cwd=job_dir).returncode == 0

HPC_TRAIN_CLUSTER_DIR chooses another directory for it, HPC_TRAIN_KEEP_CLUSTER=1 leaves it up at the end; one that was
up before is used and left up. Where no cluster can be started the tests fail: skipped, nobody would miss them.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

TOOL = Path(__file__).parents[2] / "tools" / "slurm-cluster"
NUM_NODES = 8
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

Completed = subprocess.CompletedProcess[str]


def run_tool(*arguments: str, timeout: float = 180, env: Mapping[str, str] | None = None) -> Completed:
    """Call tools/slurm-cluster as it is called by hand."""
    return subprocess.run([str(TOOL), *arguments], capture_output=True, text=True, timeout=timeout, env=env)


def wait_for(what: str, is_true: Callable[[], Any], *, timeout: float) -> None:
    """Poll until the condition holds; fails the test when it does not in time."""
    deadline = time.monotonic() + timeout
    while not is_true():
        if time.monotonic() > deadline:
            pytest.fail(f"not within {timeout:g} s: {what}")
        time.sleep(0.2)


@dataclass(frozen=True)
class SlurmCluster:
    """A cluster that is up. `shared` is the user's, and all nodes see it: each node's /tmp is its own."""

    dir: Path
    shared: Path
    user: str
    env: dict[str, str] = field(repr=False)

    def tool(self, *arguments: str, timeout: float = 120) -> Completed:
        """Call a verb of tools/slurm-cluster on this cluster, as root."""
        verb, *others = arguments
        return run_tool(verb, "--dir", str(self.dir), *others, timeout=timeout)

    def run(
        self,
        argv: Sequence[str | Path],
        *,
        timeout: float = 120,
        cwd: Path | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Completed:
        """Run a command as the unprivileged user, in `shared` or `cwd`, with `env` added to the cluster's `env`.

        The environment of the tests is not passed on. A command that outlives `timeout` is killed and raises
        TimeoutExpired; its job lives on, since srun could not tell Slurm.
        """
        command = [str(TOOL), "run", "--dir", str(self.dir), "--", *map(str, argv)]
        return subprocess.run(
            command,
            cwd=cwd or self.shared,
            env={**self.env, **(env or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
        )

    def kill(self, node: str, *, noticed: bool = False) -> None:
        """Crash a node; `noticed`: the controller learns it at once, instead of after 15 to 30 s."""
        self._checked("kill", node, *(["--noticed"] if noticed else []))

    def start(self, node: str) -> None:
        """Bring a crashed node back; returns when it can take jobs."""
        self._checked("start", node)

    def cut(self, node: str) -> None:
        """Cut a node off the network; its processes live on, and still reach the shared directory."""
        self._checked("cut", node)

    def join(self, node: str) -> None:
        """Bring a node that was cut off back to the network."""
        self._checked("join", node)

    def freeze(self, node: str, *, only_ranks: bool = False) -> None:
        """Stop all processes of a node, slurmd included, or only the ranks on it."""
        self._checked("freeze", node, *(["--ranks"] if only_ranks else []))

    def thaw(self, node: str) -> None:
        """Let the processes of a frozen node go on."""
        self._checked("thaw", node)

    def repair(self) -> None:
        """Undo every fault: nodes that are dead, cut off or frozen are back, and idle once their jobs have ended."""
        for node in json.loads(self._checked("status", "--json").stdout)["nodes"]:
            self._repair(node)

    def repair_node(self, name: str) -> None:
        """Undo whatever broke one node: what was done to it last need not be what it suffers from now."""
        nodes = json.loads(self._checked("status", "--json").stdout)["nodes"]
        self._repair(next(node for node in nodes if node["name"] == name))

    def _repair(self, node: dict[str, Any]) -> None:
        if node["cut"]:
            self.join(node["name"])
        if node["frozen"]:
            self.thaw(node["name"])
        if not node["alive"]:
            self.start(node["name"])

    def states(self) -> dict[str, str]:
        """What the controller says of each node, as sinfo writes it: idle, mixed, down*, ..."""
        document = json.loads(self._checked("status", "--json").stdout)
        return {node["name"]: node["state"] for node in document["nodes"]}

    def wait_idle(self, timeout: float = 120) -> None:
        """Wait until every node is idle."""
        wait_for("all nodes are idle", lambda: set(self.states().values()) == {"idle"}, timeout=timeout)

    def _checked(self, *arguments: str) -> Completed:
        done = self.tool(*arguments)
        assert done.returncode == 0, done.stderr
        return done


def connect() -> SlurmCluster:
    """The cluster, brought up if it is not, with every node back in order; RuntimeError where none can be."""
    # Each worker of pytest-xdist has a cluster of its own; tests/conftest.py gave it its directory.
    worker = os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw")
    up = run_tool("up", "--nodes", str(NUM_NODES), "--subnet", f"10.77.{worker}.0/24")
    if up.returncode != 0:
        raise RuntimeError(f"no Slurm cluster: {up.stderr}")
    document = json.loads(run_tool("status", "--json").stdout)
    given = document["environment"]
    user = given["SLURM_CLUSTER_USER"]
    env = {"PATH": SYSTEM_PATH, "LANG": "C.UTF-8", "HOME": f"{document['dir']}/home", "USER": user, "LOGNAME": user}
    found = SlurmCluster(Path(document["dir"]), Path(given["SLURM_CLUSTER_SHARED"]), user, {**env, **given})
    assert len(document["nodes"]) == NUM_NODES, f"the cluster in {found.dir} is another one; end it with: {TOOL} down"
    found.repair()
    return found


@pytest.fixture(scope="session")
def cluster() -> Iterator[SlurmCluster]:
    """Eight idle nodes in two leaves of four."""
    was_up = run_tool("status").returncode == 0
    found = connect()
    yield found
    if not was_up and os.environ.get("HPC_TRAIN_KEEP_CLUSTER") != "1":
        down = found.tool("down")
        assert down.returncode == 0, down.stderr


@pytest.fixture
def job_dir(cluster: SlurmCluster) -> Iterator[Path]:
    """An empty directory of the user that all nodes see, removed after the test."""
    directory = Path(tempfile.mkdtemp(prefix="test-", dir=cluster.shared))
    shutil.chown(directory, cluster.user)
    yield directory
    shutil.rmtree(directory, ignore_errors=True)
