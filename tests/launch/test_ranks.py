"""Several real ranks under the shim: who may end when, the stop signal, torchrun's contract, data workers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hpc_train.run.layout import AttemptDir
from tests.launch.attempts import (
    PYTHON,
    Ended,
    await_files,
    make_run,
    run_attempt,
    shim_argv,
    write_program,
)
from tests.launch.test_torchrun_contract import CONTRACT, environments
from tests.support.ranks import MPICH, OPENMPI, Mpi, mpi_environment, mpirun_argv, on_both_mpis

pytestmark = pytest.mark.mpi


def run_ranks(tmp_path: Path, text: str, *, mpi: Mpi = OPENMPI) -> Ended:
    """Run a Python program with three MPI ranks."""
    program = write_program(tmp_path / "program.py", text)
    return run_attempt(make_run(tmp_path / "run", ["python", str(program)], python=mpi.python), mpi=mpi)


EARLY = """
import sys, time
import hpc_train
from mpi4py import MPI
world = hpc_train.init(process_group=False)
pair = world.mpi.Split(int(world.rank == 1), world.rank)  # ranks 0 and 2; rank 1 leaves at once
"""
EARLY_LEAVERS = {
    "others work, each in its own way": """
if world.rank == 0:
    end = time.monotonic() + 8
    while time.monotonic() < end:
        sum(range(100_000))
    print("computed")
elif world.rank == 2:
    with open("big", "wb") as file:
        for _ in range(30):
            file.write(bytes(1 << 20))
            time.sleep(0.1)
    time.sleep(5.5)
    print("slept")
sys.exit(0)
""",
    "one waits for one that works": """
if world.rank == 0:
    time.sleep(9)
if world.rank != 1:
    pair.Barrier()
""",
    "the others go on together, with nothing but short collectives": """
if world.rank != 1:
    end = time.monotonic() + 9
    while pair.bcast(time.monotonic() < end):
        pass
""",
}


Leaving = tuple[Mpi, str]
LEAVINGS: list[Leaving] = [*((OPENMPI, case) for case in EARLY_LEAVERS), (MPICH, next(iter(EARLY_LEAVERS)))]


@pytest.fixture(scope="module")
def early(tmp_path_factory: pytest.TempPathFactory) -> dict[Leaving, Ended]:
    root = tmp_path_factory.mktemp("early")

    def run(number: int, leaving: Leaving) -> Ended:
        (root / str(number)).mkdir()
        return run_ranks(root / str(number), EARLY + EARLY_LEAVERS[leaving[1]], mpi=leaving[0])

    with ThreadPoolExecutor(len(LEAVINGS)) as pool:
        return dict(zip(LEAVINGS, pool.map(run, range(len(LEAVINGS)), LEAVINGS), strict=True))


@pytest.mark.parametrize("leaving", LEAVINGS, ids=lambda leaving: f"{leaving[0].name}-{leaving[1]}")
def test_a_rank_may_end_early_while_others_go_on(leaving: Leaving, early: dict[Leaving, Ended]) -> None:
    ended = early[leaving]
    assert (ended.code, ended.word, ended.marks, ended.attempt.done.exists()) == (0, "done", [], True)
    assert ended.seconds > 8


STOP = """
import hpc_train, os, time
rank = int(os.environ["RANK"])
run_dir = os.environ["HPC_TRAIN_RUN_DIR"]
if {slow}:
    time.sleep(1.5 + rank / 2)  # an import that takes its time
world = hpc_train.init(process_group=False)
stop = hpc_train.StopRequest(world)
for step in range(1, 2000):
    time.sleep(0.005 * (1 + rank))
    if step == 3:
        os.makedirs(f"{{run_dir}}/up", exist_ok=True)
        open(f"{{run_dir}}/up/{{rank}}", "w").close()
    if stop.agreed():
        print(f"rank {{rank}} step {{step}} {{stop.reason}}\\n", end="")
        raise hpc_train.Stopped(f"saved at step {{step}}")
"""


def signal_twice(ready: str) -> Callable[[int, AttemptDir], None]:
    def act(pid: int, attempt: AttemptDir) -> None:
        await_files(attempt.ready if ready == "ready" else attempt.path.parent / ready, 3)
        os.kill(pid, signal.SIGUSR2)
        time.sleep(0.3)
        os.kill(pid, signal.SIGUSR2)

    return act


@pytest.mark.parametrize("when", ["while it imports", "while it trains"])
def test_a_stop_signal_is_agreed_on_at_one_step_by_all_ranks(tmp_path: Path, when: str) -> None:
    is_slow = when == "while it imports"
    program = write_program(tmp_path / "program.py", STOP.format(slow=is_slow))
    run = make_run(tmp_path / "run", ["python", str(program)])
    ended = run_attempt(run, meanwhile=signal_twice("ready" if is_slow else "up"))
    steps = {line.split()[3] for line in ended.log.splitlines() if line.startswith("rank ")}
    assert (ended.decision.failure, ended.decision.code, ended.word) == ("stopped", 75, "again")
    assert [mark.failure for mark in ended.marks] == ["stopped"] * 3
    assert len(steps) == 1
    assert sum(line.startswith("hpc-train: rank ") for line in ended.log.splitlines()) >= 1
    assert "failed: stopped" not in ended.log


def test_the_recorded_reason_is_told_to_all_ranks(tmp_path: Path) -> None:
    program = write_program(tmp_path / "program.py", STOP.format(slow=False))
    run = make_run(tmp_path / "run", ["python", str(program)])

    def record(pid: int, attempt: AttemptDir) -> None:
        attempt.stop.write_text(json.dumps({"reason": "wall time", "deadline": time.time() + 60}))

    ended = run_attempt(run, meanwhile=record)
    assert ended.decision.failure == "stopped"
    assert ended.log.count("wall time") == 3


@on_both_mpis
def test_an_order_to_end_reaches_every_rank_and_names_the_time_limit(tmp_path: Path, mpi: Mpi) -> None:
    program = write_program(tmp_path / "program.py", STOP.format(slow=False))
    run = make_run(tmp_path / "run", ["python", str(program)], python=mpi.python, relays_stop=mpi is MPICH)

    def end(pid: int, attempt: AttemptDir) -> None:
        await_files(attempt.path.parent / "up", 3)
        attempt.stop.write_text(json.dumps({"reason": "time limit"}))
        os.kill(pid, signal.SIGTERM)

    # The record makes the ranks stop too: whichever comes first, no rank may look like a dead node.
    ended = run_attempt(run, mpi=mpi, meanwhile=end)
    assert {mark.writer for mark in ended.marks} == {0, 1, 2}
    assert ended.decision.failure in ("timeout", "stopped")


@pytest.mark.parametrize("is_script", [False, True])
def test_an_unmodified_env_program_trains_together(tmp_path: Path, is_script: bool) -> None:
    text = """
    import torch, torch.distributed as dist
    dist.init_process_group("gloo")
    x = torch.ones(4) * (dist.get_rank() + 1)
    dist.all_reduce(x)
    print(f"{int(x.sum())}\\n", end="", flush=True)  # in one piece: ranks write side by side
    dist.destroy_process_group()
    """
    program = write_program(tmp_path / "train.py", text)
    command = ["bash", "-c", f"exec {PYTHON} {program}"] if is_script else ["python", str(program)]
    run = make_run(tmp_path / "run", command, num_ranks=2, ranks_per_node=2, mpi="none", rendezvous="torch")
    ended = run_attempt(run, launcher=mpirun_argv(2))
    assert (ended.word, ended.lines) == ("done", ["12", "12"]), ended.log


def test_a_rank_that_never_joins_the_torch_world_is_not_waited_for_without_end(tmp_path: Path) -> None:
    text = """
    import time, torch.distributed as dist
    import hpc_train
    dist.init_process_group("gloo")
    if dist.get_rank() == 1:
        time.sleep(1000)
    hpc_train.init(timeout_s=2)
    """
    program = write_program(tmp_path / "train.py", text)
    command = ["python", str(program)]
    run = make_run(tmp_path / "run", command, num_ranks=2, ranks_per_node=2, mpi="none", rendezvous="torch")
    ended = run_attempt(run, launcher=mpirun_argv(2))
    assert (ended.decision.failure, ended.decision.word) == ("hang", "again")
    assert "s in start of torch's group (limit 2 s); " in ended.decision.reason


def test_torchrun_inside_a_run_makes_the_ranks_and_the_run_keeps_its_journal(tmp_path: Path) -> None:
    text = """
    import hpc_train
    world = hpc_train.init()
    hpc_train.Progress(world).step(7)
    print(f"{type(world).__name__} {world.rank}/{world.size} {world.run_dir is not None}\\n", end="")
    """
    program = write_program(tmp_path / "train.py", text)
    torchrun = [PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(program)]
    ended = run_attempt(make_run(tmp_path / "run", torchrun, num_ranks=1, ranks_per_node=1), launcher=mpirun_argv(1))
    assert ended.word == "done", ended.log
    assert {"TorchWorld 0/2 True", "TorchWorld 1/2 True"} <= set(ended.log.splitlines())
    assert [event.fields["step"] for event in ended.events if event.event == "step"] == [7]


STOPS_WITHIN = """
import sys, time
import hpc_train
world = hpc_train.init()
stop = hpc_train.StopRequest(world)
began = time.time()
while not stop.agreed():
    assert time.time() < began + 50
    time.sleep(0.05)
if "fails" in sys.argv:
    raise ValueError("the last save failed")
raise hpc_train.Stopped(f"{stop.reason}, saved at step 3")
"""
INNER = {
    "torchrun": [str(Path(PYTHON).with_name("torchrun")), "--standalone", "--nproc-per-node=2"],
    "its module": [PYTHON, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"],
    "script": ["bash", "-c", f'{PYTHON} "$@"; exit 1', "bash"],
}


@pytest.mark.parametrize(
    ("launcher", "argument", "expected"),
    [
        ("torchrun", "", ("stopped", 75, "again", "Stopped: wall time, saved at step 3; ")),
        ("its module", "", ("stopped", 75, "again", "Stopped: wall time, saved at step 3; ")),
        ("script", "", ("stopped", 75, "again", "Stopped: wall time, saved at step 3; ")),
        ("script", "fails", ("program", 1, "stop", "the program left with code 1; ")),
    ],
)
def test_a_stop_on_request_is_one_under_a_launcher_of_the_programs_own_too(
    tmp_path: Path, launcher: str, argument: str, expected: tuple[str, int, str, str]
) -> None:
    program = write_program(tmp_path / "train.py", STOPS_WITHIN)
    command = [*INNER[launcher], str(program), argument]
    run = make_run(tmp_path / "run", command, launcher="none", mpi="none", num_ranks=1, ranks_per_node=1)

    def record(pid: int, attempt: AttemptDir) -> None:
        attempt.stop.write_text(json.dumps({"reason": "wall time", "deadline": time.time() + 60}))

    ended = run_attempt(run, launcher=[], meanwhile=record)
    decision = ended.decision
    assert (decision.failure, decision.code, ended.word) == expected[:3], ended.log
    assert decision.reason.startswith(expected[3])


def test_a_peer_lost_in_gloo_is_not_the_cause_when_another_rank_failed(tmp_path: Path) -> None:
    text = """
    import sys, time, torch, torch.distributed as dist
    dist.init_process_group("gloo")
    if dist.get_rank() == 1:
        raise ValueError("the first failure")
    dist.all_reduce(torch.ones(4))
    """
    program = write_program(tmp_path / "train.py", text)
    run = make_run(
        tmp_path / "run", ["python", str(program)], num_ranks=2, ranks_per_node=2, mpi="none", rendezvous="torch"
    )
    ended = run_attempt(run, launcher=mpirun_argv(2))
    assert (ended.decision.failure, ended.decision.rank) == ("program", 1)


def test_data_workers_run_under_the_shim_with_fork_and_spawn(tmp_path: Path) -> None:
    program = write_program(
        tmp_path / "train.py",
        """
        import sys
        import torch
        from torch.utils.data import DataLoader, Dataset
        class Squares(Dataset):
            def __len__(self): return 8
            def __getitem__(self, i): return i * i
        if __name__ == "__main__":
            for method in ("fork", "spawn"):
                loader = DataLoader(Squares(), batch_size=4, num_workers=2, multiprocessing_context=method)
                print([int(x) for batch in loader for x in batch])
        """,
    )
    run = make_run(tmp_path / "run", ["python", str(program)], launcher="none", mpi="none", num_ranks=1)
    ended = run_attempt(run, launcher=[])
    assert ended.lines == ["[0, 1, 4, 9, 16, 25, 36, 49]"] * 2, ended.log
    assert ended.word == "done"


def test_mpirun_in_a_slurm_job_does_not_take_the_batch_steps_rank(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run", ["python", "-c", CONTRACT])
    run.attempt(0).path.mkdir()
    slurm = {"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_STEP_NUM_TASKS": "1", "SLURM_LOCALID": "0"}
    argv = [*mpirun_argv(3), "-x", "SLURM_PROCID", *shim_argv(run, 0)]
    for directory in (run.attempt(0).ready, run.attempt(0).finished):
        directory.mkdir()
    done = subprocess.run(argv, env={**mpi_environment(), **slurm}, capture_output=True, text=True, timeout=60)
    assert set(environments(run.path / "work")) == {"0", "1", "2"}, done.stderr


def test_output_without_a_newline_is_in_the_log_while_the_program_runs(tmp_path: Path) -> None:
    text = """
    import os, sys, time
    sys.stderr.write("1%")
    while not os.path.exists("seen"):
        time.sleep(0.02)
    """
    program = write_program(tmp_path / "program.py", text)
    run = make_run(tmp_path / "run", ["python", str(program)], num_ranks=1, ranks_per_node=1)

    def look(_: int, attempt: AttemptDir) -> None:
        (log,) = attempt.logs.iterdir()
        deadline = time.monotonic() + 30
        while log.read_text() != "1%":
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.02)
        (run.path / "work" / "seen").touch()

    assert run_attempt(run, launcher=mpirun_argv(1), meanwhile=look).word == "done"
