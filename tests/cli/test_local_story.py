"""Whole stories on this machine, with real ranks: runs that end badly go on when they are asked to."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hpc_train.run.layout import RunDir
from tests.cli.conftest import ROOT, Shell
from tests.scheduler.making import bare_environment, wait_for

pytestmark = pytest.mark.mpi

# Fails as it is told to in a file, until the file is gone.
PROGRAM = """
import pathlib, sys, time
code = pathlib.Path("code")
print("program runs", flush=True)
while code.exists():
    if code.read_text():
        sys.exit(int(code.read_text()))
    time.sleep(0.1)
"""


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Shell]:
    """This machine as the site `local`; every run is cancelled at the end."""
    home, work = tmp_path / "home", tmp_path / "work"
    for directory in (home, work):
        directory.mkdir()
    (work / "program.py").write_text(PROGRAM)
    made = Shell(work, Path(sys.executable).parent, bare_environment(HOME=str(home), PYTHONPATH=str(ROOT)))
    yield made
    for status in made.json("status"):
        made.run("cancel", status["run"])


def submit(machine: Shell, code: str) -> str:
    """Start the program so that it ends with the code, or runs on for ""; the run's name."""
    (machine.directory / "code").write_text(code)
    out = machine.ok("submit", "--rendezvous", "none", "--backoff", "1s", "--", "python", "program.py")
    return out.splitlines()[0].split()[1]


def wait_state(machine: Shell, run: str, *states: str) -> str:
    """Wait until the run is in one of the states."""

    def state() -> str:
        found: str = machine.json("status", run)[0]["state"]
        return found if found in states else ""

    found: str = wait_for(state, f"{run} is in {states}", timeout_s=60)
    return found


@pytest.mark.parametrize(
    ("code", "state", "said"),
    [
        ("3", "failed", "attempt 0 ended: program; first failing rank 0 on"),
        ("73", "held", "it is held until you ask: hpc-train requeue"),
    ],
)
def test_a_run_that_ended_badly_goes_on_once_it_is_repaired(machine: Shell, code: str, state: str, said: str) -> None:
    run = submit(machine, code)
    wait_state(machine, run, state)
    told = machine.ok("why", run)
    assert said in told and "see: hpc-train why" not in told and "Slurm" not in told
    (machine.directory / "code").unlink()
    assert "goes on as job" in machine.ok("requeue", run)
    assert wait_state(machine, run, "completed", "failed", "held") == "completed"
    assert machine.ok("why", run).splitlines()[-1].startswith("next      nothing: it is complete")
    assert machine.json("status", run)[0]["attempts"] == 2
    assert machine.ok("logs", run, "--all").count("program runs") == 2


def test_a_cancelled_run_ends_and_goes_on_only_when_it_is_asked_to(machine: Shell) -> None:
    run = submit(machine, "")
    wait_for(lambda: "program runs" in machine.run("logs", run).stdout, "the program runs", timeout_s=60)
    assert machine.ok("cancel", run).startswith(f"{run} cancelled")
    assert machine.json("status", run)[0]["state"] == "cancelled"
    (machine.directory / "code").unlink()
    machine.ok("requeue", run)
    assert wait_state(machine, run, "completed", "failed", "held", "cancelled") == "completed"
    assert machine.ok("cancel", run) == f"{run} had completed; nothing to cancel\n"


@pytest.mark.parametrize("text", ["{", '{"job_id": ""}', "[]"])
def test_a_run_whose_submit_record_is_damaged_does_not_run_twice(machine: Shell, text: str) -> None:
    name = submit(machine, "")
    run = RunDir(Path(machine.json("status", name)[0]["run_dir"]))
    wait_for(lambda: "program runs" in machine.run("logs", name).stdout, "the program runs", timeout_s=60)
    run.submission(0).submit.write_text(text)
    assert "its job local:" in (said := machine.fails(78, "requeue", name)) and "is running" in said
    assert machine.json("status", name)[0]["state"] == "running"  # the record was written anew
    run.submission(0).submit.write_text(text)
    assert machine.ok("cancel", name).startswith(f"{name} cancelled")
    assert [each.number for each in run.submissions()] == [0]


@pytest.mark.parametrize("code", [0, 3])
def test_a_setup_line_that_ends_the_batch_script_is_found(machine: Shell, code: int) -> None:
    (machine.directory / "job.toml").write_text(
        f"[program]\ncommand = ['python', 'program.py']\nsetup = ['[ -d nowhere ] || exit {code}']\n"
    )
    run = machine.ok("submit", "job.toml").splitlines()[0].split()[1]
    assert wait_state(machine, run, "failed", "unknown", "completed") == "failed"
    told = f"the batch script ended with code {code} before any attempt had begun"
    assert machine.json("status", run)[0]["reason"] == f"{told}; see: hpc-train why {run}"
    assert f"next      {told}: see hpc-train logs {run} --batch; if that says nothing, a line of [program] setup" in (
        machine.ok("why", run)
    )


def test_a_python_that_greets_and_says_good_bye_changes_no_answer(machine: Shell) -> None:
    site = machine.directory / "greets"
    site.mkdir()
    (site / "sitecustomize.py").write_text("import atexit\nprint('stop by, all')\natexit.register(print, 'go well')\n")
    (machine.directory / "job.toml").write_text(
        f"[program]\ncommand = ['python', 'program.py']\nsetup = ['export PYTHONPATH={site}:$PYTHONPATH']\n"
    )
    run = machine.ok("submit", "job.toml").splitlines()[0].split()[1]
    assert wait_state(machine, run, "completed", "failed", "held") == "completed"
    assert "stop by, all" in machine.ok("logs", run, "--batch")


def test_a_setup_line_that_failed_is_told_of_a_run_that_completed(machine: Shell) -> None:
    (machine.directory / "job.toml").write_text(
        "[program]\ncommand = ['python', 'program.py']\nsetup = ['exprot DATA=1', 'true']\n"
    )
    run = machine.ok("submit", "job.toml").splitlines()[0].split()[1]
    assert wait_state(machine, run, "completed", "failed", "held") == "completed"
    told = "of [program] setup failed: 'exprot DATA=1 (code 127)'"
    assert machine.json("status", run)[0]["reason"] == f"all ranks ended cleanly; {told}"
    assert told in machine.ok("why", run)
    assert f"hpc-train: {told}; it goes on all the same: put || exit 1" in machine.ok("logs", run, "--batch")
