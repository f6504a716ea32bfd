"""`checkpoint list` and `verify` take what the other commands take: a run by its directory, its name or its job id."""

from __future__ import annotations

import pytest

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


@pytest.mark.parametrize("verb", ["list", "verify"])
def test_what_is_neither_is_said(shell: Shell, verb: str) -> None:
    line = shell.fails(65, "checkpoint", verb, "nosuch")
    assert line.startswith("nosuch: no such directory, and as a run: no run 'nosuch'")
