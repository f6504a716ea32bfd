"""Submitting: a whole run or nothing, one job or none, and no secret on disk."""

from __future__ import annotations

import concurrent.futures
import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpc_train.errors import HpcTrainError, NoSpaceError, SchedulerError
from hpc_train.job.loader import LoadedJob, job_from_json
from hpc_train.run.journal import read_journal
from hpc_train.run.layout import find_run_format
from hpc_train.scheduler.submission import Submitted, submit
from hpc_train.topology.placement import placement_from_json
from tests.scheduler.making import bare_environment, load, log_call, recorded, write_program

ROOT = Path(__file__).parents[2]
TIMED_OUT = "echo 'sbatch: error: Socket timed out on send/recv operation' >&2; exit 1"


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """An environment with a Slurm that takes every job."""
    bin_dir = tmp_path / "bin"
    write_program(bin_dir, "sbatch", f'{log_call(bin_dir / "calls")}\nenv -0 >"${{0%/*}}/environment"\necho $$')
    write_program(bin_dir, "scancel", log_call(bin_dir / "calls"))
    write_program(bin_dir, "squeue", "exit 0")
    (tmp_path / "home").mkdir()
    environment = bare_environment(bin_dir, HOME=str(tmp_path / "home"))
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return environment


def request(directory: Path, job: str = "", **flags: Any) -> LoadedJob:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "train.py").touch()
    text = f'{job}\n[program]\ncommand = ["python", "train.py"]\n'
    return load(directory, text, flags={"job.site": "slurm", **flags})


def test_a_run_directory_holds_everything_and_is_its_users_alone(tmp_path: Path, shell: dict[str, str]) -> None:
    done = submit(request(tmp_path / "work", '[job]\nname = "it\'s 1"\nnodes = 2\n'), shell)
    submission = done.run.submission(0)
    assert stat.S_IMODE(done.run.path.stat().st_mode) == 0o700
    assert find_run_format(done.run.path) is None
    assert job_from_json(submission.job.read_text()).job.name == "it's 1"
    assert placement_from_json(submission.placement.read_text()).num_nodes == 2
    assert json.loads(submission.launch.read_text())["command"] == ["python", "train.py"]
    assert json.loads(submission.submit.read_text())["job_id"] == done.job_id
    assert os.access(submission.script, os.X_OK)
    assert [event.event for event in read_journal(done.run)] == ["submitted"]
    assert recorded(tmp_path / "bin" / "calls") == [f"sbatch --parsable {submission.script}"]


def test_two_submits_at_once_are_two_runs(tmp_path: Path, shell: dict[str, str]) -> None:
    loaded = request(tmp_path / "work")
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        done: list[Submitted] = list(pool.map(lambda _: submit(loaded, shell), range(8)))
    assert len({each.run.path for each in done}) == 8
    assert len({each.job_id for each in done}) == 8


def test_an_unverified_site_is_said_at_submit(tmp_path: Path, shell: dict[str, str]) -> None:
    assert "'slurm' is unverified" in submit(request(tmp_path / "work"), shell).warnings[0]
    assert submit(request(tmp_path / "work", **{"job.site": "slurm-cluster"}), shell).warnings == ()


def test_a_variable_to_pass_that_is_not_set_is_said_at_submit(tmp_path: Path, shell: dict[str, str]) -> None:
    job = '[env]\npass = ["HF_TOKEN", "WANDB_MODE"]\n'
    loaded = request(tmp_path / "work", job, **{"job.site": "slurm-cluster"})
    said = submit(loaded, {**shell, "WANDB_MODE": ""}).warnings
    assert said == ("[env].pass names what is not set here, so the job will lack it: HF_TOKEN",)


def test_a_home_that_takes_no_index_is_a_warning(tmp_path: Path, shell: dict[str, str]) -> None:
    (tmp_path / "home" / ".local").touch()
    done = submit(request(tmp_path / "work", **{"job.site": "slurm-cluster"}), shell)
    assert "cannot be written" in done.warnings[0]
    assert done.run.path.is_dir()


def test_a_job_that_the_scheduler_refuses_leaves_nothing(tmp_path: Path, shell: dict[str, str]) -> None:
    write_program(tmp_path / "bin", "sbatch", "echo 'sbatch: error: Invalid account' >&2; exit 1")
    loaded = request(tmp_path / "work", **{"job.run_root": "deep/er/runs"})
    before = sorted((tmp_path / "work").rglob("*"))
    with pytest.raises(SchedulerError, match="Invalid account"):
        submit(loaded, shell)
    assert sorted((tmp_path / "work").rglob("*")) == before
    assert not recorded(tmp_path / "home" / ".local" / "state" / "hpc-train" / "runs.jsonl")


def test_a_run_root_that_others_use_is_not_removed(tmp_path: Path, shell: dict[str, str]) -> None:
    write_program(tmp_path / "bin", "sbatch", 'touch "${2%/*}/../../other"; exit 1')
    with pytest.raises(SchedulerError):
        submit(request(tmp_path / "work"), shell)
    assert [path.name for path in (tmp_path / "work" / "runs").iterdir()] == ["other"]


@pytest.mark.parametrize("root", ["file", "file/below", "/proc/nosuch"])
def test_a_run_root_that_cannot_be_made_is_refused_with_a_remedy(
    tmp_path: Path, shell: dict[str, str], root: str
) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "file").touch()
    with pytest.raises(HpcTrainError, match="--run-root") as caught:
        submit(request(tmp_path / "work", **{"job.run_root": root}), shell)
    assert caught.value.exit_code == 73
    assert not recorded(tmp_path / "bin" / "calls")


# Runs submit in a process of its own, so that limits and rights hold for it alone.
PROBE = """
import os, sys
from pathlib import Path
from hpc_train.errors import HpcTrainError
from hpc_train.job.loader import load_job
from hpc_train.scheduler.submission import submit
try:
    submit(load_job("job.toml", {"job.site": "slurm", "job.run_root": sys.argv[1]}, os.environ), os.environ)
except HpcTrainError as error:
    print(type(error).__name__, error)
    sys.exit(error.exit_code)
"""


def probe(
    directory: Path, shell: dict[str, str], root: str, *prefix: str, **how: Any
) -> subprocess.CompletedProcess[str]:
    request(directory)
    argv = [*prefix, sys.executable, "-c", PROBE, root]
    environment = {**shell, "PYTHONPATH": str(ROOT)}
    return subprocess.run(
        argv, cwd=directory, env=environment, capture_output=True, text=True, timeout=60, check=False, **how
    )


def test_a_full_file_system_leaves_nothing_and_says_so(tmp_path: Path, shell: dict[str, str]) -> None:
    full = tmp_path / "full"
    full.mkdir()
    # two inodes: the file system's root and the run root; the run directory itself finds no room
    script = 'mount -t tmpfs -o size=8k tmpfs "$0" && "$@"; code=$?; ls -A "$0" >&2; exit $code'
    namespace = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]
    done = probe(tmp_path / "work", shell, str(full), *namespace, "bash", "-c", script, str(full))
    assert (done.returncode, done.stderr) == (73, "")  # and an empty listing of what is left
    assert done.stdout.startswith(f"{NoSpaceError.__name__} cannot write the run directory")
    assert "free space" in done.stdout
    assert not recorded(tmp_path / "bin" / "calls")


def test_a_run_root_that_one_may_not_write_is_a_matter_of_permission(tmp_path: Path, shell: dict[str, str]) -> None:
    readonly = tmp_path / "readonly"
    readonly.mkdir(mode=0o555)
    # root may write everywhere; a file system that is mounted so, it may not
    script = 'mount -t tmpfs -o ro tmpfs "$0" && "$@"'
    namespace = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]
    done = probe(tmp_path / "work", shell, f"{readonly}/runs", *namespace, "bash", "-c", script, str(readonly))
    assert (done.returncode, done.stderr) == (77, "")
    assert done.stdout.startswith("PermissionDeniedError cannot make the run directory")


def test_a_job_that_could_not_be_noted_is_cancelled(tmp_path: Path, shell: dict[str, str]) -> None:
    # The scheduler took it, and then the record could not be written: nobody would find it again.
    write_program(
        tmp_path / "bin", "sbatch", f'{log_call(tmp_path / "bin" / "calls")}\nmkdir "${{2%/*}}/submit.json"; echo 4711'
    )
    with pytest.raises(HpcTrainError):
        submit(request(tmp_path / "work"), shell)
    assert recorded(tmp_path / "bin" / "calls")[1:] == ["scancel 4711"]
    assert not (tmp_path / "work" / "runs").exists()


def test_a_secret_reaches_the_job_and_no_file(tmp_path: Path, shell: dict[str, str]) -> None:
    secret = "hf_Zx9-not-to-be-written"
    loaded = request(tmp_path / "work", '[env]\npass = ["HF_TOKEN"]\n')
    done = submit(loaded, {**shell, "HF_TOKEN": secret, "OTHER_TOKEN": secret, "SLURM_CPU_BIND": "x"})
    seen = (tmp_path / "bin" / "environment").read_text().split("\0")
    assert f"HF_TOKEN={secret}" in seen
    assert not [each for each in seen if each.startswith(("OTHER_TOKEN", "SLURM_"))]
    assert not [path for path in done.run.path.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]
    assert not [path for path in (tmp_path / "home").rglob("*") if path.is_file() and secret in path.read_text()]
