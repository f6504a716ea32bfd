"""The options of a job as sbatch's parser reads them; tests/slurm asks sbatch itself."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_train.errors import SpecError
from hpc_train.run.layout import RunDir
from hpc_train.scheduler.directives import directive, make_directives, output_pattern, submission_token
from tests.scheduler.making import load, plan_of

SITE = """
extends = "slurm"
always_directives = ["--network=single_node_vni", "--hint=nomultithread"]
[resources]
gpus_per_node = 8
cores_per_node = 64
gpu_request = "gres_typed"
gpu_type = "a100"
[[queues]]
name = "gpu"
max_walltime = "1-0"
requeue = false
"""


def unquote(text: str) -> str:
    """What sbatch's parser makes of a value: quotes and backslashes are taken off."""
    out, quote, chars = "", "", iter(text)
    for char in chars:
        if char == "\\":
            out += next(chars)
        elif quote:
            quote, out = ("", out) if char == quote else (quote, out + char)
        elif char in "\"'":
            quote = char
        else:
            assert not char.isspace() and char != "#", "ends the value, and what follows is lost"
            out += char
    assert not quote
    return out


@pytest.mark.parametrize(
    ("value", "line"),
    [
        ("train", "--job-name=train"),
        ("a b", '--job-name="a b"'),  # nextflow-io/nextflow#218: a backslash does not hold a blank
        ("it's", '--job-name="it\'s"'),
        ('say "x"', r'--job-name="say \"x\""'),
        ("back\\slash", r'--job-name="back\\slash"'),
        ("job (1) *#2", '--job-name="job (1) *#2"'),  # gc3pie/gc3pie#465
        ("-x", "--job-name=-x"),
        ("$HOME `id` ;", '--job-name="$HOME `id` ;"'),
        ("", '--job-name=""'),
        ("größe", '--job-name="größe"'),
    ],
)
def test_a_value_is_quoted_for_sbatch_not_for_a_shell(value: str, line: str) -> None:
    assert directive("job-name", value) == line


@given(st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]), max_size=60))
def test_the_parser_gives_back_what_was_written(value: str) -> None:
    assert unquote(directive("comment", value).removeprefix("--comment=")) == value


@pytest.mark.parametrize("value", ["one\n#SBATCH --nodes=99", "a\rb", "tab\t", "esc\x1b[2J", "line\u2028separator"])
def test_a_value_cannot_become_a_line_of_its_own(value: str) -> None:
    with pytest.raises(SpecError, match="--comment"):
        directive("comment", value)


@pytest.mark.parametrize("word", ["hetjob", "packjob"])
def test_a_word_that_sbatch_takes_for_a_separator_is_refused_even_in_a_path(word: str) -> None:
    with pytest.raises(SpecError, match=word):  # esm-tools/esm_tools#933
        directive("output", f"/scratch/{word}/log")


def test_percent_signs_in_a_path_are_no_patterns() -> None:
    assert output_pattern("/runs/50%/j%j.log") == "/runs/50%%/j%%j.log"


def test_a_backslash_in_the_run_root_is_refused() -> None:
    with pytest.raises(SpecError, match="backslash"):
        output_pattern("/runs/a\\b/log")


def lines_of(tmp_path: Path, job: str, site: str = SITE) -> list[str]:
    loaded = load(tmp_path, f'{job}\n[program]\ncommand = ["python", "t.py"]\n', site=site)
    run = RunDir(Path("/runs/r"))
    plan = plan_of(loaded, run, python="python")
    token = submission_token(run, run.submission(0))
    return make_directives(plan.job, plan.site, plan.placement, token=token, log="/runs/r/batch.log")


def test_every_request_has_its_line(tmp_path: Path) -> None:
    job = """[job]
name = "big one"
account = "p_1"
queue = "gpu"
qos = "high"
constraint = "gpu&hbm80g"
reservation = "maint 1"
licenses = "fs:2"
walltime = "90"
nodes = 2
ranks_per_node = 4
gpus_per_rank = 1
memory = "480G"
exclude = "n1,n2,n7"
extra_directives = ["--switches=1@300", "--mail-user=a b"]
"""
    assert lines_of(tmp_path, job) == [
        '--job-name="big one"',
        "--comment=hpc-train:r/00",
        "--output=/runs/r/batch.log",
        "--open-mode=append",
        "--account=p_1",
        "--partition=gpu",
        "--qos=high",
        "--constraint=gpu&hbm80g",
        '--reservation="maint 1"',
        "--licenses=fs:2",
        "--exclude=n[1-2,7]",
        "--nodes=2",
        "--ntasks-per-node=4",
        "--cpus-per-task=8",
        "--gres=gpu:a100:4",
        "--mem=503316480K",
        "--time=0-01:30:00",
        "--signal=B:USR2@300",
        "--no-requeue",
        "--network=single_node_vni",
        "--hint=nomultithread",
        "--switches=1@300",
        '--mail-user="a b"',
    ]


def test_what_is_not_asked_has_no_line(tmp_path: Path) -> None:
    lines = lines_of(tmp_path, "[job]\n", 'extends = "slurm"\n')
    # dask/dask-jobqueue#238: sites refuse an unasked --mem; no time limit is ours to invent
    assert [line.partition("=")[0] for line in lines] == [
        "--job-name", "--comment", "--output", "--open-mode", "--nodes", "--ntasks-per-node", "--cpus-per-task",
        "--requeue",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("request_kind", "line"),
    [("gpus_per_node", "--gpus-per-node=2"), ("gres", "--gres=gpu:2"), ("none", None)],
)
def test_gpus_are_asked_for_as_the_site_wants_it(tmp_path: Path, request_kind: str, line: str | None) -> None:
    site = f'extends = "slurm"\n[resources]\ngpu_request = "{request_kind}"\n'
    lines = lines_of(tmp_path, "[job]\ngpus_per_rank = 2\n", site)
    assert [each for each in lines if "gpu" in each] == ([line] if line else [])


@pytest.mark.parametrize(("memory", "line"), [("0", "--mem=0"), ("1K", "--mem=1K"), ("2T", "--mem=2147483648K")])
def test_memory_is_a_whole_number_for_slurm(tmp_path: Path, memory: str, line: str) -> None:
    assert line in lines_of(tmp_path, f'[job]\nmemory = "{memory}"\n')


def test_no_limit_is_asked_as_such_and_brings_no_warning(tmp_path: Path) -> None:
    lines = lines_of(tmp_path, '[job]\nwalltime = "UNLIMITED"\n', 'extends = "slurm"\n')
    assert "--time=UNLIMITED" in lines
    assert not [line for line in lines if line.startswith("--signal")]
