"""Patterns against the true words of the programs that are here: Python, numpy, HDF5, torch, gloo, bash."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from hpc_train.diagnosis.engine import diagnose
from hpc_train.diagnosis.logs import make_log, read_log
from tests.support.ranks import MPICH

PROGRAM = Path(__file__).with_name("failing_cases.py")


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with what each failing case printed."""
    directory = tmp_path_factory.mktemp("cases")
    done = subprocess.run(
        [sys.executable, PROGRAM, directory], timeout=120, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return directory


@pytest.mark.parametrize(
    ("case", "pattern"),
    [
        ("memory", "python-memory-error"), ("disk", "disk-full"), ("module", "module-not-found"),
        ("truncated", "hdf5-damaged"), ("no_hdf5", "hdf5-damaged"), ("locked", "hdf5-locking"),
        ("missing_hdf5", "file-missing"), ("files", "too-many-open-files"), ("no_gpu", "gpu-none-visible"),
        ("torch_memory", "python-memory-error"), ("port", "address-in-use"), ("rendezvous", "rendezvous-timeout"),
        ("no_master", "rendezvous-timeout"), ("interface", "gloo-connect"), ("worker", "dataloader-worker-killed"),
        ("permission", "permission-denied"), ("data_damaged", "dataset-damaged"), ("data_missing", "dataset-missing"),
        ("data_too_small", "dataset-refused"), ("checkpoint_without_index", "checkpoint-damaged"),
        ("checkpoint_of_another", "checkpoint-mismatch"),
    ],
)  # fmt: skip
def test_what_python_programs_print(logs: Path, case: str, pattern: str) -> None:
    found = diagnose([read_log(logs / f"{case}.log")])
    assert found and found[0].pattern.id == pattern, (logs / f"{case}.log").read_text()


@pytest.mark.parametrize(
    ("script", "pattern"),
    [
        ("module load x", "command-not-found"),
        ("nothing_here --x", "command-not-found"),
        ("true\r\npython3\r", "dos-line-ends"),
        ("./data.txt", "permission-denied"),
        ("python3 nothere.py", "file-missing"),
        ("python3 -m nothere", "module-not-found"),
        ("cd /nowhere/at/all", "file-missing"),
        ("python3 -X faulthandler -c 'import os; os.kill(os.getpid(), 11)'", "segmentation-fault"),
        ("bash -c 'kill -9 $$'; true", "killed"),
        ("python3 -c 'import argparse; argparse.ArgumentParser().parse_args()' --nope", "bad-arguments"),
        ("python3 -c 'raise KeyError(1)'", "python-exception"),
        ("python3 -c 'import time, os, signal; os.kill(os.getpid(), signal.SIGINT); time.sleep(9)'", "interrupted"),
        ("./crlf.sh", "interpreter-missing"),
    ],
)
def test_what_shells_print(tmp_path: Path, script: str, pattern: str) -> None:
    (tmp_path / "data.txt").write_text("not a program\n")
    (tmp_path / "crlf.sh").write_bytes(b"#!/bin/bash\r\ntrue\r\n")
    (tmp_path / "crlf.sh").chmod(0o755)
    (tmp_path / "slurm_script").write_bytes(f"#!/bin/bash\n{script}\n".encode())
    argv = ["bash", str(tmp_path / "slurm_script")]
    done = subprocess.run(
        argv, cwd=tmp_path, timeout=60, capture_output=True, check=False, env={"PATH": "/usr/bin:/bin"}
    )
    found = diagnose([make_log(done.stdout + done.stderr, name="job.out")])
    assert found and found[0].pattern.id == pattern, done.stderr.decode()


@pytest.mark.parametrize("signal", ["KILL", "BUS"])
def test_what_the_mpiexec_of_mpich_prints_of_a_signal(signal: str) -> None:
    """It often tells of the ranks that it ended itself, killed or terminated: never of more than that one ended."""
    mpiexec = Path(MPICH.python).with_name("mpiexec")
    program = f"[ $PMI_RANK = 1 ] || exec sleep 20; kill -{signal} $$"
    said = ""
    for _ in range(20):  # on a busy machine it can fail an assertion of its own instead ("assert (!closed) failed")
        done = subprocess.run([mpiexec, "-n", "2", "bash", "-c", program], timeout=60, capture_output=True, check=False)
        said = (done.stdout + done.stderr).decode()
        if "BAD TERMINATION" in said:
            break
    (found,) = diagnose([make_log(said.encode(), name="job.out")])
    assert (found.pattern.id, found.host) == ("mpiexec-bad-termination", socket.gethostname()), said
