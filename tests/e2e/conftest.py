"""Places to submit from: this machine, and the real Slurm cluster."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from hpc_train.run.layout import RunDir
from tests.e2e.lab import FOUR_NODES, SAVE_EVERY, STEPS, Lab
from tests.support.cluster import SlurmCluster


def pack(directory: Path) -> Path:
    """A small dataset of real bytes with small blocks, so that there are many blocks a lane."""
    data = directory / "data"
    source = directory / "source.txt"
    source.write_bytes(b"".join(path.read_bytes() for path in sorted(Path(os.__file__).parent.glob("a*.py"))))
    argv = [sys.executable, "-m", "hpc_train", "data", "pack", str(data), str(source)]
    subprocess.run([*argv, "--sequence", "16", "--block-samples", "16"], check=True, timeout=60, capture_output=True)
    return data


def make_local_lab(directory: Path) -> Lab:
    """This machine with the `local` site, in a directory of its own."""

    def call(
        argv: Sequence[str], *, timeout: float, cwd: Path, env: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(argv, timeout=timeout, cwd=cwd, env={**env}, capture_output=True, text=True)

    environ = {**os.environ, "XDG_STATE_HOME": str(directory / "state")}
    return Lab(call, directory, "local", environ)


@pytest.fixture
def local_lab(tmp_path: Path) -> Lab:
    """This machine, a fresh directory for each test."""
    return make_local_lab(tmp_path)


@pytest.fixture(scope="session")
def local_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset on this machine."""
    return pack(tmp_path_factory.mktemp("data"))


@pytest.fixture
def whole_cluster(cluster: SlurmCluster) -> Iterator[None]:
    """All hosts are back after the test, also one whose crash Slurm has not noticed yet."""
    yield
    cluster.repair()


@pytest.fixture(scope="session")
def slurm_lab(cluster: SlurmCluster) -> Iterator[Lab]:
    """The cluster, as its unprivileged user, in a directory that all nodes see."""
    directory = Path(tempfile.mkdtemp(prefix="e2e-", dir=cluster.shared))
    shutil.chown(directory, cluster.user)
    environ = {"XDG_STATE_HOME": str(directory / "state"), "HPC_TRAIN_RECOVERY_BACKOFF": "1s"}
    yield Lab(cluster.run, directory, "slurm-cluster", environ)
    shutil.rmtree(directory, ignore_errors=True)


@pytest.fixture(scope="session")
def slurm_data(cluster: SlurmCluster, slurm_lab: Lab) -> Path:
    """A dataset that all nodes see."""
    place = Path(tempfile.mkdtemp(prefix="data-", dir=slurm_lab.directory))
    place.chmod(0o755)
    return pack(place)


@pytest.fixture(scope="session")
def undisturbed(slurm_lab: Lab, slurm_data: Path) -> RunDir:
    """One run of 8 ranks to its end, against which the disturbed ones are held."""
    run = slurm_lab.train(slurm_data, *FOUR_NODES, "--walltime", "10", steps=STEPS, save_every=SAVE_EVERY)
    assert slurm_lab.wait_end(run) == "done", slurm_lab.logs(run)
    slurm_lab.wait_state(run, "completed")
    return run
