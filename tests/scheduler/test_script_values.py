"""Every value of a request is inert in bash: it arrives byte for byte, and nothing in it runs."""

from __future__ import annotations

import itertools
import json
import subprocess
from pathlib import Path

import msgspec
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from hpc_train.files import write_json
from hpc_train.job.spec import EnvSection, JobSection, JobSpec, ProgramSection
from hpc_train.run.layout import RunDir
from hpc_train.scheduler.mpi import MpiChoice
from hpc_train.scheduler.script import Plan, launch_record, render_script
from hpc_train.site.spec import Launch, Rendezvous, Scheduler, Site, SiteEnv
from hpc_train.topology.placement import plan_placement
from tests.scheduler.making import bare_environment, write_program

CANARY = "/canary"  # below the test's own directory; @ stands for it
FRAGMENTS = [
    "$(touch @)", "`touch @`", "; touch @;", "& touch @ &", "| touch @", "'; touch @; '", '"; touch @; "', "\\", "'",
    '"', " ", "  ", "#", "$HOME", "${IFS}", "%", "%j", "*", "?", "~", "{a,b}", "!", "!!", "<", ">", "(", ")", "[", "]",
    "-", "--", "=", ",", "x", "1", "é", "☃", "../", "EOF", "$", "$$", "\\n", "[recovery]", "{rank}", "{{ run }}",
    "{% if %}",
]  # fmt: skip
HOSTILE = st.lists(st.sampled_from(FRAGMENTS), min_size=1, max_size=5).map("".join)
NAME = HOSTILE.map(lambda text: text.replace("/", "_").strip(".") or "x")  # of one directory
MODULE = HOSTILE.map(lambda text: "m" + text.replace(" ", "_"))
VARIABLES = st.dictionaries(
    st.sampled_from(["A", "LR", "RUN", "PY", "DIR", "say", "code", "word", "launcher", "IFS_COPY", "early"]), HOSTILE
)

MPI = MpiChoice("", "pmix")
SITE = Site(name="s", scheduler=Scheduler(kind="slurm"), launch=Launch(launcher="srun", mpi="pmix"))
# Stands in for the interpreter: shows the environment that the ranks would get, and says that the run is over.
PYTHON = 'env -0 >"${0%/*}/environment"; printf "%s\\0" "${@:4}" >"${0%/*}/arguments"; echo "stop 0" >&3'
_numbers = itertools.count()


def run_header(directory: Path, plan_job: JobSpec, site: Site, *, run_parent: str, workdir: str) -> tuple[Path, Plan]:
    """Run a script up to `begin` under real bash; gives the stand-in's directory and the plan."""
    bin_dir = directory / "bin"
    python = write_program(bin_dir, "python", PYTHON)
    write_program(
        bin_dir, "module", f'printf "%s\\0" "$@" >>{bin_dir}/modules'
    )  # a program of that name, as a function is
    run = RunDir(directory / run_parent / "r")
    (directory / workdir).mkdir(parents=True, exist_ok=True)
    run.submission(0).path.mkdir(parents=True)
    placement = plan_placement(plan_job, site)
    plan = Plan(plan_job, site, placement, run, run.submission(0), str(python), MPI, str(directory / workdir))
    write_json(run.submission(0).launch, launch_record(plan))
    script = directory / "script"
    script.write_text(render_script(plan))
    environment = bare_environment(bin_dir, HOME="/nowhere")
    done = subprocess.run(
        ["bash", str(script)], env=environment, capture_output=True, text=True, timeout=20, cwd=directory
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return bin_dir, plan


@given(
    variables=VARIABLES, name=NAME, workdir=NAME, parent=NAME, modules=st.lists(MODULE, max_size=3), argument=HOSTILE
)
# CrayLabs/SmartSim#104, NVIDIA-NeMo/Run#556: a comma in a value of --export, shell text in an argument
@example(
    variables={"A": "x,y", "RUN": "a b $HOME"}, name="n", workdir="w", parent="p", modules=[], argument="lr=1e-3; echo"
)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_value_is_read_by_the_shell(
    tmp_path: Path,
    variables: dict[str, str],
    *,
    name: str,
    workdir: str,
    parent: str,
    modules: list[str],
    argument: str,
) -> None:
    directory = tmp_path / str(next(_numbers))
    canary = f"{directory}{CANARY}"
    variables = {key: value.replace("@", canary) for key, value in variables.items()}
    modules = [module.replace("@", canary) for module in modules]
    # a path within a name would be directories
    name, workdir, parent = (text.replace("@", "canary").replace("\\", "_") for text in (name, workdir, parent))
    job = JobSpec(
        job=JobSection(name=name),
        env=EnvSection(modules=tuple(modules), set=variables),
        program=ProgramSection(command=("python", argument), setup=('pwd -P >"$PWD_FILE"',)),
    )
    site = msgspec.structs.replace(
        SITE,
        prologue=(f"PWD_FILE={directory.parent}/pwd",),
        env=SiteEnv(modules=("first",)),
        rendezvous=Rendezvous(interfaces=("*",)),
    )
    bin_dir, plan = run_header(directory, job, site, run_parent=parent, workdir=workdir)

    seen = dict(line.split("=", 1) for line in (bin_dir / "environment").read_text().split("\0") if "=" in line)
    assert {key: seen[key] for key in variables} == variables
    assert seen["HPC_TRAIN_INTERFACES"] == "*"
    loads = (bin_dir / "modules").read_text().split("\0")[1::2]
    assert loads == ["first", *modules]
    assert (directory.parent / "pwd").read_text() == f"{(directory / workdir).resolve()}\n"
    arguments = (bin_dir / "arguments").read_text().split("\0")
    assert arguments[:3] == [str(plan.run.path), "--submission", "0"]
    assert json.loads(plan.submission.launch.read_text())["command"] == ["python", argument]
    assert not Path(canary).exists() and not (directory / "canary").exists()


def test_setup_that_uses_the_names_of_a_script_does_not_meet_ours(tmp_path: Path) -> None:
    setup = (
        "set -euf",
        "RUN=1 DIR=2 PY=3 word=4 code=5",
        "say() { exit 9; }",
        "fail() { exit 9; }",
        "IFS=a",
        "cd() { exit 9; }",
    )
    job = JobSpec(program=ProgramSection(command=("true",), setup=setup))
    bin_dir, _ = run_header(tmp_path, job, SITE, run_parent="runs", workdir="w")
    assert (bin_dir / "environment").exists()


def test_a_setup_line_that_goes_on_does_not_swallow_ours(tmp_path: Path) -> None:
    job = JobSpec(program=ProgramSection(command=("true",), setup=("export A=1 \\",)))
    bin_dir, _ = run_header(tmp_path, job, SITE, run_parent="runs", workdir="w")
    assert "A=1" in (bin_dir / "environment").read_text().split("\0")


def test_an_unbound_variable_in_setup_is_empty_as_in_any_shell(tmp_path: Path) -> None:
    # conda's and older modules' scripts use unset variables
    job = JobSpec(program=ProgramSection(command=("true",), setup=('export A="<$NOT_SET>"',)))
    bin_dir, _ = run_header(tmp_path, job, SITE, run_parent="runs", workdir="w")
    assert "A=<>" in (bin_dir / "environment").read_text().split("\0")


@pytest.mark.parametrize(
    ("setup", "failed"),
    [
        (["exprot A=1 2>/dev/null", "true"], "exprot A=1 2> /dev/null (code 127)"),
        (["cp /nonexistent . 2>/dev/null", "(exit 3)"], "cp /nonexistent . 2> /dev/null (code 1); ( exit 3 ) (code 3)"),
        (["echo 'false' >fails", "source ./fails"], "source ./fails (code 1)"),
        (["printf 'false\\ntrue\\n' >passes", "source ./passes"], ""),
        (["false || true", "! true", "if false; then :; fi", "[ -z x ] && A=1", "f() { false; true; }", "f"], ""),
        (["A=$(false; true)", "IFS=a", "trap - ERR"], ""),
    ],
)
def test_setup_lines_that_fail_are_told(tmp_path: Path, setup: list[str], failed: str) -> None:
    job = JobSpec(program=ProgramSection(command=("true",), setup=tuple(setup)))
    bin_dir, _ = run_header(tmp_path, job, SITE, run_parent="runs", workdir="w")
    assert f"HPC_TRAIN_SETUP_FAILED={failed}" in (bin_dir / "environment").read_text().split("\0")


def test_a_value_of_the_job_wins_over_the_sites_template(tmp_path: Path) -> None:
    site = msgspec.structs.replace(SITE, env=SiteEnv(set={"A": "{rank}", "B": "site"}))
    job = JobSpec(env=EnvSection(set={"B": "job"}), program=ProgramSection(command=("true",)))
    _, plan = run_header(tmp_path, job, site, run_parent="runs", workdir="w")
    assert launch_record(plan)["environment"] == {"A": "{rank}"}  # the shim sets these last


@pytest.mark.parametrize("directory", ["run", "workdir"])
def test_what_is_gone_is_said_with_a_code(tmp_path: Path, directory: str) -> None:
    job = JobSpec(program=ProgramSection(command=("true",), setup=("true",)))
    _, plan = run_header(tmp_path, job, SITE, run_parent="runs", workdir="w")
    Path(plan.run.path if directory == "run" else plan.workdir).rename(tmp_path / "moved")
    script = tmp_path / "script"
    done = subprocess.run(["bash", str(script)], env=bare_environment(), capture_output=True, text=True, timeout=20)
    assert done.returncode == {"run": 73, "workdir": 78}[directory]
    assert done.stderr.splitlines()[-1].startswith("hpc-train: ")
