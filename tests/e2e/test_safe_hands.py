"""The whole way of a run for people as they are: no rights, odd umasks, homes that take nothing, shared directories."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from hpc_train.launch.processes import find_ranks
from hpc_train.run.journal import read_journal
from hpc_train.run.layout import RunDir
from tests.e2e.lab import Lab, steps_of
from tests.support.cluster import SlurmCluster

PROGRAM, COUNTING = Path(__file__).with_name("sharing.py"), Path(__file__).with_name("counting.py")
NOBODY, PROJECT = 65534, 54321  # a user without a home; a group without a name
UNINDEXED = "the index of runs"


@dataclass(frozen=True)
class Case:
    """Conditions of one run.

    Attributes:  home: "full", "read-only", "missing" or "unset".   shared: mode of the directory that it works in.
    warns: whether submit says that the index of runs could not be written.
    """

    umask: int
    home: str
    shared: int
    warns: bool


CASES = {
    "private, full home": Case(0o077, "full", 0o755, True),
    "group may read, read-only home": Case(0o027, "read-only", 0o755, True),
    "private, no HOME": Case(0o077, "unset", 0o755, False),
    "project, home that is not there": Case(0o002, "missing", 0o2775, True),
}


@dataclass(frozen=True)
class Place:
    """Where a case happens: a lab, the project's directory, and how to undo it."""

    lab: Lab
    project: Path


def make_home(kind: str, base: Path, uid: int) -> Path:
    """A home of that kind; mounted where it must be full."""
    home = base / f"home {kind}"
    if kind != "missing":
        home.mkdir()
        os.chown(home, uid, -1)
    if kind == "full":
        options = f"size=4k,mode=0700,uid={uid}"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(home)], check=True, timeout=20)
        (home / "all there is").write_bytes(bytes(4096))
    elif kind == "read-only":
        home.chmod(0o555)
    return home if kind != "missing" else home / "nowhere"


def under(case: Case, lab: Lab, base: Path, uid: int) -> Lab:
    """The lab with the case's umask and home."""
    home = make_home(case.home, base, uid)
    # By env(1), next to the command: the cluster's tool sets a home of its own.
    flags = ["-u", "XDG_STATE_HOME", *(["-u", "HOME"] if case.home == "unset" else [f"HOME={home}"])]

    def call(
        argv: Sequence[str | Path], *, timeout: float, cwd: Path, env: Mapping[str, str]
    ) -> subprocess.CompletedProcess[str]:
        wrapped = ["env", *flags, "bash", "-c", f'umask {case.umask:04o}; exec "$@"', "bash", *map(str, argv)]
        return lab.call(wrapped, timeout=timeout, cwd=cwd, env=env)

    return replace(lab, call=call)


def as_nobody(
    argv: Sequence[str | Path], *, timeout: float, cwd: Path, env: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run a command on this machine without any right, but in the project's group."""
    drop = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", f"--groups={PROJECT}", "--"]
    return subprocess.run(
        [*drop, *map(str, argv)], timeout=timeout, cwd=cwd, env={**env}, capture_output=True, text=True
    )


@pytest.fixture
def base() -> Iterator[Path]:
    """A directory that everybody can reach, unlike pytest's own."""
    directory = Path(tempfile.mkdtemp(prefix="hands-", dir="/var/tmp"))
    directory.chmod(0o755)
    yield directory
    for mounted in directory.glob("home full"):
        subprocess.run(["umount", "--lazy", str(mounted)], check=True, timeout=20)
    shutil.rmtree(directory)


def tell_the_story(case: Case, lab: Lab, project: Path) -> None:
    """Pack, submit, wait, look: every file has the modes that umask and directory ask for."""
    packed = lab.hpc_train("data", "pack", project / "set", PROGRAM, "--sequence", "16")
    assert packed.returncode == 0, packed.stderr
    outside = project / "shared checkpoints"
    done = lab.hpc_train(
        *("submit", "--site", lab.site, "--rendezvous", "none", "--ranks-per-node", "2", "--", "python"),
        *(PROGRAM, outside),
    )
    assert done.returncode == 0, done.stderr
    warnings = [line for line in done.stderr.splitlines() if UNINDEXED in line]
    assert len(warnings) == case.warns and done.stderr.count("\n") == len(warnings), done.stderr
    run = RunDir(Path(next(line.split(None, 1)[1] for line in done.stdout.splitlines() if line.startswith("in "))))
    assert lab.wait_end(run) == "done"
    lab.wait_state(run, "completed")
    for command in ("why", "logs"):
        assert lab.hpc_train(command, run.path).returncode == 0
    assert steps_of(read_journal(run), "commit") == [1, 1]
    assert_modes(case, run, project, [project / "set", outside])


def assert_modes(case: Case, run: RunDir, project: Path, shared: list[Path]) -> None:
    """The run is its user's alone; what lies outside is as open as the umask says, and of the directory's group."""
    assert stat.S_IMODE(run.path.stat().st_mode) & 0o777 == 0o700
    of_project = project.stat()
    for path in [each for root in shared for each in (root, *root.rglob("*"))]:
        status = path.stat()
        mode = stat.S_IMODE(status.st_mode)
        wanted = (0o777 if path.is_dir() else 0o666) & ~case.umask
        assert mode & 0o777 == wanted, f"{path}: {mode:o}, not {wanted:o}"
        if case.shared & stat.S_ISGID:
            assert status.st_gid == of_project.st_gid, path
            assert not path.is_dir() or mode & stat.S_ISGID, path


@pytest.mark.parametrize("name", CASES)
def test_a_local_run_of_a_user_without_rights(name: str, base: Path) -> None:
    case, project = CASES[name], base / "project"
    project.mkdir()
    os.chown(project, NOBODY, PROJECT)
    project.chmod(case.shared)
    environ = {key: os.environ[key] for key in ("PATH", "LANG", "OMP_NUM_THREADS") if key in os.environ}
    lab = Lab(as_nobody, project, "local", environ)
    tell_the_story(case, under(case, lab, base, NOBODY), project)


@pytest.mark.parametrize("name", ["private, full home", "project, home that is not there"])
def test_a_slurm_run_of_a_user_without_rights(name: str, cluster: SlurmCluster, slurm_lab: Lab) -> None:
    case, base = CASES[name], Path(tempfile.mkdtemp(prefix="hands-", dir=slurm_lab.directory))
    base.chmod(0o755)
    project = base / "project"
    project.mkdir()
    shutil.chown(project, cluster.user, cluster.user)
    project.chmod(case.shared)
    lab = under(case, replace(slurm_lab, directory=project, environ={}), base, project.stat().st_uid)
    try:
        tell_the_story(case, lab, project)
    finally:
        for mounted in base.glob("home full"):
            subprocess.run(["umount", "--lazy", str(mounted)], check=True, timeout=20)


def test_ten_submits_at_once_are_ten_runs(local_lab: Lab) -> None:
    options = ["--site", "local", "--name", "same", "--rendezvous", "none", "--", "true"]
    argv = [sys.executable, "-m", "hpc_train", "submit", *options]
    started = [
        subprocess.Popen(
            argv, cwd=local_lab.directory, env={**local_lab.environ}, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for _ in range(10)
    ]
    outs = [process.communicate(timeout=120) for process in started]
    assert [process.returncode for process in started] == [0] * 10, outs
    paths = {out.decode().splitlines()[2].split(None, 1)[1] for out, _ in outs}
    assert len(paths) == 10
    for path in paths:
        local_lab.wait_state(RunDir(Path(path)), "completed", timeout=120)
    assert len(list((local_lab.directory / "runs").iterdir())) == 10
    listed = local_lab.hpc_train("status").stdout.splitlines()
    assert len(listed) == 11  # with the header: no line of the index was lost or torn


def test_a_run_directory_that_is_removed_stays_removed(local_lab: Lab) -> None:
    options = ("--rendezvous", "none", "--ranks-per-node", "2", "--", "python", COUNTING, "100000", "20", "0.02")
    run = local_lab.submit(*options)
    local_lab.wait_for("a commit", run, lambda: steps_of(read_journal(run), "commit"), 60)
    while run.path.exists():
        shutil.rmtree(run.path, ignore_errors=True)
    deadline = time.monotonic() + 60
    while find_ranks(run.path):
        assert time.monotonic() < deadline, "the ranks go on without their run"
        time.sleep(0.2)
    time.sleep(1)
    assert not run.path.exists(), sorted(run.path.rglob("*"))
