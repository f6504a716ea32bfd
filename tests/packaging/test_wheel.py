"""The package as users get it: a wheel in an environment of its own, and an editable checkout."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SHIPPED = {
    "hpc_train": "hpc_train",
    "sbatch_templates": "hpc_train/sbatch_templates",
    "site_configs": "hpc_train/site_configs",
}


def run(argv: list[str | Path], **more: str) -> str:
    """Standard output of a command that must succeed, outside of the checkout and with nothing of it on the path."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")} | more
    done = subprocess.run(
        argv,
        cwd=os.environ["XDG_STATE_HOME"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def without_caches(names: Iterable[str]) -> set[str]:
    """Names of files, byte code left out."""
    return {name for name in names if "__pycache__" not in name}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of the sources: a build writes beside them."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        if (ROOT / name).exists():
            shutil.copy(ROOT / name, source)
    for name in SHIPPED:
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", out, source])
    (built,) = out.glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bin folder of an environment that holds the wheel, and sees the dependencies of this one."""
    fresh = tmp_path_factory.mktemp("fresh")
    run([sys.executable, "-m", "venv", "--without-pip", fresh])
    python = fresh / "bin" / "python"
    run([sys.executable, "-m", "pip", "--python", python, "install", "-q", "--no-deps", "--no-index", wheel])
    (site_packages,) = fresh.glob("lib/python*/site-packages")
    # A path from a .pth file: modules are found there, but the .pth of an editable install there is not obeyed.
    (site_packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return fresh / "bin"


def test_the_wheel_holds_every_file_of_the_package(wheel: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    expected = {
        (Path(SHIPPED[top]) / path.relative_to(ROOT / top)).as_posix()
        for top in SHIPPED
        for path in (ROOT / top).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert expected - names == set()


def test_the_wheel_holds_nothing_else(wheel: Path) -> None:
    tops = {name.partition("/")[0] for name in zipfile.ZipFile(wheel).namelist()}
    assert {re.sub(r"-.*\.dist-info$", ".dist-info", top) for top in tops} == {"hpc_train", "hpc_train.dist-info"}


def test_templates_and_sites_are_found_in_an_installed_wheel(installed: Path) -> None:
    script = """
import hpc_train
from importlib.resources import files
print(hpc_train.__file__)
for package in ("sbatch_templates", "site_configs"):
    print(*(f"{package}/{file.name}" for file in files(f"hpc_train.{package}").iterdir()))
"""
    package, *names = run([installed / "python", "-c", script]).split()
    shipped = {f"{top}/{path.name}" for top in ("sbatch_templates", "site_configs") for path in (ROOT / top).iterdir()}
    assert Path(package).is_relative_to(installed.parent)
    assert without_caches(names) == without_caches(shipped)


def test_the_installed_command_shows_its_help(installed: Path) -> None:
    assert "submit" in run([installed / "hpc-train", "--help"])


def test_the_module_is_the_same_program_as_the_command(installed: Path) -> None:
    by_name = run([installed / "hpc-train", "--help"])
    by_module = run([installed / "python", "-m", "hpc_train", "--help"])
    assert by_name.split() == by_module.split()


def test_an_editable_install_finds_templates_and_sites_of_the_checkout() -> None:
    paths = run(
        [
            sys.executable,
            "-c",
            "import hpc_train.sbatch_templates as t, hpc_train.site_configs as s; print(*t.__path__, *s.__path__)",
        ]
    )
    assert paths.split() == [str(ROOT / "sbatch_templates"), str(ROOT / "site_configs")]


def test_every_public_name_of_the_library_exists() -> None:
    import hpc_train

    missing = [name for name in hpc_train.__all__ if not hasattr(hpc_train, name)]
    assert missing == []
