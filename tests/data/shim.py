"""Programs under the shim of faults.c, a preloaded library: what no file system here does when it is asked to."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

HERE = Path(__file__).parent


def build_shim(directory: Path) -> Path:
    """Compile the library."""
    library = directory / "faults.so"
    argv = ["gcc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", str(library), str(HERE / "faults.c"), "-ldl"]
    subprocess.run(argv, check=True, timeout=60)
    return library


def run_under(shim: Path, text: str, *, cwd: Path) -> list[str]:
    """The lines that a program prints; in it `shim` is the library."""
    program = "import ctypes\nshim = ctypes.CDLL(None)\n" + textwrap.dedent(text)
    environment = {**os.environ, "LD_PRELOAD": str(shim), "PYTHONPATH": str(HERE.parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60, cwd=cwd
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()
