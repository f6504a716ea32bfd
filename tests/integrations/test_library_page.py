"""The program of docs/library.md: killed under mpirun and started again, it ends where an undisturbed one ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpc_train.checkpoint.catalogue import newest
from hpc_train.data import pack_bytes
from tests.support.ranks import mpi_environment, mpirun_argv

pytestmark = pytest.mark.mpi

PAGE = Path(__file__).parents[2] / "docs" / "library.md"
STEPS = "STEPS, GLOBAL_BATCH, SEED = 300,"


@pytest.fixture
def program() -> str:
    (found,) = (text for text in re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.M | re.S) if STEPS in text)
    return str(found)


def make_place(directory: Path, program: str) -> Path:
    """A directory with the program and data."""
    directory.mkdir()
    pack_bytes(directory / "data", [Path(os.__file__).with_name("argparse.py")], sequence=16)
    (directory / "train.py").write_text(program)
    return directory


def start(place: Path) -> subprocess.Popen[str]:
    argv = [*mpirun_argv(2), sys.executable, "train.py"]
    return subprocess.Popen(argv, cwd=place, env=mpi_environment(), stdout=-1, stderr=subprocess.STDOUT, text=True)


def train(place: Path) -> str:
    """Run it to its end; what it printed."""
    process = start(place)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0, out
    return out


def begins(out: str) -> list[str]:
    """The program's own lines: libraries may add others where an interpreter ends on a busy machine."""
    return sorted(line for line in out.splitlines() if line.startswith("rank "))


def final_files(place: Path) -> dict[str, bytes]:
    """The newest checkpoint's, but for COMMIT, which holds the time."""
    entry = newest(place / "checkpoints")
    assert entry is not None and entry.step == 300
    return {path.name: path.read_bytes() for path in entry.path.iterdir() if path.name != "COMMIT"}


def ranks_below(pid: int) -> list[int]:
    """The processes of the program that a launcher has started."""
    children = [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    own = [child for child in children if b"train.py" in Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")[1:2]]
    return own or [rank for child in children for rank in ranks_below(child)]


def test_killed_and_started_again_it_ends_where_an_undisturbed_run_ends(program: str, tmp_path: Path) -> None:
    undisturbed = make_place(tmp_path / "undisturbed", program)
    out = train(undisturbed)
    assert begins(out) == [f"rank {rank} of 2 begins at step 0" for rank in range(2)], out

    endless = program.replace(STEPS, STEPS.replace("300", "10**9")).replace("step % 20 == 0", "step == 20")
    place = make_place(tmp_path / "killed", endless)
    process = start(place)
    deadline = time.monotonic() + 60
    while newest(place / "checkpoints") is None:
        assert process.poll() is None and time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(ranks_below(process.pid)[1], signal.SIGKILL)
    killed, _ = process.communicate(timeout=60)
    assert process.returncode != 0, killed

    (place / "train.py").write_text(program)
    out = train(place)
    assert begins(out) == [f"rank {rank} of 2 begins at step 20" for rank in range(2)], out
    assert final_files(place) == final_files(undisturbed)


def test_it_is_tried_with_plain_python(program: str, tmp_path: Path) -> None:
    place = make_place(tmp_path / "alone", program)
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=place, env=mpi_environment(), capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stdout) == (0, "rank 0 of 1 begins at step 0\n"), done.stderr
    assert final_files(place)
