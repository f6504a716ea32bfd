"""A program that saves while the shim (faults.c) kills it, or makes a call fail, at the N-th call; for every N.

It forks for each N, so that Python and numpy start once for the whole sweep. It prints one JSON line with what it
found; the tests read that.

    python crash_program.py ROOT {kill,torn,fail,lie} {new,replace,replace-by-two-renames} [ERRNO]
"""

from __future__ import annotations

import ctypes
import json
import logging
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np

from hpc_train.checkpoint import Checkpointer, verify_checkpoint
from hpc_train.checkpoint.catalogue import list_checkpoints
from hpc_train.errors import HpcTrainError

MODES = {"kill": 0, "torn": 1, "fail": 2, "lie": 3}
MAX_CALLS = 400


def state(value: int) -> dict[str, Any]:
    return {
        "model": {"w": np.full((300, 1000), value, np.float32), "b": np.full(7, value, np.int64)},
        "n": {"v": value},
    }


def saved_value(root: Path) -> tuple[int | None, int]:
    """(step, value) of what loads; everything in it must be the one value."""
    live = state(-1)
    step = Checkpointer(root).load(live)
    values = {int(v) for v in (*live["model"]["w"].flat, *live["model"]["b"].flat, live["n"]["v"])}
    assert len(values) == 1, f"a mixture: {values}"
    return step, values.pop()


def attempt(root: Path, step: int, value: int, *, call: int, mode: int, error: int) -> str:
    """Save in a child with the fault at its N-th call: "killed", "saved", or the class of the error."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        shim = ctypes.CDLL(None)
        shim.fault_arm(call, mode, error)
        try:
            Checkpointer(root, keep=2).save(step, state(value))
            word = "saved"
        except HpcTrainError as failure:
            word = type(failure).__name__
        is_reached = shim.fault_count() >= call
        shim.fault_arm(0, 0, 0)
        os.write(writing, f"{word}{'' if is_reached else ' untouched'}".encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answers:
        word = answers.read()
    _, status = os.waitpid(pid, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return "killed"
    assert os.WEXITSTATUS(status) == 0 and word
    return word


def one_fault(folder: Path, call: int, mode: int, what: str, error: int) -> str:
    """Three old checkpoints, a faulty save, then the promises."""
    root = folder / f"call-{call}"
    old, new = (2, 3) if what == "new" else (2, 2)
    for step in (0, 1, old):
        Checkpointer(root, keep=3).save(step, state(step))
    word = attempt(root, new, 100, call=call, mode=mode, error=error)
    found = saved_value(root)
    before, after = (old, old), (new, 100)
    assert found in (before, after), f"call {call} ({word}): found (step, value) {found}"
    if word.startswith("saved"):
        assert found == after, f"call {call}: reported as saved, found (step, value) {found}"
    elif word != "killed":
        assert not [e for e in list_checkpoints(root) if e.status == "uncommitted"], f"call {call}: left behind"
    for entry in list_checkpoints(root):
        if entry.status in ("committed", "damaged"):
            assert verify_checkpoint(entry.path).is_good, f"call {call} ({word}): {entry}"
    live = state(-1)
    checkpoint = Checkpointer(root, keep=3)
    checkpoint.load(live)
    checkpoint.save(50, state(50))
    assert saved_value(root) == (50, 50)
    odd = [entry for entry in list_checkpoints(root) if entry.status != "committed"]
    assert not odd, f"call {call} ({word}): the next save left {odd}"
    shutil.rmtree(root)
    return word


def main(folder: Path, mode: str, what: str, error: int) -> None:
    logging.disable(logging.WARNING)
    ctypes.CDLL(None).fault_no_exchange(int(what == "replace-by-two-renames"))
    words = []
    for call in range(1, MAX_CALLS):
        word = one_fault(folder, call, MODES[mode], what, error)
        if word.endswith("untouched"):
            break
        words.append(word)
    print(json.dumps(words))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3], int(sys.argv[4]) if len(sys.argv) > 4 else 0)
