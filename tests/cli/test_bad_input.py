"""Bad input gets one line with a remedy and the documented code, and leaves nothing on disk."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import Shell
from tests.scheduler.making import make_attempt

PROGRAM = '[program]\ncommand = ["python", "train.py"]\n'


@pytest.mark.parametrize(
    ("job", "words", "code", "said"),
    [
        (f"[job]\nnods = 2\n{PROGRAM}", [], 78, ["job.toml: [job].nods", "did you mean 'nodes'?"]),
        (f'[job]\nwalltime = "2h"\n{PROGRAM}', [], 78, ["[job].walltime", "2h", "H:M:S"]),
        (f"[job]\nnodes = 0\n{PROGRAM}", [], 78, ["[job].nodes", ">= 1"]),
        (
            f"[job]\nnodes = 9\n{PROGRAM}",
            ["--site", "slurm-cluster"],
            78,
            ["nodes = 9", "at most 8", "ask for 8 or fewer"],
        ),
        (f"[job]\nnodes = 2\n{PROGRAM}", [], 78, ["is one machine", "ask for 1 node"]),
        (f'[job]\nname = "a\\nb"\n{PROGRAM}', [], 78, ["[job].name", "control characters"]),
        (f'[job]\nqueue = "gpu"\n{PROGRAM}', ["--site", "slurm-cluster"], 78, ["no such queue", "main, short"]),
        (f'[data]\npath = ["nosuch"]\n{PROGRAM}', [], 65, ["[data].path", "does not exist", "hpc-train data pack"]),
        (PROGRAM, ["--site", "nosuch"], 78, ["unknown site 'nosuch'", "known: ", "slurm-cluster"]),
        (PROGRAM, ["--walltime", "x"], 78, ["--walltime", "not understood"]),
        (PROGRAM, ["--name", "a\tb"], 78, ["--name", "control characters"]),
        (PROGRAM, ["--name", ""], 78, ["--name", "empty"]),
        (PROGRAM, ["--run-root", "train.py"], 73, ["cannot make the run directory", "--run-root"]),
        (PROGRAM, ["--memory", "1.5G"], 78, ["--memory", "fractions"]),
        (PROGRAM, ["--venv", "nosuch"], 78, ["no program that can be run", "env.venv"]),
        ("[program]\ncommand = []\n", [], 78, ["[program].command"]),
        ("[job]\n", [], 78, ["[program].command is missing", "after `--`"]),
        ("not toml", [], 78, ["job.toml: not a TOML file"]),
        (PROGRAM, ["--", "python", "nosuch.py"], 78, ["there is no 'nosuch.py' in"]),
        (f'[env]\nset = {{MY_TOKEN = "x"}}\n{PROGRAM}', [], 78, ["looks like a secret", "pass"]),
    ],
    ids=lambda value: str(value)[:30] if isinstance(value, str) else None,
)
def test_a_request_that_cannot_be_is_refused_in_one_line(
    shell: Shell, job: str, words: list[str], code: int, said: list[str]
) -> None:
    (shell.directory / "job.toml").write_text(job)
    before = shell.contents()
    line = shell.fails(code, "submit", "job.toml", *words)
    assert [text for text in said if text not in line] == [], line
    assert shell.contents() == before
    assert not list(Path(shell.environ["HOME"]).rglob("*"))


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["submit", "nosuch.toml"], 78, "nosuch.toml: cannot be read: no such file"),
        (["submit"], 2, "give a job file, or a command after `--`"),
        (["submit", "python", "train.py"], 2, "a command goes after `--`"),
        (["submit", "a.toml", "b.toml"], 2, "one job file is allowed"),
        (["frobnicate"], 2, "there is no command 'frobnicate'; commands: submit, status"),
        (["status", "nosuch"], 78, "no run 'nosuch'"),
        (["why", "nosuch"], 78, "no run 'nosuch'"),
        (["logs", "nosuch"], 78, "no run 'nosuch'"),
        (["cancel", "nosuch"], 78, "no run 'nosuch'"),
        (["requeue", "nosuch"], 78, "no run 'nosuch'"),
        (["cancel", ""], 78, "no run given"),
        (["status", "./train.py"], 78, "train.py"),
        (["status", "."], 78, "no run"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_a_command_that_cannot_be_is_refused_in_one_line(shell: Shell, words: list[str], code: int, said: str) -> None:
    before = shell.contents()
    assert said in shell.fails(code, *words)
    assert shell.contents() == before


@pytest.mark.parametrize(
    "words", [["submit", "--nods", "2"], ["status", "--jsn"], ["submit", "--nodes", "two"], ["logs"]]
)
def test_a_wrong_flag_is_a_usage_error(shell: Shell, words: list[str]) -> None:
    done = shell.run(*words)
    assert (done.returncode, done.stdout) == (2, "")
    assert "Error: " in done.stderr and "Traceback" not in done.stderr


def test_a_job_file_that_others_can_write_is_refused(shell: Shell) -> None:
    job = shell.directory / "job.toml"
    job.write_text(PROGRAM)
    job.chmod(0o666)
    assert "chmod go-w" in shell.fails(78, "submit", "job.toml")


def test_an_unwritable_home_does_not_stop_a_submit(shell: Shell) -> None:
    done = shell.run("submit", "--site", "slurm-cluster", "--", "python", "train.py", environ={"HOME": "/proc/nosuch"})
    assert done.returncode == 0
    assert done.stderr.startswith("hpc-train: warning: the index of runs")


@pytest.mark.parametrize(
    ("sbatch", "said"),
    [
        ("echo 'sbatch: error: Invalid partition name specified' >&2; exit 1", "Invalid partition name specified"),
        ("exit 3", "sbatch failed with code 3"),
    ],
)
def test_a_scheduler_that_refuses_is_quoted_once(shell: Shell, sbatch: str, said: str) -> None:
    (shell.bin / "sbatch").write_text(f"#!/bin/bash\n{sbatch}\n")
    before = shell.contents()
    assert shell.fails(69, "submit", "--site", "slurm-cluster", "--", "python", "train.py").count(said) == 1
    assert shell.contents() == before


def test_a_refusal_names_what_the_shell_told_sbatch_in_vain(shell: Shell) -> None:
    (shell.bin / "sbatch").write_text("#!/bin/bash\necho 'sbatch: error: Invalid account' >&2; exit 1\n")
    words = ("submit", "--site", "slurm-cluster", "--", "python", "train.py")
    line = shell.fails(69, *words, environ={"SBATCH_ACCOUNT": "p1"})
    assert "Invalid account; SBATCH_ACCOUNT = 'p1' of this shell has no effect" in line


def test_a_machine_without_slurm_is_told_so(shell: Shell) -> None:
    line = shell.fails(69, "submit", "--site", "slurm-cluster", "--", "python", "train.py", environ={"PATH": "/nosuch"})
    assert line == "sbatch: not found; is this a login node of a Slurm cluster, and is Slurm in PATH?"


def test_a_run_of_another_version_is_named_as_such(shell: Shell) -> None:
    run = shell.make_run("r")
    run.record.write_text(run.record.read_text().replace('"version": 1', '"version": 9'))
    assert "run format version 9" in shell.fails(78, "status", str(run.path))
    assert shell.json("status") == []  # a listing passes it over


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
@pytest.mark.parametrize(
    "words", ["submit --site slurm-cluster -- python train.py", "status", "status --watch 0.5", "why r", "logs r"]
)
def test_a_closed_stream_is_no_error_and_no_file_takes_its_place(shell: Shell, words: str, closed: str) -> None:
    run = shell.make_run("r", "7")
    shell.queue("7|COMPLETED|n1|None")
    make_attempt(run, word="done", failure="done", code=0).logs.joinpath("n1.log").write_text("hello\n")
    line = f"{shlex.join(shell.argv())} {words} {closed}"
    done = subprocess.run(["bash", "-c", line], cwd=shell.directory, env=shell.environ, capture_output=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, b"")
    assert bool(done.stdout) == (">&-" not in closed.replace("2>&-", ""))
    files = [path for path in shell.directory.parent.rglob("*") if path.is_file() and path.suffix != ".log"]
    assert not [path for path in files if b"watch   hpc-train" in path.read_bytes()]


@pytest.mark.parametrize("words", [["status"], ["logs", "r"], ["site", "list"], ["status", "--json"]])
def test_an_output_on_a_full_disk_is_said_and_not_lost_in_silence(shell: Shell, words: list[str]) -> None:
    run = shell.make_run("r", "7")
    make_attempt(run).logs.joinpath("n1.log").write_text("hello\n")
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            shell.argv(*words), cwd=shell.directory, env=shell.environ, stdout=full, stderr=subprocess.PIPE, text=True
        )
    assert done.returncode == 73
    assert done.stderr.startswith("hpc-train: error: standard output, ") and done.stderr.count("\n") == 1


@pytest.mark.parametrize("words", ["submit -- python train.py", "submit --dry-run -- python train.py"])
def test_a_current_directory_that_is_gone_is_said(shell: Shell, words: str) -> None:
    line = f"mkdir gone && cd gone && rmdir ../gone && {shlex.join(shell.argv())} {words}"
    done = subprocess.run(
        ["bash", "-c", line], cwd=shell.directory, env=shell.environ, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 73
    assert done.stderr.startswith("hpc-train: error: the current directory is gone") and done.stderr.count("\n") == 1


def test_a_directory_whose_name_is_no_utf_8_is_refused_in_one_line(shell: Shell) -> None:
    odd = os.fsencode(shell.directory) + b"/caf\xe9"
    os.mkdir(odd)
    done = subprocess.run(
        shell.argv("submit", "--", "python", "-c", "pass"), cwd=odd, env=shell.environ, capture_output=True, timeout=60
    )
    assert (done.returncode, done.stdout) == (78, b"")
    assert b"not UTF-8" in done.stderr and done.stderr.count(b"\n") == 1
    assert os.listdir(odd) == []
