"""docs/data.md: its example runs, and its worked example of the order is true to the code."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from hpc_train.data.order import SampleOrder

GUIDE = Path(__file__).parents[2] / "docs" / "data.md"


def test_the_example_runs(tmp_path: Path) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL)
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(GUIDE.parents[1])}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, cwd=tmp_path, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("1599 samples, 5.5451")


def test_the_worked_example_has_the_shape_it_says() -> None:
    order = SampleOrder(num_samples=14, block_samples=2, global_batch=4, lanes=2, window=2)
    assert (order.steps_per_epoch, order.blocks_per_lane, order.num_windows, order.num_dropped) == (3, 3, 2, 2)
    for seed in range(5):
        order = SampleOrder(num_samples=14, block_samples=2, global_batch=4, lanes=2, window=2, seed=seed)
        first = order.part_ids(0, 0, 2, rank=0, size=2).ravel() // 2
        assert [len(set(first.tolist())), len(first)] == [2, 4]  # rank 0's first window: two blocks, both whole
