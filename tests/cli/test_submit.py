"""`hpc-train submit`: job files, commands, and what wins."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.cli.conftest import Shell

JOB = '[job]\nname = "from file"\nnodes = 2\n[program]\ncommand = ["python", "train.py", "--file"]\n'


@pytest.fixture
def job(shell: Shell) -> Path:
    """A job file of two nodes."""
    path = shell.directory / "job.toml"
    path.write_text(JOB)
    return path


def submitted(shell: Shell, *words: str) -> Path:
    """Submit to the cluster of the tests; the run directory."""
    out = shell.ok("submit", "--site", "slurm-cluster", *words)
    return Path(next(line for line in out.splitlines() if line.startswith("in ")).split(maxsplit=1)[1])


def command_of(run: Path) -> list[str]:
    """What the ranks will run."""
    command: list[str] = json.loads((run / "submission-00" / "launch.json").read_text())["command"]
    return command


def test_a_job_file_becomes_a_job(shell: Shell, job: Path) -> None:
    out = shell.ok("submit", "job.toml", "--site", "slurm-cluster")
    run, job_id, where, asks, watch = (line.split(maxsplit=1)[1] for line in out.splitlines())
    assert (job_id, where) == ("4711", str(shell.directory / "runs" / run))
    assert asks.startswith("2 nodes, 2 ranks, ")
    assert watch == f"hpc-train status {run}; hpc-train logs -f {run}; hpc-train why {run}"
    assert command_of(Path(where)) == ["python", "train.py", "--file"]
    assert (shell.bin / "submitted").read_text() == f"--parsable {where}/submission-00/script.sbatch\n"


def test_a_command_becomes_a_job_with_every_word_its_own(shell: Shell) -> None:
    words = ["python", "train.py", "--lr", "1e-3", "--name", "x", "a b", "$HOME", "--", "-h", "lr=1e-3; echo"]
    assert command_of(submitted(shell, "--nodes", "3", "--", *words)) == words


def test_flags_win_over_the_file_and_the_command_over_its_own(shell: Shell, job: Path) -> None:
    run = submitted(shell, "job.toml", "--nodes", "4", "--", "python", "train.py", "--flag")
    assert command_of(run) == ["python", "train.py", "--flag"]
    placement = json.loads((run / "submission-00" / "placement.json").read_text())
    assert placement["num_nodes"] == 4
    origins = json.loads((run / "run.json").read_text())["origins"]
    assert origins["job.nodes"] == "flag --nodes"
    assert origins["job.name"] == "job.toml: [job].name"


def test_an_empty_command_leaves_the_files_own(shell: Shell, job: Path) -> None:
    assert command_of(submitted(shell, "job.toml", "--")) == ["python", "train.py", "--file"]


def test_a_flag_of_the_program_without_dashes_before_is_not_ours(shell: Shell) -> None:
    done = shell.run("submit", "python", "train.py", "--lr", "1")
    assert done.returncode == 2
    assert "--lr" in done.stderr


@pytest.mark.parametrize("name", ["it's", 'say "hi"', "50% off", "../up", "a b", "#1", "größe", "-x", "$HOME", "`id`;"])
def test_a_name_arrives_as_it_is_and_its_directory_is_a_slug(shell: Shell, name: str) -> None:
    run = submitted(shell, f"--name={name}", "--", "python", "train.py")
    assert run.parent == shell.directory / "runs"
    assert not set(run.name) - set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._")
    (status,) = shell.json("status", run.name)
    assert (status["name"], status["run"]) == (name, run.name)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--walltime", "2:00"], "1 node, 1 rank, a wall time of 2m, queue main"),
        (["--walltime", "2:00:00", "--nodes", "2"], "2 nodes, 2 ranks, a wall time of 2h, queue main"),
        (["--walltime", "1-12:30", "--ranks-per-node", "4"], "1 node, 4 ranks, a wall time of 1d12h30m, queue main"),
        (["--gpus-per-rank", "2", "--nodes", "2"], "2 nodes, 2 ranks, 4 GPUs, no wall time given, queue main"),
        (["--gpus-per-rank", "1"], "1 node, 1 rank, 1 GPU, no wall time given, queue main"),
        (["--walltime", "0"], "1 node, 1 rank, no limit of time, queue main"),
        (["--queue", "short"], "1 node, 1 rank, no wall time given, queue short"),
    ],
)
def test_submit_says_what_it_asks_for_as_slurm_will_read_it(shell: Shell, options: list[str], told: str) -> None:
    done = shell.run("submit", "--site", "slurm-cluster", *options, "--", "python", "-c", "")
    assert done.returncode == 0, done.stderr
    assert f"asks    {told}" in done.stdout.splitlines()


def test_a_dry_run_prints_the_script_and_writes_nothing(shell: Shell, job: Path) -> None:
    before = shell.contents()
    script = shell.ok("submit", "job.toml", "--site", "slurm-cluster", "--dry-run")
    assert '#SBATCH --job-name="from file"' in script.splitlines()
    assert subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, timeout=10).stderr == ""
    assert shell.contents() == before
    assert not list(Path(shell.environ["HOME"]).rglob("*"))
    assert not (shell.bin / "submitted").exists()


def test_a_dry_run_is_the_script_that_a_submit_writes(shell: Shell, job: Path) -> None:
    shown = shell.ok("submit", "job.toml", "--site", "slurm-cluster", "--dry-run")
    run = submitted(shell, "job.toml")
    shown_name = next(line for line in shown.splitlines() if line.startswith("# Rendered")).split()[6].rstrip(",")
    assert shown.replace(shown_name, run.name) == (run / "submission-00" / "script.sbatch").read_text()


def test_a_dry_run_is_utf_8_in_any_locale(shell: Shell) -> None:
    argv = shell.argv("submit", "--name", "größe", "--site", "slurm", "--dry-run", "--", "python", "train.py")
    environ = {**shell.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run(argv, cwd=shell.directory, env=environ, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert '--job-name="größe"'.encode() in done.stdout


def test_a_dry_run_warns_as_a_submit_and_prints_nothing_but_the_script(shell: Shell, job: Path) -> None:
    job.write_text(f'{JOB}[env]\npass = ["HF_TOKEN"]\n')
    words = ("submit", "job.toml", "--site", "slurm")
    dry, done = shell.run(*words, "--dry-run"), shell.run(*words)
    assert (dry.returncode, done.returncode) == (0, 0)
    assert dry.stderr == done.stderr and "so the job will lack it: HF_TOKEN" in dry.stderr
    assert [line.split(":")[1] for line in dry.stderr.splitlines()] == [" warning"] * 2  # the site is unverified too
    assert dry.stdout.startswith("#!/") and "HF_TOKEN" not in dry.stdout


IDLE = "has no effect: site 'local' is this machine, without a scheduler"


def warned(shell: Shell, *words: str) -> list[str]:
    """What a submit to this machine is warned of."""
    done = shell.run("submit", "--site", "local", "--dry-run", *words)
    assert done.returncode == 0, done.stderr
    return [line.removeprefix("hpc-train: warning: ") for line in done.stderr.splitlines()]


def test_what_only_a_scheduler_could_give_is_said_to_be_idle_on_this_machine(shell: Shell, job: Path) -> None:
    job.write_text('[job]\nqos = "high"\nextra_directives = ["--nice"]\n[program]\ncommand = ["python", "train.py"]\n')
    flags = ("--queue", "gpu", "--account", "a", "--exclude", "n1", "--memory", "2G", "--gpus-per-rank", "1")
    lines = warned(shell, "job.toml", *flags, "--walltime", "5", "--cpus-per-rank", "2")
    assert [line.partition(IDLE)[0] for line in lines] == [
        "flag --account ", "flag --queue ", "job.toml: [job].qos ", "flag --gpus-per-rank ", "flag --memory ",
        "flag --exclude ", "job.toml: [job].extra_directives ",
    ]  # fmt: skip
    end = "; leave it out, or name another site (hpc-train site list)"
    assert lines[3].endswith(f"{IDLE}, and every rank sees all of its GPUs{end}")
    assert all(line.endswith(end) for line in lines)
    assert "no effect" not in shell.run("submit", "job.toml", "--site", "slurm", "--dry-run").stderr


def test_what_stands_for_all_sites_is_not_told_at_every_submit_to_this_machine(shell: Shell) -> None:
    config = Path(shell.environ["HOME"]) / ".config" / "hpc-train"
    (config / "sites").mkdir(parents=True)
    for path, text in (
        (config / "config.toml", '[job]\naccount = "mine"\n'),
        (
            config / "sites" / "box.toml",
            'extends = "local"\n[status]\nverified = true\n[defaults]\ngpus_per_rank = 1\n',
        ),
    ):
        path.write_text(text)
        path.chmod(0o644)
    shell.environ["HPC_TRAIN_JOB_QOS"] = "high"
    assert warned(shell, "--", "python", "train.py") == []
    assert warned(shell, "--site", "box", "--gpus-per-rank", "0", "--", "python", "train.py") == []
    (told,) = warned(shell, "--site", "box", "--gpus-per-rank", "2", "--", "python", "train.py")
    assert told.startswith("flag --gpus-per-rank has no effect: site 'box' is this machine")
    assert warned(shell, "--site", "box", "--", "python", "train.py") == []


def test_a_dry_run_refuses_what_a_submit_would(shell: Shell, job: Path) -> None:
    assert "at most 8" in shell.fails(78, "submit", "job.toml", "--site", "slurm-cluster", "--nodes", "9", "--dry-run")


GOES = "a command goes after `--`: hpc-train submit -- python train.py"


@pytest.mark.parametrize("words", [["python", "train.py", "--data", "data"], ["python", "-u", "train.py"]])
def test_a_command_with_options_but_without_dashes_is_told_where_it_goes(shell: Shell, words: list[str]) -> None:
    done = shell.run("submit", "--ranks-per-node", "2", *words)
    assert (done.returncode, done.stdout) == (2, "")
    assert "No such option" in done.stderr and GOES in done.stderr


@pytest.mark.parametrize("name", ["train.py", "train.sh"])
def test_a_program_in_the_place_of_a_job_file_is_told_where_it_goes(shell: Shell, name: str) -> None:
    (shell.directory / "train.sh").write_text("#!/bin/bash\n")
    (shell.directory / "train.sh").chmod(0o755)
    line = shell.fails(2, "submit", name)
    assert line == f"'{name}' is no job file; one job file is allowed, and {GOES}"


def test_a_job_file_may_have_any_other_name(shell: Shell) -> None:
    (shell.directory / "job.conf").write_text(JOB)
    (shell.directory / "job.conf").chmod(0o644)
    assert command_of(submitted(shell, "job.conf")) == ["python", "train.py", "--file"]


def test_a_word_that_is_no_program_is_refused_at_submit(shell: Shell) -> None:
    before = shell.contents()
    assert "no program 'pyhton' in PATH; did you mean 'python'?" in shell.fails(78, "submit", "--", "pyhton", "x.py")
    assert "write it as separate words" in shell.fails(78, "submit", "--", "python train.py --lr 1")
    assert shell.contents() == before


@pytest.mark.parametrize(
    ("sbatchs", "ours"),
    [("--partition", "--queue"), ("-p", "--queue"), ("--time", "--walltime"), ("-t", "--walltime"), ("-N", "--nodes")],
)
@pytest.mark.parametrize("program", [["--", "python", "train.py"], ["job.toml"]])
def test_an_option_of_sbatch_is_answered_with_ours(shell: Shell, sbatchs: str, ours: str, program: list[str]) -> None:
    done = shell.run("submit", sbatchs, "2", *program)
    assert done.returncode == 2
    assert done.stderr.rstrip().endswith(f"No such option: {sbatchs}. Here it is {ours}.")
