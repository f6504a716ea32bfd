"""The scripts of tools/ say what they are and refuse what they cannot do, before they do anything."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / "tools"


def run_tool(name: str, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """One tool, with a folder of its own for what it builds."""
    return subprocess.run(
        [TOOLS / name, *words],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.parametrize("name", ["check", "test", "bench"])
def test_help_builds_no_environment(name: str, tmp_path: Path) -> None:
    done = run_tool(name, "--help", HPC_TRAIN_TEST_DIR=str(tmp_path / "built"))
    assert done.returncode == 0, done.stderr
    assert f"tools/{name}" in done.stdout
    assert not (tmp_path / "built").exists()


def test_an_unknown_check_or_benchmark_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    check = run_tool("check", "lnit", HPC_TRAIN_TEST_DIR=str(tmp_path))
    assert (check.returncode, "no check named lnit; there are format lint" in check.stderr) == (2, True)
    assert run_tool("bench", "../gates/budgets", HPC_TRAIN_TEST_DIR=str(tmp_path)).returncode == 2


def test_all_tests_without_root_are_refused_with_the_part_that_runs() -> None:
    # As another user where this one is root.
    identity = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}
    done = subprocess.run(
        ["bash", "-s"],
        input=(TOOLS / "test").read_text().replace("${BASH_SOURCE[0]}", str(TOOLS / "test")),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        **identity,  # type: ignore[call-overload]
    )
    assert done.returncode == 77
    assert "tools/test --fast" in done.stderr


def ci_checkout(folder: Path, tools: dict[str, str]) -> Path:
    """A repository with the project's .ci/run and stand-ins for the tools it calls."""
    (folder / ".ci").mkdir(parents=True)
    shutil.copy(TOOLS.parent / ".ci" / "run", folder / ".ci" / "run")
    for name, text in tools.items():
        path = folder / "tools" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/usr/bin/env bash\n{text}\n")
        path.chmod(0o755)
    for words in (["init", "-q"], ["add", "."], ["-c", "user.name=t", "-c", "user.email=t@e", "commit", "-qm", "all"]):
        subprocess.run(["git", *words], cwd=folder, check=True, timeout=30)
    return folder


CLOSING = "===== 7 passed, 1 deselected in 61.20s (0:01:01) ====="


def run_ci(folder: Path) -> subprocess.CompletedProcess[str]:
    """.ci/run as CI starts it: by bash, from elsewhere."""
    return subprocess.run(
        ["bash", folder / ".ci" / "run"], cwd="/", capture_output=True, text=True, timeout=60, check=False
    )


def test_ci_ends_with_the_closing_line_of_the_tests(tmp_path: Path) -> None:
    quickstart = "pwd; git log -1 --format=%s; echo '== 1 passed in 0.1s =='"
    folder = ci_checkout(tmp_path / "a checkout", {"test": f"echo '{CLOSING}'", "quickstart": quickstart})
    done = run_ci(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1] == CLOSING
    assert str(folder) not in done.stdout  # the quickstart ran in a clone
    assert not [path for path in Path("/var/tmp").glob("hpc-train-ci-*") if str(path) in done.stdout]


@pytest.mark.parametrize(
    "tools",
    [
        {"test": f"echo '{CLOSING}'; exit 1", "quickstart": "exit 0"},
        {"test": f"echo '{CLOSING}'", "quickstart": "exit 3"},
        {"test": f"echo '{CLOSING}'"},
        {"test": "exit 0", "quickstart": "exit 0"},  # no test ran, whatever the exit code says
    ],
    ids=["tests fail", "quickstart fails", "quickstart is missing", "no closing line"],
)
def test_ci_fails_when_a_part_fails(tmp_path: Path, tools: dict[str, str]) -> None:
    assert run_ci(ci_checkout(tmp_path, tools)).returncode != 0
