"""Everything is durable before the rename that commits, by the system calls of a real save.

A kill keeps the page cache, so no kill test can show a missing fsync; the trace can.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[2]
PROGRAM = """
import sys
import numpy as np
from hpc_train.checkpoint import Checkpointer
for step in (1, 2):
    Checkpointer(sys.argv[1], keep=1).save(step, {"m": {"w": np.ones((3 << 20,), np.float32), "b": np.ones(3)}})
"""
CALLS = "fsync,rename,renameat,renameat2,pwrite64,write,openat,mkdir,unlinkat"
LINE = re.compile(r"^(?:\[pid +)?\d+\]? +(\w+)\((.*)\) += (-?\d+)")


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[tuple[str, str]]]:
    """(root, successful calls in order) of the second of two saves. strace must be there: no skip."""
    folder = tmp_path_factory.mktemp("trace")
    root, log = folder / "root", folder / "strace"
    argv = ["strace", "-f", "-y", "-s", "0", "-e", f"trace={CALLS}", "-o", str(log), sys.executable, "-c", PROGRAM]
    environment = {**os.environ, "PYTHONPATH": str(CHECKOUT), "OMP_NUM_THREADS": "1"}
    subprocess.run([*argv, str(root)], env=environment, check=True, timeout=60, capture_output=True)
    calls = [(m[1], m[2]) for line in log.read_text().splitlines() if (m := LINE.match(line)) and int(m[3]) >= 0]
    begin = next(i for i, (name, args) in enumerate(calls) if name == "mkdir" and ".step-000000002." in args)
    return root, calls[begin:]


def positions(calls: list[tuple[str, str]], names: str, pattern: str) -> list[int]:
    return [i for i, (name, args) in enumerate(calls) if name in names.split("|") and re.search(pattern, args)]


def only(found: list[int]) -> int:
    assert len(found) == 1, found
    return found[0]


def test_the_calls_of_a_commit_come_in_the_order_that_survives_a_power_cut(
    trace: tuple[Path, list[tuple[str, str]]],
) -> None:
    root, calls = trace
    writes = positions(calls, "pwrite64|write", r"data-00000\.safetensors>")
    data = only(positions(calls, "fsync", r"data-00000\.safetensors>"))
    index = only(positions(calls, "fsync", r"inprogress-\w+/index\.json>"))
    commit = only(positions(calls, "fsync", r"inprogress-\w+/COMMIT>"))
    names = positions(calls, "fsync", r"inprogress-\w+>$")[-1]
    rename = only(positions(calls, "rename|renameat|renameat2", r'inprogress-\w+", .*"[^"]*/step-000000002"'))
    parent = positions(calls, "fsync", rf"<{re.escape(str(root))}>$")[0]
    latest = only(positions(calls, "rename", r'/LATEST"$'))
    doomed = only(positions(calls, "rename", r'/step-000000001", .*\.deleting-step-000000001'))
    removal = positions(calls, "unlinkat", r"COMMIT|data-00000")[0]
    order = [max(writes), data, index, commit, names, rename, parent, latest, doomed, removal]
    assert order == sorted(order)
    assert positions(calls, "pwrite64|write", r"COMMIT>")[-1] > data
    assert not [i for i in positions(calls, "pwrite64|write", r"step-000000002") if i > commit]


def test_there_is_one_commit_instant(trace: tuple[Path, list[tuple[str, str]]]) -> None:
    _, calls = trace
    assert len(positions(calls, "rename|renameat|renameat2|mkdir", r'/step-000000002"')) == 1
