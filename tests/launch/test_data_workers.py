"""torch's data workers under the shim: they outlive what announces an end, end with their program, keep its CPUs."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from hpc_train.run.layout import AttemptDir, RunDir
from tests.launch.attempts import (
    ALONE,
    PYTHON,
    Ended,
    await_death,
    await_files,
    await_notice,
    make_run,
    run_attempt,
    run_one,
    write_program,
)
from tests.support.ranks import Mpi, mpirun_argv, on_both_mpis

pytestmark = pytest.mark.mpi

# Each worker writes down who it is; two batches of a worker are fetched ahead, so that more come from one that lives.
LOADERS = """
import os, time
import torch
from torch.utils.data import DataLoader, IterableDataset

class Numbers(IterableDataset):
    def __iter__(self):
        os.makedirs("workers", exist_ok=True)
        open(f"workers/{os.getpid()}", "w").close()
        number = 0
        while True:
            yield number
            number += 1

def start(method):
    return iter(DataLoader(Numbers(), batch_size=4, num_workers=2, multiprocessing_context=method))
"""
LISTENS = (
    LOADERS
    + """
import hpc_train

if __name__ == "__main__":
    world = hpc_train.init(process_group=False)
    stop = hpc_train.StopRequest(world)
    loaders = [start("fork"), start("spawn")]
    began, more = time.time(), 0
    while more < 20:
        assert time.time() < began + 100
        for loader in loaders:
            next(loader)
        more += stop.agreed()
    raise hpc_train.Stopped(f"{more} batches after the request")
"""
)
DEAF = (
    LOADERS
    + """
if __name__ == "__main__":
    loaders = [start("fork"), start("spawn")]
    while True:
        for loader in loaders:
            next(loader)
        time.sleep(0.1)
"""
)


def processes_below(pid: int) -> list[int]:
    """All of them, the farthest first, as far as they have not ended meanwhile."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [known for child in map(int, children) for known in (*processes_below(child), child)]


def signal_step(number: int, *, times: int = 1) -> Callable[[int, AttemptDir], None]:
    """As Slurm does: every process of the step gets the signal, once all four workers are there."""

    def act(pid: int, attempt: AttemptDir) -> None:
        await_files(attempt.path.parent / "work" / "workers", 4, timeout_s=180)
        for sent in range(times):
            if sent:
                await_notice(attempt)
            for process in (*processes_below(pid), pid):
                with contextlib.suppress(ProcessLookupError):  # the end of one of them may be that of others
                    os.kill(process, number)

    return act


def workers_of(run: RunDir) -> list[int]:
    return [int(path.name) for path in (run.path / "work" / "workers").iterdir()]


def run_signalled(tmp_path: Path, text: str, number: int, *, times: int = 1, grace_s: float = 30) -> Ended:
    program = write_program(tmp_path / "program.py", text)
    run = make_run(tmp_path / "run", ["python", str(program)], preempt_grace_s=grace_s, **ALONE)
    return run_attempt(run, launcher=[], meanwhile=signal_step(number, times=times))


@pytest.mark.parametrize(("number", "grace_s"), [(signal.SIGTERM, 30), (signal.SIGUSR2, 0)])
def test_they_outlive_the_request_to_stop_and_the_program_gets_to_its_save(
    tmp_path: Path, number: int, grace_s: float
) -> None:
    ended = run_signalled(tmp_path, LISTENS, number, grace_s=grace_s)
    assert (ended.code, ended.decision.failure) == (75, "stopped"), ended.log
    assert "20 batches after the request" in ended.decision.reason
    for worker in workers_of(ended.run):
        await_death(worker)


def test_none_is_left_when_the_second_sigterm_ends_the_program(tmp_path: Path) -> None:
    ended = run_signalled(tmp_path, DEAF, signal.SIGTERM, times=2)
    assert ended.decision.failure in ("terminated", "timeout")
    assert len(workers_of(ended.run)) == 4
    for worker in workers_of(ended.run):  # none has to find out by itself, which takes torch's five seconds
        await_death(worker, timeout_s=2)


STUCK = """
import os, time
from torch.utils.data import DataLoader, Dataset

class Stuck(Dataset):
    def __len__(self):
        return 1000
    def __getitem__(self, index):
        if index >= 8:
            time.sleep(1000)
        return index

if __name__ == "__main__":
    loaders = [iter(DataLoader(Stuck(), num_workers=2, multiprocessing_context=how)) for how in ("fork", "spawn")]
    print([int(next(loader)) for loader in loaders])
    print([process.pid for process in loaders[0]._workers + loaders[1]._workers])
"""


@pytest.mark.parametrize("grace_s", [0, 30])
def test_a_program_that_ends_is_rid_of_them_at_once_even_of_stuck_ones(tmp_path: Path, grace_s: float) -> None:
    ended = run_one(tmp_path, STUCK, preempt_grace_s=grace_s)
    assert (ended.code, ended.word) == (0, "done"), ended.log
    assert len(ended.lines) == 2 and ended.lines[0] == "[0, 0]", ended.log  # torch's handler for dead workers is silent
    for worker in ended.lines[1].strip("[]").split(","):
        await_death(int(worker), timeout_s=2)


STARTING = """
import os, signal, subprocess
import torch
from torch.utils.data import DataLoader, Dataset, get_worker_info

class Reader(Dataset):
    def __len__(self):
        return 1
    def __getitem__(self, index):
        ends, reader = [], subprocess.Popen(["sleep", "60"])
        reader.terminate()
        ends.append(reader.wait(20))
        forked = os.fork()
        if forked == 0:
            os.kill(os.getpid(), signal.SIGTERM)
            os._exit(0)
        ends.append(os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1]))
        os.kill(os.getpid(), signal.SIGTERM)  # this one it outlives
        return torch.tensor([*ends, get_worker_info().dataset.named])

def name(worker):
    get_worker_info().dataset.named = worker + 7

if __name__ == "__main__":
    for method in ("fork", "spawn"):
        loader = DataLoader(Reader(), num_workers=1, multiprocessing_context=method, worker_init_fn=name)
        print(next(iter(loader)).tolist(), loader.worker_init_fn is name)
"""


def test_what_a_worker_starts_ends_when_the_worker_terminates_it(tmp_path: Path) -> None:
    ended = run_one(tmp_path, STARTING, preempt_grace_s=30)
    assert (ended.code, ended.word) == (0, "done"), ended.log
    assert ended.lines == ["[[-15, -15, 7]] True"] * 2, ended.log


NOTES_TASK = """
import os, sys
os.environ["TASK"] = str(sorted(os.sched_getaffinity(0)))
os.execv(sys.argv[1], sys.argv[1:])
"""
AFFINITY = """
import os
seen = [sorted(os.sched_getaffinity(0))]
import torch
from torch.utils.data import DataLoader, Dataset

class Cpus(Dataset):
    def __len__(self):
        return 1
    def __getitem__(self, index):
        return torch.tensor(sorted(os.sched_getaffinity(0)))

if __name__ == "__main__":
    torch.ones(64, 64) @ torch.ones(64, 64)  # torch's threads have started
    seen.append(sorted(os.sched_getaffinity(0)))
    for method in ("fork", "spawn"):
        seen += [batch[0].tolist() for batch in DataLoader(Cpus(), num_workers=1, multiprocessing_context=method)]
    print([str(cpus) == os.environ["TASK"] for cpus in seen], "\\n", end="")
"""


@pytest.mark.parametrize("binding", ["core", "none"])
def test_program_and_workers_may_run_where_the_launcher_put_the_task(tmp_path: Path, binding: str) -> None:
    program = write_program(tmp_path / "program.py", AFFINITY)
    run = make_run(tmp_path / "run", ["python", str(program)], num_ranks=1, ranks_per_node=1, mpi="none")
    launcher = [mpirun_argv(1)[0], "-n", "1", "--bind-to", binding, PYTHON, "-c", NOTES_TASK]
    ended = run_attempt(run, launcher=launcher)
    assert ended.lines[0].strip() == str([True] * 4), ended.log


UNDER_MPI = """
from torch.utils.data import DataLoader, Dataset
import hpc_train

class Squares(Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        return index * index

if __name__ == "__main__":
    world = hpc_train.init(process_group=False)
    for method in ("fork", "spawn", "forkserver"):
        batches = DataLoader(Squares(), batch_size=2, num_workers=1, multiprocessing_context=method)
        found = [int(number) for batch in batches for number in batch]
        assert found == [0, 1, 4, 9], (method, found)
    assert world.allreduce(1) == 2
"""


@on_both_mpis
def test_they_work_beside_a_world_over_mpi_however_they_are_started(tmp_path: Path, mpi: Mpi) -> None:
    program = write_program(tmp_path / "program.py", UNDER_MPI)
    run = make_run(tmp_path / "run", ["python", str(program)], num_ranks=2, ranks_per_node=2, python=mpi.python)
    ended = run_attempt(run, launcher=mpi.mpirun_argv(2), mpi=mpi, deadline_s=150)
    assert (ended.code, ended.word) == (0, "done"), ended.log


def test_a_program_that_its_spawned_workers_would_start_again_is_told_so(tmp_path: Path) -> None:
    text = UNDER_MPI.replace('if __name__ == "__main__":', "if True:").replace('"fork", "spawn"', '"spawn"')
    program = write_program(tmp_path / "program.py", text)
    run = make_run(tmp_path / "run", ["python", str(program)], num_ranks=1, ranks_per_node=1)
    ended = run_attempt(run, launcher=mpirun_argv(1))
    assert ended.decision.failure == "program"
    assert "SpecError: hpc_train.init() was called in a process that multiprocessing started" in ended.log
