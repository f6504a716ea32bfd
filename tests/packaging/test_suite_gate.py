"""tests/conftest.py itself: a suite that did not run in full fails the run; suites run in their order."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
UNIT = "def test_pure(): pass\n"
MPI = "import pytest\npytestmark = pytest.mark.mpi\ndef test_ranks(): pass\n"
SKIPPED = "import pytest\n@pytest.mark.mpi\ndef test_alone(): pytest.skip('no mpirun')\n"
FULL = {"data/test_z.py": UNIT, "data/test_mpi.py": MPI, "slurm/test_a.py": UNIT, "e2e/test_a.py": UNIT}


def run_pytest(tree: Path, files: dict[str, str], *words: str, expect: str = "") -> subprocess.CompletedProcess[str]:
    """A pytest run over these tests with the project's conftest and settings."""
    for name in ("pyproject.toml", "tests/conftest.py"):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, tree / name)
    for name, text in files.items():
        path = tree / "tests" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-v", *words],
        cwd=tree,
        env={**os.environ, "HPC_TRAIN_EXPECT_SUITES": expect, "SLURM_JOB_ID": "7", "HPC_TRAIN_SITES": "/elsewhere"},
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )


def test_a_full_run_passes_and_goes_from_quick_to_slow(tmp_path: Path) -> None:
    done = run_pytest(tmp_path, FULL, expect="unit mpi slurm e2e")
    assert done.returncode == 0, done.stdout
    order = [line.split("::")[0] for line in done.stdout.splitlines() if "PASSED" in line]
    assert order == ["tests/data/test_z.py", "tests/data/test_mpi.py", "tests/slurm/test_a.py", "tests/e2e/test_a.py"]


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({"data/test_a.py": UNIT}, "no test of this suite passed"),
        ({"data/test_a.py": UNIT, "data/test_mpi.py": MPI + SKIPPED}, "1 tests of this suite were skipped"),
        ({"data/test_a.py": UNIT, "data/test_mpi.py": SKIPPED}, "no test of this suite passed"),
    ],
)
def test_an_expected_suite_that_did_not_run_fails_the_run(tmp_path: Path, files: dict[str, str], problem: str) -> None:
    done = run_pytest(tmp_path, files, expect="unit mpi")
    assert done.returncode == 1
    assert problem in done.stdout
    assert "1 error" in done.stdout.splitlines()[-1]


def test_a_module_skipped_as_a_whole_counts_as_a_skip(tmp_path: Path) -> None:
    skipped = "import pytest\npytest.skip('no slurmctld', allow_module_level=True)\n"
    done = run_pytest(tmp_path, {**FULL, "slurm/test_b.py": skipped}, expect="slurm")
    assert done.returncode == 1
    assert "1 tests of this suite were skipped" in done.stdout


@pytest.mark.parametrize(
    ("files", "code", "problem"),
    [
        (FULL, 0, ""),
        ({"slurm/test_a.py": UNIT}, 1, "no test of this suite"),
        ({**FULL, "e2e/test_b.py": SKIPPED}, 1, "1 "),
    ],
)
def test_files_that_are_spread_over_workers_are_counted_together(
    tmp_path: Path, files: dict[str, str], code: int, problem: str
) -> None:
    done = run_pytest(tmp_path, files, "-n", "2", "--dist", "loadfile", expect="unit mpi slurm e2e")
    assert done.returncode == code, done.stdout
    assert problem in done.stdout
    assert ("error" in done.stdout.splitlines()[-1]) is bool(code)


def test_each_worker_has_a_cluster_of_its_own(tmp_path: Path) -> None:
    text = "import os\ndef test_a():\n    print('<', os.environ.get('HPC_TRAIN_CLUSTER_DIR'), '>')\n"
    files = {f"slurm/test_{number}.py": text for number in range(8)}
    done = run_pytest(tmp_path, files, "-n", "2", "--dist", "loadfile", "-rP")
    said = {line for line in done.stdout.splitlines() if line.startswith("<")}
    assert len(said) == 2 and done.returncode == 0, done.stdout


def test_without_expectations_a_part_may_run_alone(tmp_path: Path) -> None:
    assert run_pytest(tmp_path, FULL, "-m", "not slurm and not e2e").returncode == 0
    assert run_pytest(tmp_path, FULL, "-m", "not slurm").stdout.splitlines()[-1].count("3 passed, 1 deselected") == 1


def test_what_a_surrounding_job_set_does_not_reach_the_tests(tmp_path: Path) -> None:
    text = (
        "import os\n"
        "def test_scrubbed(): assert not [n for n in os.environ if n.startswith(('SLURM_', 'HPC_TRAIN_SITES'))]\n"
        "def test_threads(): assert os.environ['OMP_NUM_THREADS'] == '1'\n"
        "def test_state(): assert 'pytest' in os.environ['XDG_STATE_HOME']\n"
    )
    done = run_pytest(tmp_path, {"data/test_a.py": text})
    assert done.returncode == 0, done.stdout


def test_a_warning_is_an_error(tmp_path: Path) -> None:
    text = "import warnings\ndef test_old(): warnings.warn('gone soon', DeprecationWarning)\n"
    assert run_pytest(tmp_path, {"data/test_a.py": text}).returncode == 1
