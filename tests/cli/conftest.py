"""The command line as a person has it: a home of their own, a shell, and the program."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from hpc_train.run.index import add_to_index
from hpc_train.run.layout import RunDir
from tests.scheduler.making import bare_environment, make_run, note_submitted, write_program

ROOT = Path(__file__).parents[2]
# A cancelled job stays listed for a while.
ENDS = {"scancel": 'sed -i "s/^$1|[^|]*|/$1|CANCELLED by 0|/" "${0%/*}/queue"'}
Completed = subprocess.CompletedProcess[str]


@dataclass
class Shell:
    """A login shell: where it is, what it may run, and what it has set."""

    directory: Path
    bin: Path
    environ: dict[str, str] = field(default_factory=dict)

    def argv(self, *words: str | Path) -> list[str]:
        """A command line of hpc-train."""
        return [sys.executable, "-m", "hpc_train", *map(str, words)]

    def run(self, *words: str | Path, environ: Mapping[str, str] | None = None) -> Completed:
        """Run a command of hpc-train to its end."""
        environment = {**self.environ, **(environ or {})}
        return subprocess.run(
            self.argv(*words),
            cwd=self.directory,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def ok(self, *words: str | Path) -> str:
        """The output of a command that must succeed and say nothing on standard error."""
        done = self.run(*words)
        assert (done.returncode, done.stderr) == (0, ""), done.stderr
        return done.stdout

    def json(self, *words: str | Path) -> Any:
        """The JSON that a command prints."""
        return json.loads(self.ok(*words, "--json"))

    def fails(self, code: int, *words: str | Path, environ: Mapping[str, str] | None = None) -> str:
        """The one line of a command that must fail with this code, without its prefix."""
        done = self.run(*words, environ=environ)
        assert (done.returncode, done.stdout) == (code, ""), done.stderr
        assert done.stderr.startswith("hpc-train: error: ") and done.stderr.count("\n") == 1, done.stderr
        return done.stderr.removeprefix("hpc-train: error: ").rstrip("\n")

    def make_run(self, name: str, job_id: str = "", *, job_name: str = "train", scheduler: str = "slurm") -> RunDir:
        """A run of this user; with a job id, one that a scheduler took."""
        run = make_run(self.directory / "runs" / name, job_name=job_name)
        if job_id:
            note_submitted(run.submission(0), job_id, scheduler=scheduler, site=scheduler)
        add_to_index(self.environ, run, job_id, site=scheduler)
        return run

    def queue(self, *lines: str) -> None:
        """What squeue lists from now on: "ID|STATE|NODES|REASON" a line."""
        (self.bin / "queue.new").write_text("".join(f"{line}\n" for line in lines))
        os.replace(self.bin / "queue.new", self.bin / "queue")  # somebody may watch: none may find half of it

    def contents(self) -> list[Path]:
        """Everything that lies in the working directory and below."""
        return sorted(self.directory.rglob("*"))


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    """A shell in an empty directory with a train.py, on a machine whose Slurm takes every job."""
    bin_dir, home, work = tmp_path / "bin", tmp_path / "home", tmp_path / "work"
    for directory in (home, work):
        directory.mkdir()
    (work / "train.py").write_text("print('training')\n")
    write_program(bin_dir, "sbatch", 'printf "%s\\n" "$*" >>"${0%/*}/submitted"; echo 4711')
    write_program(bin_dir, "squeue", 'cat "${0%/*}/queue"')
    for name in ("sacct", "scancel", "scontrol"):
        write_program(bin_dir, name, f'printf "%s\\n" "{name} $*" >>"${{0%/*}}/calls"; {ENDS.get(name, "")}')
    made = Shell(work, bin_dir, bare_environment(bin_dir, HOME=str(home), PYTHONPATH=str(ROOT)))
    made.queue()
    return made
