"""Checks a loaded request against this machine and the site, and names the run. Reads, and writes nothing.

Apart from submitting, so that `--dry-run` refuses exactly what submitting would refuse: a mistake costs a second here
and hours in a queue.
"""

from __future__ import annotations

import difflib
import json
import os
import secrets
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from hpc_train.errors import DataError, SpecError
from hpc_train.files import slug
from hpc_train.job.loader import LoadedJob
from hpc_train.job.spec import JobSpec
from hpc_train.quantities import shown
from hpc_train.run.layout import RunDir
from hpc_train.scheduler.inner_launchers import PYTHON, find_inner_launcher, spans_nodes
from hpc_train.scheduler.mpi import MpiChoice, choose_mpi
from hpc_train.scheduler.script import Plan, render_script
from hpc_train.site.spec import Site
from hpc_train.topology.placement import plan_placement

__all__ = ["choose_launch", "is_missing", "plan_for", "plan_submission"]

MAX_RANKS_PER_CORE = 32  # each rank is two processes of Python; a hundred thousand would take the machine down
_PROBE_TIMEOUT_S = 30.0  # Python on a busy parallel file system


def plan_submission(loaded: LoadedJob) -> Plan:
    """The plan of a new run, or the first reason why it cannot run.

    Raises: SpecError with the remedy; DataError for a dataset that is not there.
    """
    name = f"{slug(loaded.spec.name)}-{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"
    return plan_for(loaded, RunDir(loaded.run_root / name), 0)


def plan_for(loaded: LoadedJob, run: RunDir, number: int, *, python: str = "", workdir: str = "") -> Plan:
    """The plan of one submission of a run, or the first reason why it cannot run.

    Args:  python, workdir: those of the submission before, for a request that names none.
    Raises: as `plan_submission`.
    """
    placement = plan_placement(loaded.spec, loaded.site.site, origins=loaded.origins)
    _check_cores(loaded)
    python = _find_python(loaded, python or sys.executable)
    place = Path(workdir) if workdir and loaded.spec.program.workdir is None else loaded.workdir
    if not place.is_dir():
        raise SpecError(f"[program].workdir = {str(place)!r}: no such directory")
    _check_names(
        (("the run directory", str(run.path)), ("the working directory", str(place)), ("[env]: Python", python))
    )
    _check_shell_lines(loaded.site.site.prologue, f"site {loaded.site.site.name!r}: prologue")
    _check_shell_lines(loaded.spec.program.setup, "[program].setup")
    _check_words(loaded.spec.program.command, place)
    _check_launcher(loaded.spec.program.command, placement.num_nodes, loaded.spec.job.ranks_per_node)
    if not loaded.spec.program.setup:  # which could make it
        _check_program(loaded.spec.program.command, python, place)
        _check_in_path(loaded, python)
    _check_data(loaded)
    plan = Plan(
        job=loaded.spec,
        site=loaded.site.site,
        placement=placement,
        run=run,
        submission=run.submission(number),
        python=python,
        mpi=choose_launch(loaded.spec, loaded.site.site, python),
        workdir=str(place),
        origins=loaded.origins,
    )
    render_script(plan)  # refuses what sbatch could not read
    return plan


def choose_launch(spec: JobSpec, site: Site, python: str) -> MpiChoice:
    """How the ranks of this job are started on this site. Raises: SpecError as `choose_mpi`."""
    brings_more = spec.program.setup or spec.env.modules or site.env.modules or site.prologue
    return choose_mpi(
        site.launch, python, may_be_completed=bool(brings_more) or "PYTHONPATH" in {**site.env.set, **spec.env.set}
    )


def _check_cores(loaded: LoadedJob) -> None:
    ranks, cores = loaded.spec.job.ranks_per_node, len(os.sched_getaffinity(0))
    if loaded.site.site.scheduler.kind == "local" and ranks > cores * MAX_RANKS_PER_CORE:
        raise SpecError(
            f"[job].ranks_per_node = {ranks}, but this machine has {cores} cores; they may be shared, but by "
            f"{cores * MAX_RANKS_PER_CORE} ranks at most ({MAX_RANKS_PER_CORE} a core): ask for fewer"
        )


def _find_python(loaded: LoadedJob, otherwise: str) -> str:
    python = str(loaded.python or otherwise)
    if not (os.path.isfile(python) and os.access(python, os.X_OK)):
        raise SpecError(f"[env]: {python} is no program that can be run; give env.venv or env.python an existing one")
    if python != sys.executable and _lacks_hpc_train(python):
        raise SpecError(
            f"[env]: {python} does not have hpc-train, and it runs the ranks; {python} -m pip install 'hpc-train[node]'"
        )
    return python


def _lacks_hpc_train(python: str) -> bool:
    # Only a clear no counts: what needs the job's modules, or another processor, cannot be asked here.
    try:
        asked = subprocess.run(
            [python, "-c", "import hpc_train"],
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PROBE_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return asked.returncode != 0 and "No module named 'hpc_train'" in asked.stderr


def _check_names(paths: Sequence[tuple[str, str]]) -> None:
    """Paths that come from the system, not from a file that was checked: the script and the records are UTF-8."""
    for what, path in paths:
        try:
            path.encode()
        except UnicodeEncodeError as error:
            raise SpecError(f"{what} {path!r}: bytes that are not UTF-8 in its name; use another directory") from error


def _check_shell_lines(lines: Sequence[str], where: str) -> None:
    """Each part of code must be complete in itself: an open quote or here-document would swallow the script's rest."""
    bash = shutil.which("bash")
    if not lines or bash is None:
        return
    text = "\n".join(lines) + "\n"
    try:
        read = subprocess.run(
            [bash, "-O", "extglob", "-n"],  # reads, runs nothing
            input=text.encode(),
            env={"LC_ALL": "C"},
            capture_output=True,
            timeout=_PROBE_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return
    if read.returncode or read.stderr:  # a here-document without an end is a mere warning
        said = " ".join(read.stderr.decode(errors="replace").split())[:300]
        raise SpecError(f"{where} is not complete shell code: {said}; close every quote, here-document and block in it")


def _check_program(command: Sequence[str], python: str, workdir: Path) -> None:
    """Refuse a script or a program given by its path that is not there."""
    head, rest = command[0], list(command[1:])
    is_python = PYTHON.fullmatch(head) is not None or head == python
    while is_python and rest and rest[0] == "-u":
        rest = rest[1:]
    if is_python and rest and not rest[0].startswith("-"):
        if not (workdir / rest[0]).exists():
            raise SpecError(
                f"[program].command: there is no {shown(rest[0])} in {workdir}; give the script's path from there, or "
                "set [program].workdir"
            )
    elif not is_python and os.sep in head:
        program = workdir / head
        if not program.is_file():
            raise SpecError(
                f"[program].command: there is no program {shown(head)} in {workdir}; give its path from there, or set "
                "[program].workdir"
            )
        if not os.access(program, os.X_OK):
            raise SpecError(f"[program].command: {program} cannot be run; chmod +x it, or name its interpreter first")


def _check_words(command: Sequence[str], workdir: Path) -> None:
    """Refuse a whole command line in one word: no shell takes it apart."""
    head = command[0]
    if len(command) > 1 or not head.strip().count(" ") or (workdir / head).is_file() or shutil.which(head):
        return
    try:
        words = json.dumps(shlex.split(head), ensure_ascii=False)
    except ValueError:  # a quote without its end
        words = json.dumps(head.split(), ensure_ascii=False)
    raise SpecError(
        f"[program].command: there is no program named {shown(head)}; write it as separate words: "
        f"`-- {' '.join(head.split())}` without quotes around it, or command = {words} in a job file"
    )


def _check_launcher(command: Sequence[str], num_nodes: int, ranks_per_node: int) -> None:
    """Refuse a launcher inside of ours that would start a training of its own in each rank, or on each node."""
    launcher = find_inner_launcher(command)
    if not launcher or num_nodes * ranks_per_node == 1 or (ranks_per_node == 1 and spans_nodes(launcher, command)):
        return
    places = f"{num_nodes} nodes" if ranks_per_node == 1 else f"{num_nodes * ranks_per_node} ranks"
    raise SpecError(
        f"[program].command: {launcher} would start a training of its own in each of the {places}; leave it out: "
        "hpc-train starts the ranks (--nodes, --ranks-per-node), and each finds what torchrun would set "
        "(docs/frameworks.md)"
    )


def _check_in_path(loaded: LoadedJob, python: str) -> None:
    """Refuse a program that this machine does not have, where it is the machine that runs the job."""
    head = loaded.spec.program.command[0]
    if loaded.site.site.scheduler.kind != "local" or not is_missing(loaded.spec, loaded.site.site, python):
        return
    near = difflib.get_close_matches(head, ["python", "python3", "torchrun"], n=1, cutoff=0.7)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise SpecError(
        f"[program].command: there is no program {shown(head)} in PATH; {hint}name one that is there, give its path, "
        "or name its interpreter first: -- python train.py"
    )


def is_missing(spec: JobSpec, site: Site, python: str) -> bool:
    """Whether a program that is given by its name alone is nowhere here, and no module or shell line may bring it."""
    head = spec.program.command[0]
    if os.sep in head or PYTHON.fullmatch(head):
        return False
    if spec.env.modules or site.env.modules or site.prologue or spec.program.setup:
        return False
    places = [spec.env.set.get("PATH", ""), os.environ.get("PATH", os.defpath), os.path.dirname(python)]
    return shutil.which(head, path=os.pathsep.join(place for place in places if place)) is None


def _check_data(loaded: LoadedJob) -> None:
    for text in loaded.spec.data.path:
        path = Path(os.path.abspath(loaded.directory / os.path.expanduser(text)))
        if not (path / "manifest.json").is_file():
            state = "holds no manifest.json: it is not a packed dataset" if path.is_dir() else "does not exist"
            raise DataError(f"[data].path = {str(path)!r} {state}; pack one with: hpc-train data pack {path} SOURCES")
