"""A job is read as written, from the place that wins, or refused in one line that says where."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_train.errors import SpecError, UsageError
from hpc_train.job.loader import job_from_json, job_to_json, load_job
from hpc_train.job.spec import EnvSection, JobSection, JobSpec, ProgramSection

WriteJob = Callable[..., Path]


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["python", "-m", "pkg.mod", "--data", "x.py"], "mod"),
        (["python3.11", "-u", "-m", "mod"], "mod"),
        (["python", "train.py", "-m", "pkg.mod"], "train"),
        (["python", "-c", "pass", "-m", "x"], "python"),
        (["python", "-m"], "python"),
        (["env", "A=1", "python", "sub/train.py"], "train"),
    ],
)
def test_a_run_without_a_name_is_named_after_its_program(
    command: list[str], name: str, environ: dict[str, str]
) -> None:
    assert load_job(None, {"program.command": command}, environ).spec.name == name


def test_a_command_alone_is_a_job(environ: dict[str, str]) -> None:
    command = ("python", "train.py", "--lr", "1e-3")
    flags = {"job.nodes": 2, "job.ranks_per_node": 2, "program.command": command, "job.site": "slurm", "env.set": {}}
    loaded = load_job(None, flags, environ)
    assert loaded.spec.program.command == command
    assert (loaded.spec.job.nodes, loaded.spec.job.ranks_per_node) == (2, 2)
    assert loaded.origins["job.nodes"] == "flag --nodes"
    assert loaded.origins["program.command"] == "command line"
    assert loaded.origins["recovery.max_failures"] == "default"
    assert loaded.spec.name == "train"


def test_precedence_is_flag_file_variable_config_site_default(environ: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "sites").mkdir()
    site = tmp_path / "sites/alpine.toml"
    site.write_text('extends = "slurm"\n[defaults]\nnodes = 6\nqueue = "gpu"\nwalltime = "1-0"\n')
    config = tmp_path / "home/.config/hpc-train/config.toml"
    config.parent.mkdir(parents=True)
    config.write_text("[job]\nnodes = 5\n")
    job = tmp_path / "job.toml"
    job.write_text('[job]\nsite = "alpine"\nnodes = 3\n[program]\ncommand = ["a"]\n')
    for path in (site, config, job):
        path.chmod(0o600)
    environ |= {"HPC_TRAIN_SITES": str(site.parent), "HPC_TRAIN_JOB_NODES": "4"}
    flags: dict[str, Any] = {"job.nodes": 2}

    def won() -> tuple[int, str]:
        loaded = load_job(job, flags, environ)
        return loaded.spec.job.nodes, loaded.origins["job.nodes"]

    assert won() == (2, "flag --nodes")
    flags["job.nodes"] = None
    assert won() == (3, f"{job}: [job].nodes")
    job.write_text('[job]\nsite = "alpine"\n[program]\ncommand = ["a"]\n')
    assert won() == (4, "env HPC_TRAIN_JOB_NODES")
    del environ["HPC_TRAIN_JOB_NODES"]
    assert won() == (5, f"{config}: [job].nodes")
    config.unlink()
    assert won() == (6, f"site alpine ({site}): [defaults].nodes")
    assert load_job(job, flags, environ).spec.job.queue == "gpu"
    job.write_text('[program]\ncommand = ["a"]\n')
    assert won() == (1, "default")


def test_variables_of_env_set_win_one_by_one(environ: dict[str, str], write_job: WriteJob) -> None:
    path = write_job('[env.set]\nA = "file"\nB = "file"\n')
    environ["HPC_TRAIN_ENV_SET"] = '{B = "variable", C = "variable"}'
    loaded = load_job(path, {"env.set": {"A": "flag"}}, environ)
    assert loaded.spec.env.set == {"A": "flag", "B": "file", "C": "variable"}
    assert loaded.origins["env.set.B"] == f"{path}: [env.set].B"


def test_venv_and_python_put_each_other_out(environ: dict[str, str], write_job: WriteJob) -> None:
    path = write_job('[env]\nvenv = "envs/a"\n')
    assert load_job(path, {}, environ, directory="/project").python == Path("/project/envs/a/bin/python")
    loaded = load_job(path, {"env.python": "/opt/python"}, environ)
    assert (loaded.spec.env.venv, loaded.python) == (None, Path("/opt/python"))
    path = write_job('[env]\nvenv = "a"\npython = "b"\n')
    with pytest.raises(SpecError, match="exclude each other"):
        load_job(path, {}, environ)


def test_relative_paths_start_where_submit_was_typed(environ: dict[str, str], write_job: WriteJob) -> None:
    path = write_job('[job]\nrun_root = "../my runs"\n[program]\ncommand = ["a"]\nworkdir = "~nobody-here/x"\n')
    loaded = load_job(path, {}, environ, directory="/project/code")
    assert loaded.run_root == Path("/project/my runs")
    assert loaded.workdir == Path("/project/code/~nobody-here/x")
    assert loaded.spec.job.run_root == "../my runs"


NASTY = [
    "a,b",
    "a b $HOME",
    "`id`",
    "$(id)",
    "lr=1e-3; echo",
    'it\'s "q"',
    "100%",
    "../..",
    "ü漢字🙂",
    "\\n",
    "",
    "#x",
    "-n",
    "&|<>",
]


@pytest.mark.parametrize("text", NASTY)
def test_every_other_character_arrives_intact(text: str, environ: dict[str, str], write_job: WriteJob) -> None:
    quoted = json.dumps(text, ensure_ascii=False)  # a JSON text is a TOML text
    path = write_job(f"[env.set]\nA = {quoted}\n[program]\ncommand = ['p', {quoted}]\nsetup = [{quoted}]\n")
    spec = load_job(path, {}, environ).spec
    assert spec.env.set["A"] == spec.program.command[1] == spec.program.setup[0] == text
    assert job_from_json(job_to_json(spec)) == spec


BROKEN = [
    ("[job]\nnodez = 2\n", r"\[job\]\.nodez: unknown key; did you mean 'nodes'\? allowed: name, site, account"),
    ('[job]\ntime = "2:00"\n', r"\[job\]\.time: unknown key; did you mean 'walltime'\? "),
    ('[job]\npartition = "gpu"\n', r"\[job\]\.partition: unknown key; did you mean 'queue'\? "),
    ("[job]\nntasks-per-node = 2\n", "unknown key; did you mean 'ranks_per_node'\\? "),
    ("[program]\ncpus_per_task = 2\n", "cpus_per_task: unknown key; (did you mean '(?!cpus_per_rank)|allowed)"),
    ("[jobs]\nnodes = 2\n", "jobs: unknown key; did you mean 'job'"),
    ("[resources]\ncolour = 2\n", "resources: unknown key; allowed: job, env, program, data, recovery"),
    ("job = 3\n", "job: must be a table, not an integer"),
    ("[job]\nnodes = '2'\n", r"\[job\]\.nodes = '2': expected an integer, got a text"),
    ("[job]\nnodes = 0\n", r"\[job\]\.nodes = 0: expected an integer >= 1"),
    ("[job]\nnodes = -1\n", ">= 1"),
    ("[job]\nnodes = true\n", "got true or false"),
    ("[job]\nnodes = 2.0\n", "expected an integer"),
    ("[job]\nnodes = 99999999999999999999\n", "expected an integer"),
    ("[job]\ngpus_per_rank = -1\n", ">= 0"),
    ("[job]\nwalltime = 90\n", "expected a text"),
    ("[job]\nwalltime = '1.5h'\n", r"\[job\]\.walltime: wall time '1.5h' is not understood; write"),
    ("[job]\nmemory = '4GiB'\n", r"\[job\]\.memory: memory '4GiB'"),
    ("[job]\naccount = ''\n", "is empty"),
    ('[job]\nname = "a\\nb"\n', "control characters"),
    ('[job]\ncomment = "x"\n', "unknown key; did you mean 'account'|unknown key"),
    ("[job]\nname = 'runs/hetjob-1'\n", "separator of jobs"),
    ('[env.set]\nA = "a\\u0000"\n', "control characters"),
    ('[env.set]\nA = "a\\u2028b"\n', "control characters"),
    ("[env.set]\nA = 1\n", r"\[env\.set\]\.A: expected a text"),
    ("[env.set]\n'A-B' = '1'\n", "not a variable's name"),
    ("[env.set]\nHPC_TRAIN_X = '1'\n", "set by hpc-train itself"),
    ("[env]\npass = ['A=1']\n", "only names"),
    ("[env]\nmodules = ['a b']\n", "one module name"),
    ("[env]\nmodules = 'a'\n", "expected a list"),
    ("[data]\npath = ['']\n", "must be a path"),
    ("[recovery]\nhang_timeout = '20'\n", "duration '20'"),
    ("[recovery]\nhang_timeout = '0s'\n", "1 to"),
    ("[recovery]\nstop_lead = '1d'\n", "1 to 65535"),
    ("[recovery]\nmax_attempts = 0\n", ">= 1"),
    ("[recovery]\nrequeue = 'yes'\n", "expected true or false"),
    ("[program]\ncommand = []\n", r"\[program\]\.command"),
    ("[program]\ncommand = ['']\n", "is empty"),
    ("[program]\ncommand = 'python train.py'\n", "expected a list"),
    ("[program]\ncommand = ['a', 1]\n", "expected a text, got an integer"),
    ("[program]\nsetup = []\n", r"\[program\].command is missing"),
    ("[program]\ncommand = ['a']\nrendezvous = 'gloo'\n", "one of torch, none is allowed"),
    ("[program]\ncommand = ['a']\nsetup = ['''a\nb''']\n", "control characters"),
    ("[job\n", "not a TOML file"),
    ("[job]\nwalltime = 2:00:00 # two hours\n", 'line 2, column 13.; a text takes quotes: walltime = "…"$'),
    ("[job]\nname = train\n", 'line 2, column 8.; a text takes quotes: name = "…"$'),
    ("[job]\nwalltime = 02:00:00\n", "expected a text, got a time of day: a text takes quotes"),
    ("[job]\nname = 'a' b\n", r"column 12\)$"),
    ("[job]\nnodes = 1\nnodes = 2\n", "not a TOML file"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), BROKEN)
def test_a_mistake_gives_one_line_with_file_and_key(
    text: str, message: str, environ: dict[str, str], write_job: WriteJob
) -> None:
    path = write_job(text)
    with pytest.raises(SpecError, match=message) as caught:
        load_job(path, {}, environ)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == 78


@pytest.mark.parametrize(
    ("encoding", "newline"), [("utf-8-sig", "\n"), ("utf-8-sig", "\r\n"), ("utf-8", "\r\n"), ("utf-16", "\r\n")]
)
def test_a_file_of_an_editor_of_another_system(
    environ: dict[str, str], write_job: WriteJob, encoding: str, newline: str
) -> None:
    path = write_job("")
    path.write_bytes('[program]\ncommand = ["python", "prög.py"]\n'.replace("\n", newline).encode(encoding))
    if encoding == "utf-16":
        with pytest.raises(SpecError, match="it is UTF-16, and TOML is UTF-8; save it as that"):
            load_job(path, {}, environ)
    else:
        assert load_job(path, {}, environ).spec.program.command == ("python", "prög.py")


@pytest.mark.timeout(20)
def test_what_is_no_file_is_refused(environ: dict[str, str], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "large").write_text("#" * (300 << 10))
    (tmp_path / "loop").symlink_to("loop")
    for name, message in [
        ("absent", "no such file"), ("", "not a regular file"), ("pipe", "not a regular file"),
        ("binary", "not a TOML file"),
        ("large", "larger than"), ("loop", "cannot be read"), ("a\nb", "no such file"), ("a\0b", "cannot be read"),
        ("x" * 300, "cannot be read"),
    ]:  # fmt: skip
        with pytest.raises(SpecError, match=message) as caught:
            load_job(tmp_path / name, {}, environ)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "wandb_api_key", "DB_PASSWORD", "APIKEY"])
def test_a_secret_is_refused_and_not_shown(name: str, environ: dict[str, str], write_job: WriteJob) -> None:
    path = write_job(f'[env.set]\n{name} = "s3cr3t\\n"\n')
    for attempt in (path, None):
        flags = {} if attempt else {"env.set": {name: "s3cr3t"}, "program.command": ["a"]}
        with pytest.raises(SpecError, match=r"\[env\].pass") as caught:
            load_job(attempt, flags, environ)
        assert "s3cr3t" not in str(caught.value)


def test_names_that_only_resemble_secrets_are_free(environ: dict[str, str], write_job: WriteJob) -> None:
    path = write_job('[env.set]\nTOKENIZERS_PARALLELISM = "false"\nKEYBOARD = "x"\n[env]\npass = ["HF_TOKEN"]\n')
    assert load_job(path, {}, environ).spec.env.pass_names == ("HF_TOKEN",)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"job.nodes": 0}, r"--nodes = 0: expected an integer >= 1"),
        ({"job.walltime": "1h"}, r"--walltime: wall time '1h'"),
        ({"env.set": {"A": "a\nb"}}, r"--set A: control characters"),
        ({"env.set": {"A-B": "a"}}, r"not a variable's name"),
        ({"job.name": "\udcff"}, "not UTF-8"),
        ({"job.extra_directives": ("--nodes=3",)}, r"--extra-directives = '--nodes=3': --nodes is not allowed"),
    ],
)
def test_a_bad_flag_is_named(flags: dict[str, Any], message: str, environ: dict[str, str]) -> None:
    with pytest.raises(SpecError, match=message):
        load_job(None, {"program.command": ["a"], **flags}, environ)


def test_a_flag_that_no_key_has_is_a_usage_error(environ: dict[str, str]) -> None:
    with pytest.raises(UsageError, match=r"job\.nodez"):
        load_job(None, {"job.nodez": 1}, environ)


@pytest.mark.parametrize(
    ("variable", "text", "message"),
    [
        ("HPC_TRAIN_JOB_NODEZ", "1", "did you mean 'HPC_TRAIN_JOB_NODES'"),
        ("HPC_TRAIN_JOB_NODES", "two", "write the value as in a job file"),
        ("HPC_TRAIN_JOB_NODES", "2\nx = 3", "write the value as in a job file"),
        ("HPC_TRAIN_JOB_NODES", "0", "HPC_TRAIN_JOB_NODES = 0: expected an integer >= 1"),
        ("HPC_TRAIN_JOB_WALLTIME", "1h", "HPC_TRAIN_JOB_WALLTIME: wall time"),
        ("HPC_TRAIN_ENV_SET", '{A = "x', "HPC_TRAIN_ENV_SET: is not understood"),
    ],
)
def test_a_bad_variable_is_named(variable: str, text: str, message: str, environ: dict[str, str]) -> None:
    with pytest.raises(SpecError, match=message):
        load_job(None, {"program.command": ["a"]}, {**environ, variable: text})


def test_variables_of_other_rooms_are_left_alone(environ: dict[str, str]) -> None:
    environ |= {"HPC_TRAIN_RUN_DIR": "/x", "HPC_TRAIN_ATTEMPT": "3", "HPC_TRAIN_RECOVERY_REQUEUE": "false"}
    assert not load_job(None, {"program.command": ["a"]}, environ).spec.recovery.requeue


def test_the_user_config_holds_no_program_and_is_trusted_like_a_script(environ: dict[str, str], tmp_path: Path) -> None:
    config = tmp_path / "xdg/hpc-train/config.toml"
    config.parent.mkdir(parents=True)
    environ["XDG_CONFIG_HOME"] = str(tmp_path / "xdg")
    config.write_text('[program]\ncommand = ["x"]\n')
    config.chmod(0o600)
    with pytest.raises(SpecError, match="belongs into a job file"):
        load_job(None, {"program.command": ["a"]}, environ)
    config.write_text('[job]\naccount = "abc"\n')
    config.chmod(0o666)
    with pytest.raises(SpecError, match="chmod go-w"):
        load_job(None, {"program.command": ["a"]}, environ)


texts = st.text(st.characters(codec="utf-8", exclude_categories=("Cc", "Zl", "Zp", "Cs")), max_size=20)
names = texts.filter(lambda text: text.strip() and "hetjob" not in text and "packjob" not in text)
specs = st.builds(
    JobSpec,
    job=st.builds(JobSection, name=st.none() | names, account=st.none() | names, nodes=st.integers(1, 10_000)),
    env=st.builds(EnvSection, set=st.dictionaries(st.from_regex(r"[A-F]{1,4}", fullmatch=True), texts, max_size=3)),
    program=st.builds(
        ProgramSection, command=st.tuples(names, texts, texts), setup=st.lists(texts, max_size=2).map(tuple)
    ),
)


@given(specs)
def test_a_request_survives_json(spec: JobSpec) -> None:
    assert job_from_json(job_to_json(spec)) == spec


@pytest.mark.parametrize(
    "text",
    ["", "3", "{}", "[" * 10_000, '{"format": "hpc-train-site", "version": 1}',
     '{"format": "hpc-train-job", "version": 9}',
     '{"format": "hpc-train-job", "version": 1}',
     '{"format": "hpc-train-job", "version": 1, "program": {"command": ["a\\nb"]}}',
     '{"format": "hpc-train-job", "version": 1, "program": {"command": ["a"]}, "job": {"nodes": 0}}'],
)  # fmt: skip
def test_other_json_is_not_taken_for_a_request(text: str) -> None:
    with pytest.raises(SpecError, match=r"^job\.json: ") as caught:
        job_from_json(text)
    assert "\n" not in str(caught.value)
