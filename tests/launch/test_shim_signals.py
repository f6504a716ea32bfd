"""Signals to one rank under the real shim: the warning, the order to end, and what programs make of them."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.launch.attempts import ALONE, PYTHON, Ended, make_run, run_attempt, send, write_program

pytestmark = pytest.mark.mpi


def run_signalled(tmp_path: Path, command: list[str], number: int) -> Ended:
    run = make_run(tmp_path / "run", command, **ALONE)
    return run_attempt(run, launcher=[], meanwhile=send(number, after="up"))


def test_a_stop_signal_does_not_kill_a_program_that_knows_nothing_of_it(tmp_path: Path) -> None:
    ended = run_signalled(tmp_path, ["python", "-c", "open('up', 'w'); import time; time.sleep(1)"], signal.SIGUSR2)
    assert ended.word == "done"


def test_a_programs_own_handler_gets_the_stop_signal(tmp_path: Path) -> None:
    text = """
    import signal, sys, time
    signal.signal(signal.SIGUSR2, lambda *_: sys.exit(75))
    open("up", "w")
    time.sleep(20)
    """
    program = write_program(tmp_path / "own.py", text)
    ended = run_signalled(tmp_path, ["python", str(program)], signal.SIGUSR2)
    assert (ended.code, ended.decision.failure, ended.word) == (75, "stopped", "again")


def test_a_script_and_its_children_get_the_signals(tmp_path: Path) -> None:
    inner = "import signal, sys, time; signal.signal(12, lambda *_: sys.exit(75)); open('up', 'w'); time.sleep(20)"
    ended = run_signalled(tmp_path, ["bash", "-c", f'{PYTHON} -c "{inner}"; exit $?'], signal.SIGUSR2)
    assert (ended.code, ended.decision.failure) == (75, "stopped")


def test_code_0_after_an_order_to_end_is_no_proof_of_being_done(tmp_path: Path) -> None:
    text = """
    import signal, sys, time
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    open("up", "w")
    time.sleep(20)
    """
    program = write_program(tmp_path / "own.py", text)
    ended = run_signalled(tmp_path, ["python", str(program)], signal.SIGTERM)
    assert (ended.decision.failure, ended.attempt.done.exists()) == ("terminated", False)


def test_a_program_that_saves_on_sigterm_is_stopped_not_terminated(tmp_path: Path) -> None:
    text = """
    import signal, time, hpc_train
    def save(*_):
        raise hpc_train.Stopped("saved on SIGTERM")
    signal.signal(signal.SIGTERM, save)
    open("up", "w")
    time.sleep(20)
    """
    program = write_program(tmp_path / "own.py", text)
    ended = run_signalled(tmp_path, ["python", str(program)], signal.SIGTERM)
    assert (ended.code, ended.decision.failure) == (75, "stopped")


def test_a_program_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    text = "import signal, time; signal.signal(15, signal.SIG_IGN); open('up', 'w'); time.sleep(60)"
    ended = run_signalled(tmp_path, ["python", "-c", text], signal.SIGTERM)
    assert (ended.decision.failure, ended.seconds < 40) == ("terminated", True)  # it would sleep for 60 s
