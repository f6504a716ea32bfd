"""Commands of a login node import what they need and no more; tests/packaging holds the heavy packages off too."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from hpc_train.cli.main import cli
from tests.cli.conftest import Shell
from tests.scheduler.making import make_attempt

HEAVY = ["torch", "numpy", "h5py", "mpi4py", "rich"]
PROBE = f"""
import json, sys
from hpc_train.cli.main import main
try:
    code = main()
except SystemExit as leaving:
    code = leaving.code or 0
print(json.dumps([code, [name for name in {[*HEAVY, "jinja2"]} if name in sys.modules]]), file=sys.stderr)
"""


@pytest.mark.parametrize(
    ("words", "imported"),
    [
        (["--help"], []),
        (["--version"], []),
        (["submit", "--help"], []),
        (["submit", "--site", "slurm", "--dry-run", "--", "python", "train.py"], ["jinja2"]),
        (["submit", "--site", "slurm-cluster", "--", "python", "train.py"], ["jinja2"]),
        (["resume", "--help"], []),
        (["status"], []),
        (["status", "--json"], []),
        (["why", "r"], []),
        (["why", "--log", "train.py"], []),
        (["logs", "r"], []),
        (["logs", "r", "--tail", "1"], []),
        (["cancel", "r"], []),
        (["clean", "r", "--dry-run"], []),
    ],
    ids=" ".join,
)
def test_a_command_imports_no_more_than_it_needs(shell: Shell, words: list[str], imported: list[str]) -> None:
    make_attempt(shell.make_run("r", "7"), word="stop")
    assert imports(shell, *words) == imported


def test_a_resume_imports_no_more_than_a_submit(shell: Shell) -> None:
    name = shell.ok("submit", "--site", "slurm-cluster", "--", "python", "train.py").split()[1]
    assert imports(shell, "resume", name, "--nodes", "2") == ["jinja2"]


def imports(shell: Shell, *words: str) -> list[str]:
    """Heavy packages that a command imported; the command itself must succeed."""
    done = subprocess.run(
        [sys.executable, "-c", PROBE, *words],
        cwd=shell.directory,
        env=shell.environ,
        capture_output=True,
        text=True,
        timeout=60,
    )
    code, found = json.loads(done.stderr.splitlines()[-1])
    assert code == 0, done.stderr
    heavy: list[str] = found
    return heavy


def test_every_command_has_a_line_of_help() -> None:
    import click

    context = click.Context(cli, info_name="hpc-train")
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        assert command is not None
        assert command.get_short_help_str(limit=200), name
