"""Ranks that never met each trained the same model: the run ends cleanly, and whoever asks for its end is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.launch.attempts import Ended, make_run, run_attempt, run_one, write_program
from tests.support.ranks import mpirun_argv

pytestmark = pytest.mark.mpi

TOLD = "all ranks ended cleanly, but none met another: each of the 2 worked by itself; call torch.distributed."
# Who only has to look as if it worked with torch need not take the seconds that importing it takes.
LOOKS = "import sys, types; sys.modules['torch._dynamo'] = types.ModuleType('torch._dynamo')\n"
WORK = "import time\nend = time.process_time() + 0.5\nwhile time.process_time() < end: pass"


def two_ranks(directory: Path, text: str) -> Ended:
    """Run a program as two ranks, which can meet through torch where it says so."""
    program = write_program(directory / "program.py", text)
    rendezvous = "torch" if "dist" in text or "init()" in text else "none"
    shape = {"num_ranks": 2, "ranks_per_node": 2, "mpi": "none", "rendezvous": rendezvous}
    run = make_run(directory / "run", ["python", str(program)], **shape)
    return run_attempt(run, launcher=mpirun_argv(2))


@pytest.mark.parametrize(
    "text",
    [
        "import torch; torch.optim.SGD([torch.ones(2, requires_grad=True)], lr=0.1).step()",
        LOOKS + "sys.exit(0)",
        # one of them only
        LOOKS + "import os, subprocess\nsubprocess.run([sys.executable, '-c', ''])\n" + WORK,
    ],
)
def test_ranks_that_never_met_are_told_of(tmp_path: Path, text: str) -> None:
    ended = two_ranks(tmp_path, text)
    assert ended.word == "done", ended.log
    assert ended.decision.reason.startswith(TOLD)


@pytest.mark.parametrize(
    "text",
    [
        "import torch.distributed as dist; dist.init_process_group('gloo'); dist.destroy_process_group()\n" + LOOKS,
        # through a store of its own, or with a hook of its own
        """
        import os, torch.distributed as dist
        store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
        dist.init_process_group("gloo", store=store, rank=int(os.environ["RANK"]), world_size=2)
        dist.destroy_process_group()
        import torch._dynamo
        """,
        """
        import sys, torch.distributed as dist
        dist.init_process_group("gloo")
        dist.destroy_process_group()
        sys.excepthook = sys.__excepthook__
        import torch._dynamo
        """,
        "import hpc_train; hpc_train.init().barrier()\n" + LOOKS,
        LOOKS + "import mpi4py.MPI",
        "print('no training at all')",
        # what it started may have met others: torchrun, torch.multiprocessing.spawn
        LOOKS + f"import subprocess\nsubprocess.run([sys.executable, '-c', {WORK!r}])",
        # not every one of them
        f"import os\nif os.environ['RANK'] == '0': {LOOKS}",
    ],
)
def test_nothing_is_said_of_ranks_that_met_or_may_have(tmp_path: Path, text: str) -> None:
    ended = two_ranks(tmp_path, text)
    assert ended.word == "done", ended.log
    assert ended.decision.reason == "all ranks ended cleanly"


def test_one_rank_is_alone_by_right(tmp_path: Path) -> None:
    assert run_one(tmp_path, LOOKS).decision.reason == "all ranks ended cleanly"
