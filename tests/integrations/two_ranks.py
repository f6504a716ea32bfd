"""A training of a framework with two ranks, of which one alone hears the warning."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

TWO_RANKS = """
import os
from hpc_train.errors import Stopped
from tests.integrations import test_{name} as test

said = []
for number, options in enumerate({options}):
    try:
        watch = test.StopAt({step} if os.environ["RANK"] == "1" else -1, evaluating=True)
        test.run(test.Path(f"out-{{number}}"), watch, **options)
        said.append("ended")
    except Stopped as stopped:
        said.append(str(stopped))
test.Path("said-" + os.environ["RANK"]).write_text("\\n".join(said))
os._exit(0)  # the frameworks leave torch's process group, whose threads can abort an interpreter that ends beside them
"""


def two_ranks(directory: Path, **values: str) -> list[str]:
    """How trainings ended, one after the other, in words that must be the same of both ranks; they save in `out-N`.

    Args:  values: the framework's `name`, the `step`, and `options`, a list of one dictionary for each, as Python text.
    """
    path = directory / "two_ranks.py"
    path.write_text(TWO_RANKS.format(**values))
    argv = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(path)]
    environ = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(argv, cwd=directory, env=environ, timeout=180, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    said = [(directory / f"said-{rank}").read_text() for rank in range(2)]
    assert said[0] == said[1]
    return said[0].splitlines()
