"""Damaged records of an earlier submission: one error that names the file, for every way to let a run go on."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from hpc_train.errors import HpcTrainError
from hpc_train.run.layout import RunDir
from hpc_train.scheduler.continuation import preview, requeue
from hpc_train.scheduler.submission import submit
from tests.scheduler.making import bare_environment, load, write_program


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """An environment with a Slurm that takes every job, and has forgotten all of them at once."""
    for name, text in (("sbatch", "echo $$"), ("squeue", ""), ("sacct", ""), ("scontrol", "exit 1")):
        write_program(tmp_path / "bin", name, text)
    environment = bare_environment(tmp_path / "bin", HOME=str(tmp_path))
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return environment


@pytest.fixture
def run(tmp_path: Path, shell: dict[str, str]) -> RunDir:
    """A run whose first job has ended."""
    text = '[program]\ncommand = ["python", "-c", "pass"]\n'
    return submit(load(tmp_path / "work", text, flags={"job.site": "slurm"}), shell).run


def files(run: RunDir) -> dict[str, bytes]:
    """All that a refusal must leave as it was; the journal may tell that it was asked."""
    kept = (path for path in run.path.rglob("*") if path.is_file() and path.name not in (run.claim.name, "login.jsonl"))
    return {str(path): path.read_bytes() for path in kept}


def make_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


RECORDS = (
    "run.json",
    *(f"submission-00/{name}" for name in ("job.json", "site.json", "placement.json", "launch.json")),
)


@pytest.mark.parametrize("name", RECORDS)
@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_text(""),
        lambda path: path.write_text("null"),
        lambda path: path.write_text('{"origins": 1, "num_ranks": "x"}'),
        lambda path: path.write_bytes(path.read_bytes()[:-9]),
        lambda path: path.write_bytes(b"\xff\xfe{}"),
        lambda path: (path.unlink(), path.mkdir()),
        lambda path: (path.unlink(), path.symlink_to(path.name)),
        make_fifo,
    ],
    ids=["empty", "null", "other", "half", "not UTF-8", "directory", "loop", "fifo"],
)
def test_a_damaged_record_is_an_error_that_names_it_and_changes_nothing(
    run: RunDir, shell: dict[str, str], name: str, damage: Callable[[Path], object]
) -> None:
    damage(run.path / name)
    before = files(run)
    for go_on in (lambda: preview(run, {}, shell), lambda: requeue(run, shell)):
        with pytest.raises(HpcTrainError) as caught:
            go_on()
        # a launch record that is no file was never written: the submission is not whole
        assert name.rpartition("/")[0] in str(caught.value) or "was never submitted as a whole" in str(caught.value)
        assert "\n" not in str(caught.value)
    assert files(run) == before
