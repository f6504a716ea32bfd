"""`checkpoint list` and `verify` take what the other commands take: a run by its directory, its name or its job id."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_train.run.journal import Journal
from tests.cli.conftest import Shell


@pytest.mark.parametrize("reference", ["train-2026-a", "train-", "4711", "runs/train-2026-a"])
def test_a_run_is_found_by_name_beginning_job_id_and_path(shell: Shell, reference: str) -> None:
    root = shell.make_run("train-2026-a", "4711").path / "checkpoints"
    root.mkdir()
    listed = shell.json("checkpoint", "list", reference)
    assert (shell.directory / listed["root"]).resolve() == root.resolve()
    assert "holds no checkpoint" in shell.fails(65, "checkpoint", "verify", reference)


def test_a_directory_wins_over_a_run_of_that_name(shell: Shell) -> None:
    (shell.make_run("r", "4711").path / "checkpoints").mkdir()
    (shell.directory / "r").mkdir()
    assert shell.json("checkpoint", "list", "r")["root"] == "r"


@pytest.mark.parametrize("verb", ["list", "inspect", "verify"])
@pytest.mark.parametrize(
    ("path", "said"),
    [
        (None, "run r has committed no checkpoint so far; see: hpc-train status r"),
        ("{run}/huggingface/checkpoint-90", "is {run}/huggingface/checkpoint-90, saved by the program's own means; "),
        ("lightning/a.ckpt", "is {run}/lightning/a.ckpt, saved by the program's own means; "),
        ("lightning/a.ckpt", "listing, inspecting and verifying is for our own checkpoints (hpc_train.Checkpointer)"),
        ("{run}/mine/step-000000090", "run r saves elsewhere: its newest commit, step 90, is {run}/mine/step-"),
        ("{run}/mine/step-000000090", "; give its directory: {run}/mine"),
    ],
)
def test_of_a_run_without_a_root_it_is_said_what_its_journal_knows(
    shell: Shell, verb: str, path: str | None, said: str
) -> None:
    run = shell.make_run("r", "4711")
    if path is not None:
        for step, place in ((80, "older"), (90, path.format(run=run.path))):
            Path(run.path, place).mkdir(parents=True, exist_ok=True)
            Journal(run, "rank0", 0).append("commit", step=step, path=place)
    for reference in ("r", run.path):
        assert said.format(run=run.path) in shell.fails(65, "checkpoint", verb, reference)


@pytest.mark.parametrize("verb", ["list", "inspect", "verify"])
def test_of_a_run_whose_checkpoints_are_gone_that_is_said(shell: Shell, verb: str) -> None:
    run = shell.make_run("r", "4711")
    place = run.checkpoints / "step-000000090"
    Journal(run, "rank0", 0).append("commit", step=90, path=str(place))
    told = f"the checkpoints of this run are gone: of step 90 there is no {place} on "
    assert shell.fails(65, "checkpoint", verb, "r").startswith(told)


@pytest.mark.parametrize("verb", ["list", "verify"])
def test_what_is_neither_is_said(shell: Shell, verb: str) -> None:
    line = shell.fails(65, "checkpoint", verb, "nosuch")
    assert line.startswith("nosuch: no such directory, and as a run: no run 'nosuch'")
