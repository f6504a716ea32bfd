"""The SIGTERM of a preemption with a time of grace: Slurm sends it to every process of the step, none to the shell."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from hpc_train.files import read_json, write_json
from hpc_train.run.layout import AttemptDir
from hpc_train.run.marks import write_mark
from tests.launch.attempts import ALONE, Ended, await_notice, make_run, run_attempt, send, write_program
from tests.run.records import mark

pytestmark = pytest.mark.mpi

LISTENS = """
import time, hpc_train
world = hpc_train.init(process_group=False)
stop = hpc_train.StopRequest(world)
open("up", "w")
began = time.time()
while not stop.agreed():
    assert time.time() < began + 60
    time.sleep(0.05)
raise hpc_train.Stopped(f"{stop.reason}, {stop.seconds_left:.0f} s left")
"""
DEAF = 'import time; open("up", "w"); time.sleep(60)'


def run_noticed(tmp_path: Path, program: str, *, times: int = 1, grace_s: float = 30, before: str = "") -> Ended:
    """One rank whose processes get SIGTERM so many times, after another "failed" or the run was "taken" by another."""
    path = write_program(tmp_path / "program.py", program)
    run = make_run(tmp_path / "run", ["python", str(path)], preempt_grace_s=grace_s, **ALONE)
    wait_up = send(signal.SIGCONT, after="up")

    def act(pid: int, attempt: AttemptDir) -> None:
        wait_up(pid, attempt)
        if before == "failed":
            write_mark(attempt, mark("killed", 7))
        if before == "taken":
            write_json(run.owner, {"attempt": 5, "token": "another's"})
        for number in range(times):
            if number:
                await_notice(attempt)
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            for process in (*map(int, children), pid):
                with contextlib.suppress(ProcessLookupError):  # the program's end is not the only one's
                    os.kill(process, signal.SIGTERM)

    return run_attempt(run, launcher=[], meanwhile=act)


def test_the_first_sigterm_asks_the_program_to_stop(tmp_path: Path) -> None:
    ended = run_noticed(tmp_path, LISTENS)
    assert (ended.code, ended.decision.failure) == (75, "stopped")
    left = re.search(r"preemption, (\d+) s left", ended.decision.reason)
    assert left is not None and 15 < int(left[1]) <= 30, ended.decision.reason
    assert read_json(ended.attempt.stop)["reason"] == "preemption"


@pytest.mark.parametrize("program", [DEAF, f"import signal; signal.signal(15, signal.SIG_IGN); {DEAF}"])
def test_the_second_one_ends_it(tmp_path: Path, program: str) -> None:
    ended = run_noticed(tmp_path, program, times=2)
    assert ended.decision.failure in ("terminated", "timeout")
    assert ended.seconds < 40  # it would sleep for 60 s


@pytest.mark.parametrize(
    ("grace_s", "before", "failure"), [(0, "", "terminated"), (30, "failed", "killed"), (30, "taken", "superseded")]
)
def test_without_grace_or_after_a_failure_it_is_the_end(
    tmp_path: Path, grace_s: float, before: str, failure: str
) -> None:
    ended = run_noticed(tmp_path, LISTENS, grace_s=grace_s, before=before)
    assert not ended.attempt.stop.exists()
    assert ended.decision.failure == failure


def test_the_programs_own_processes_die_of_sigterm_as_ever(tmp_path: Path) -> None:
    text = """
    import os, signal, time
    from hpc_train.launch.grace import outlive_first_sigterm
    outlive_first_sigterm()
    up, tell = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(tell, b"x")
        time.sleep(60)
        os._exit(0)
    os.read(up, 1)
    os.kill(child, signal.SIGTERM)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
    os.kill(os.getpid(), signal.SIGTERM)
    print("outlived", flush=True)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(text)], capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stdout) == (-signal.SIGTERM, "outlived\n"), done.stderr
