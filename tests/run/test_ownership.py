"""Which attempt owns a run, and what a superseded one may still do: nothing."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hpc_train.errors import StorageError, Superseded
from hpc_train.run.layout import RunDir
from hpc_train.run.ownership import Ownership, check_ownership, read_ownership, take_ownership


def test_attempts_are_numbered_from_0_and_have_their_directories(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    assert [take_ownership(run).attempt for _ in range(3)] == [0, 1, 2]
    attempt = run.attempt(2)
    assert all(
        path.is_dir() for path in (attempt.exits, attempt.ready, attempt.finished, attempt.waiting, attempt.logs)
    )


def test_the_newest_attempt_owns_the_run(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    first, second = take_ownership(run), take_ownership(run)
    check_ownership(run, second.token)
    assert read_ownership(run) == second
    with pytest.raises(Superseded, match="attempt 1 owns this run now"):
        check_ownership(run, first.token)


def test_before_the_first_attempt_nobody_owns_it(tmp_path: Path) -> None:
    assert read_ownership(RunDir(tmp_path)) is None
    with pytest.raises(Superseded, match="nobody owns this run now"):
        check_ownership(RunDir(tmp_path), "x")


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"attempt": "x", "token": "y"}', "x" * 10_000])
def test_an_owner_record_that_cannot_be_read_lets_nobody_commit(tmp_path: Path, text: str) -> None:
    run = RunDir(tmp_path)
    owner = take_ownership(run)
    run.owner.write_text(text)
    with pytest.raises(StorageError, match="no attempt may commit"):
        check_ownership(run, owner.token)


def _take(path: Path, at: float, results: multiprocessing.SimpleQueue[Ownership]) -> None:
    time.sleep(max(0.0, at - time.time()))
    for _ in range(5):
        results.put(take_ownership(RunDir(path)))


def test_racing_attempts_get_distinct_numbers_and_the_highest_owns_the_run(tmp_path: Path) -> None:
    results: multiprocessing.SimpleQueue[Ownership] = multiprocessing.SimpleQueue()
    arguments = (tmp_path, time.time() + 0.3, results)
    processes = [multiprocessing.Process(target=_take, args=arguments) for _ in range(8)]
    for process in processes:
        process.start()
    taken = [results.get() for _ in range(40)]
    for process in processes:
        process.join(30)
    assert sorted(owner.attempt for owner in taken) == list(range(40))
    assert read_ownership(RunDir(tmp_path)) == max(taken, key=lambda owner: owner.attempt)


HOLDER = """
import fcntl, sys
with open(sys.argv[1], "w") as file:
    fcntl.lockf(file, fcntl.LOCK_EX)
    print("held", flush=True)
    sys.stdin.readline()
    print(len([name for name in __import__("os").listdir(sys.argv[2]) if name.startswith("attempt")]), flush=True)
"""


def test_attempts_start_one_after_the_other(tmp_path: Path) -> None:
    argv = [sys.executable, "-c", HOLDER, str(tmp_path / ".owner.lock"), str(tmp_path)]
    holder = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdin is not None
    assert holder.stdout.readline() == "held\n"
    with ThreadPoolExecutor(1) as pool:
        taken = pool.submit(take_ownership, RunDir(tmp_path))
        time.sleep(0.2)
        holder.stdin.write("go\n")
        holder.stdin.flush()
        assert holder.stdout.readline() == "0\n"  # while the lock was held, nobody took a number
        assert taken.result(10).attempt == 0
    holder.communicate(timeout=10)


def test_a_directory_of_that_number_that_somebody_left_is_not_taken_over(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    os.mkdir(run.attempt(7).path)
    assert take_ownership(run).attempt == 8
