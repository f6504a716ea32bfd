"""Logs are hostile: huge, binary, full of escapes, or no files at all; reading them takes bounded time and memory."""

from __future__ import annotations

import os
import random
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpc_train.diagnosis import logs
from hpc_train.diagnosis.engine import diagnose
from hpc_train.diagnosis.logs import HEAD_BYTES, TAIL_BYTES, make_log, read_log

FULL = "OSError: [Errno 28] No space left on device: '/scratch/x'\n"
MIB = 1 << 20


def write_long(path: Path, *, first: str = "", last: str = "", size: int = 50 * MIB) -> int:
    """A log of usual lines with a text at one of its ends; returns its number of lines."""
    line = b"step 1234 loss 2.345 tokens/s 41000 lr 3e-4\n"
    num_lines = size // len(line)
    path.write_bytes(first.encode() + line * num_lines + last.encode())
    return num_lines + first.count("\n") + last.count("\n")


def test_a_log_of_50_mb_is_read_from_both_ends_with_true_line_numbers(tmp_path: Path) -> None:
    path = tmp_path / "job.out"
    num_lines = write_long(path, last=FULL)
    began = time.process_time()
    (found,) = diagnose([read_log(path)])
    assert time.process_time() - began < 5
    assert (found.pattern.id, found.place) == ("disk-full", f"{path}:{num_lines}")
    write_long(path, first=FULL)
    (found,) = diagnose([read_log(path)])
    assert found.place == f"{path}:1"


def test_where_lines_are_not_counted_they_are_told_from_the_end(tmp_path: Path) -> None:
    path = tmp_path / "job.out"
    write_long(path, last=FULL + "bye\nbye\n", size=HEAD_BYTES + TAIL_BYTES + MIB)
    (found,) = diagnose([read_log(path, max_counted=0)])
    assert found.place == f"{path} (3 lines before its end)"


def test_memory_stays_bounded(tmp_path: Path) -> None:
    path = tmp_path / "job.out"
    with open(path, "wb") as file:
        file.truncate(1 << 40)  # a sparse file of one tebibyte: nobody reads it through
    code = (
        "import sys; from hpc_train.diagnosis.engine import diagnose; from hpc_train.diagnosis.logs import read_log\n"
        "assert diagnose([read_log(sys.argv[1])]) == []"
    )

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (400 * MIB, 400 * MIB))

    done = subprocess.run([sys.executable, "-c", code, path], timeout=60, preexec_fn=limit, check=False)
    assert done.returncode == 0


NASTY = {
    "needles": b"killed out of memory permission denied no such file traceback (most recent call last) " * 60_000,
    "needle lines": b"srun: error: xid (pci killed\n" * 200_000,
    "one line": b"A" * (6 * MIB),
    "tracebacks": b"Traceback (most recent call last):\n  x\n" * 150_000,
    "zeros": bytes(6 * MIB),
    "random": random.Random(7).randbytes(6 * MIB),
    "carriage returns": b"\r 10%|##   | Killed" * 300_000,
    "escapes": b"\x1b[31m\x1b]0;x" * 500_000,
    "open escape": b"Permission denied \x1b]" + b"x" * (5 * MIB),
    "commas": b"srun: error: n1: tasks " + b"1," * (2 * MIB) + b": Killed\n",
}


@pytest.mark.parametrize("name", NASTY)
def test_hostile_text_takes_bounded_time(tmp_path: Path, name: str) -> None:
    path = tmp_path / "job.out"
    path.write_bytes(NASTY[name])
    began = time.process_time()
    for found in diagnose([read_log(path)]):
        assert len(found.text) <= logs.MAX_SHOWN and found.text.isprintable()
    assert time.process_time() - began < 15


def test_what_is_shown_cannot_act_on_a_terminal() -> None:
    text = "\x1b[31mOSError\x1b[0m: [Errno 28] No space left on device: '\x1b]0;title\x07\x9b2J\u202e/x'\x1b[2K\n"
    (found,) = diagnose([make_log(text.encode(), name="x")])
    assert found.text.isprintable()
    assert found.text.startswith("OSError: [Errno 28] No space left on device: '")


def test_a_progress_bar_before_the_line_does_not_hide_it() -> None:
    text = "epoch 1:  41%|####      | 1/9\r" * 5000 + "RuntimeError: can't start new thread\r\n"
    (found,) = diagnose([make_log(text.encode(), name="x")])
    assert (found.text, found.place) == ("RuntimeError: can't start new thread", "x:1")


def test_what_is_no_file_is_refused_and_never_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("pipe", "."):
        with pytest.raises((ValueError, IsADirectoryError)):
            read_log(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        read_log(tmp_path / "missing")
