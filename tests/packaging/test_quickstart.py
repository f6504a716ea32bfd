"""tools/quickstart tells what goes on without it when it is interrupted, and refuses only what cannot work."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.scheduler.making import wait_for

ROOT = Path(__file__).parents[2]
PROGRAM = [sys.executable, str(ROOT / "tools" / "quickstart_run.py")]


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """A home of its own for the index of runs."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "HPC_TRAIN_"))}
    return {**kept, "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}


def hpc_train(environ: dict[str, str], *words: str | Path) -> str:
    """The output of a command that must succeed."""
    argv = [sys.executable, "-m", "hpc_train", *map(str, words)]
    return subprocess.run(argv, env=environ, capture_output=True, text=True, timeout=120, check=True).stdout


@pytest.mark.mpi
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_quickstart_says_that_the_run_goes_on(
    tmp_path: Path, environ: dict[str, str], number: signal.Signals
) -> None:
    where = tmp_path / "quickstart"
    texts = tmp_path / "texts"
    texts.mkdir()
    (texts / "a.py").write_text("print('some text to be packed')\n" * 2000)
    hpc_train(environ, "data", "pack", where / "data", texts, "--sequence", "128", "--glob", "*.py")
    argv = [*PROGRAM, "--dir", str(where), "--no-fault", "--steps", "5000"]
    with subprocess.Popen(argv, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        lines = iter(program.stdout.readline, "")
        name = next(line.split()[1] for line in lines if line.split()[:1] == ["run"])
        assert any(line.startswith("[3/4]") for line in lines)
        try:
            program.send_signal(number)
            err = program.communicate(timeout=60)[1]
            assert program.returncode == 128 + number
            assert err.count("\n") == 1 and f"status {name}; end it with: " in err and f"cancel {name}" in err
        finally:
            hpc_train(environ, "cancel", name)
    wait_for(lambda: "cancelled" in hpc_train(environ, "status", name), "the run has ended", timeout_s=60)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--steps", "59"], "give 60 or more, so that there is something to resume after the kill, or add --no-fault"),
        (["--steps", "0", "--no-fault"], "--steps = 0: give 1 or more"),
    ],
)
def test_too_few_steps_are_refused_with_the_reason(environ: dict[str, str], words: list[str], said: str) -> None:
    done = subprocess.run([*PROGRAM, *words], env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr


def test_each_option_is_explained(environ: dict[str, str]) -> None:
    done = subprocess.run([*PROGRAM, "--help"], env=environ, capture_output=True, text=True, timeout=60, check=True)
    assert "steps to train (default: 120); 60 or more, unless with" in done.stdout
