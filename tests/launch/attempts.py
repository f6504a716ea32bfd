"""Real attempts by the real shim: a run directory as `submit` writes it, begin, the launcher, decide.

Apart from the tests because several files start attempts. Nothing of ours is replaced: mpirun, ranks, files and the
decision are those of a user's run; only the batch shell is this module.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpc_train.files import write_json
from hpc_train.recovery.evidence import read_decision
from hpc_train.recovery.policy import Decision
from hpc_train.run.journal import Event, read_journal
from hpc_train.run.layout import FORMAT, LAUNCH_FORMAT, LAUNCH_VERSION, VERSION, AttemptDir, RunDir
from hpc_train.run.marks import ExitMark, read_marks
from tests.support.ranks import OPENMPI, Mpi, mpi_environment

PYTHON = sys.executable
DEADLINE_S = 120.0

# Said while an interpreter ends beside threads that still run: torch's of a group that nobody destroyed make C++ abort
# it, and Python's tracker warns of semaphores that a queue's own thread was giving back. Not the program's words, and
# no loss: it had finished.
_SAID_AT_EXIT = ("terminate called without an active exception", "resource_tracker", "warnings.warn")

# How a submission of one process differs from the default of `make_run`.
ALONE: dict[str, Any] = {"launcher": "none", "mpi": "none", "num_ranks": 1, "ranks_per_node": 1}


@dataclass(frozen=True)
class Ended:
    """An ended attempt: the launcher's exit code and how long it ran [s], and what the run directory holds."""

    run: RunDir
    attempt: AttemptDir
    code: int
    seconds: float
    log: str
    batch_log: str
    word: str

    @property
    def lines(self) -> list[str]:
        """The log's, but for what libraries may add on a busy machine after the program's own end."""
        return [line for line in self.log.splitlines() if not any(words in line for words in _SAID_AT_EXIT)]

    @property
    def decision(self) -> Decision:
        found = read_decision(self.attempt)
        assert found is not None, self.batch_log + self.log
        return found

    @property
    def marks(self) -> list[ExitMark]:
        return read_marks(self.attempt)

    @property
    def events(self) -> list[Event]:
        return read_journal(self.run)


def make_run(path: Path, command: list[str], **changes: Any) -> RunDir:
    """A run with one submission that starts `command` with 3 ranks by mpirun, unless `changes` say otherwise."""
    run = RunDir(path)
    path.mkdir(parents=True)
    run.journal.mkdir()
    write_json(run.record, {"format": FORMAT, "version": VERSION, "name": path.name})
    submission = run.submission(0)
    submission.path.mkdir()
    workdir = path / "work"
    workdir.mkdir()
    record = {
        "format": LAUNCH_FORMAT,
        "version": LAUNCH_VERSION,
        "command": command,
        "python": PYTHON,
        "workdir": str(workdir),
        "rendezvous": "none",
        "interfaces": [],
        "launcher": "mpirun",
        "mpi": "mpirun",
        "num_ranks": 3,
        "ranks_per_node": 3,
        "cpus_per_rank": 1,
        "environment": {},
        "hang_timeout_s": 600,
        "max_failures": 3,
        "max_attempts": 50,
        "can_continue": True,
    }
    write_json(submission.launch, {**record, **changes})
    return run


def write_program(path: Path, text: str) -> Path:
    """A program file; its common indentation is taken off."""
    path.write_text(textwrap.dedent(text))
    return path


def batch(command: str, run: RunDir, *arguments: str) -> subprocess.CompletedProcess[str]:
    """`hpc-train begin` or `hpc-train decide`, as the batch script calls them."""
    argv = [PYTHON, "-m", "hpc_train", command, str(run.path), "--submission", "0", *arguments]
    return subprocess.run(argv, env=mpi_environment(), capture_output=True, text=True, timeout=60)


def shim_argv(run: RunDir, number: int, *, python: str = PYTHON) -> list[str]:
    """What a launcher starts, once a rank."""
    return [python, "-u", "-m", "hpc_train", "run", str(run.path), "--submission", "0", "--attempt", str(number)]


def run_attempt(
    run: RunDir,
    *,
    launcher: list[str] | None = None,
    mpi: Mpi = OPENMPI,
    meanwhile: Callable[[int, AttemptDir], None] | None = None,
    deadline_s: float = DEADLINE_S,
) -> Ended:
    """Begin, launch and decide one attempt.

    Args:  launcher: the start of the launcher's command; None: mpirun with the declared ranks, 3.   mpi: whose mpirun
    and interpreter; the run must name the same.   meanwhile: called with the launcher's PID and the attempt while it
    runs.   deadline_s: how long it may go on after that.
    """
    word, number, token = batch("begin", run).stdout.split()
    assert word == "go"
    attempt = run.attempt(int(number))
    log = attempt.logs / f"{socket.gethostname().partition('.')[0]}.log"
    start = mpi.mpirun_argv(3) if launcher is None else launcher
    argv = [*start, *shim_argv(run, int(number), python=mpi.python)]
    began = time.monotonic()
    with open(log, "ab") as out:
        environment = {**mpi_environment(), "HPC_TRAIN_TOKEN": token}
        process = subprocess.Popen(argv, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd="/")
    try:
        if meanwhile is not None:
            meanwhile(process.pid, attempt)
        code = process.wait(deadline_s)
    finally:
        if process.poll() is None:  # a test failed; with a time of grace one SIGTERM is but a notice
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(20)
                raise
    seconds = time.monotonic() - began
    decided = batch("decide", run, "--attempt", number, "--code", str(code % 256))
    text = log.read_text(errors="replace")
    return Ended(run, attempt, code, seconds, text, decided.stderr, decided.stdout.split()[0] if decided.stdout else "")


def run_one(tmp_path: Path, text: str, *arguments: str, name: str = "run", **changes: Any) -> Ended:
    """Run a Python program as a run of one rank."""
    program = write_program(tmp_path / f"{name}.py", text)
    command = ["python", str(program), *arguments]
    return run_command(tmp_path, command, name=name, **changes)


def run_command(tmp_path: Path, command: list[str], *, name: str = "run", **changes: Any) -> Ended:
    """Run any command as a run of one rank."""
    return run_attempt(make_run(tmp_path / name, command, **{**ALONE, **changes}), launcher=[])


def send(number: int, *, after: str) -> Callable[[int, AttemptDir], None]:
    """A `meanwhile` that signals the shim once the program has written a file."""

    def act(pid: int, attempt: AttemptDir) -> None:
        path = attempt.path.parent / "work" / after
        deadline = time.monotonic() + 60
        while not path.exists():
            assert time.monotonic() < deadline, f"{path} does not come"
            time.sleep(0.02)
        os.kill(pid, number)

    return act


def await_files(directory: Path, count: int, *, timeout_s: float = 60) -> None:
    """Wait until a directory holds so many files whose names are numbers."""
    deadline = time.monotonic() + timeout_s
    while not directory.is_dir() or sum(name.isdecimal() for name in os.listdir(directory)) < count:
        assert time.monotonic() < deadline, f"{directory} does not fill"
        time.sleep(0.02)


def await_notice(attempt: AttemptDir, *, timeout_s: float = 60) -> None:
    """Wait until a SIGTERM has been taken for a notice: a second one that comes before would be one with it."""
    deadline = time.monotonic() + timeout_s
    while not attempt.stop.exists():
        assert time.monotonic() < deadline, "the notice was not heard"
        time.sleep(0.02)


def is_alive(pid: int) -> bool:
    """Whether a process exists and is no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def await_death(pid: int, *, timeout_s: float = 10) -> None:
    """Wait until a process is gone; it is killed, and the test fails, if it stays."""
    deadline = time.monotonic() + timeout_s
    while is_alive(pid):
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            raise AssertionError(f"process {pid} lives on")
        time.sleep(0.05)
