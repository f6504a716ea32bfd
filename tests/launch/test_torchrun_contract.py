"""torchrun's contract: what its children find, found under the shim too, by asking both."""

from __future__ import annotations

import json
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.launch.attempts import PYTHON, Ended, make_run, run_attempt, run_command, write_program
from tests.support.ranks import mpirun_argv

pytestmark = pytest.mark.mpi


# Into a file of each rank: mpirun passes a line of more than 4 KB on in pieces, and others' may come between.
CONTRACT = "import json, os; file = open('environment-' + os.environ.get('RANK', 'none'), 'w'); "
CONTRACT += "json.dump(dict(os.environ), file); file.close()"
SAME = {
    "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_NAME",
    "ROLE_WORLD_SIZE", "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_USE_AGENT_STORE", "TORCH_NCCL_ASYNC_ERROR_HANDLING",
    "OMP_NUM_THREADS",
}  # fmt: skip
# These differ from run to run, or are limits of this run; the next test says what they mean.
OWN = {
    "MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_MAX_RESTARTS", "TORCHELASTIC_ERROR_FILE",
}  # fmt: skip
# A setting of torchrun's agent, which its children inherit by accident; and what its argparse does to a terminal.
NOT_SET = {"TORCHELASTIC_SIGNALS_TO_HANDLE", "COLUMNS", "LINES"}


def environments(directory: Path) -> dict[str, dict[str, str]]:
    """What CONTRACT wrote there, by rank."""
    found = [json.loads(path.read_text()) for path in directory.glob("environment-[0-9]*")]
    return {each["RANK"]: each for each in found}


def test_every_rank_gets_the_environment_that_torchrun_sets(tmp_path: Path) -> None:
    program = write_program(tmp_path / "env.py", CONTRACT)
    torchrun = [PYTHON, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone", str(program)]
    # What any child of this process finds, without env=: not os.environ, which does not know what loaded libraries set.
    subprocess.run([PYTHON, str(program)], cwd=tmp_path, check=True, timeout=60)
    inherited = set(json.loads((tmp_path / "environment-none").read_text()))
    subprocess.run(torchrun, cwd=tmp_path, capture_output=True, check=True, timeout=120)
    theirs = environments(tmp_path)
    run = make_run(
        tmp_path / "run", ["python", str(program)], num_ranks=2, ranks_per_node=2, mpi="none", rendezvous="torch"
    )
    run_attempt(run, launcher=mpirun_argv(2))
    ours = environments(run.path / "work")
    assert set(ours) == set(theirs) == {"0", "1"}
    for rank, expected in theirs.items():
        added = {name for name in expected if name not in inherited and not name.startswith(("_", "LC_"))}
        assert added - SAME - OWN <= NOT_SET
        assert {name: ours[rank].get(name) for name in SAME} == {name: expected.get(name) for name in SAME}
        assert all(ours[rank].get(name) and expected.get(name) for name in OWN)


def test_restarts_count_up_under_one_run_id_and_each_rank_has_its_own_error_file(tmp_path: Path) -> None:
    text = CONTRACT + "; import sys; sys.exit(0 if os.environ['HPC_TRAIN_ATTEMPT'] == '1' else 75)"
    run = make_run(tmp_path / "run", ["python", "-c", text], num_ranks=2, ranks_per_node=2, mpi="none", max_attempts=5)
    ranks: list[dict[str, str]] = []
    for _ in range(2):
        run_attempt(run, launcher=mpirun_argv(2))
        ranks += environments(run.path / "work").values()
    assert [rank["TORCHELASTIC_RESTART_COUNT"] for rank in ranks] == ["0", "0", "1", "1"]
    assert {(rank["TORCHELASTIC_RUN_ID"], rank["TORCHELASTIC_MAX_RESTARTS"]) for rank in ranks} == {(run.name, "4")}
    files = {Path(rank["TORCHELASTIC_ERROR_FILE"]) for rank in ranks}
    assert len(files) == 4 and all(file.parent.is_dir() for file in files)


RECORDS = """
from torch.distributed.elastic.multiprocessing.errors import record
@record
def main():
    raise ValueError("the learning rate is negative")
main()
"""


def test_what_a_program_behind_a_script_recorded_is_the_cause(tmp_path: Path) -> None:
    program = write_program(tmp_path / "train.py", RECORDS)
    ended = run_command(tmp_path, ["bash", "-c", f"{PYTHON} {program}; exit $?"])
    assert (ended.code, ended.decision.failure) == (1, "program")
    cause = "the program left with code 1: ValueError: the learning rate is negative"
    assert ended.decision.reason.startswith(cause)


# What torchrun's children may rely on, asked of torchrun and of us alike.
BEHAVIOUR = """
import json, os, sys, time
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

@record
def main():
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    store = dist.distributed_c10d._get_default_store()
    found = {"rank": rank, "launched": dist.is_torchelastic_launched(), "argv": sys.argv[1:]}
    if rank == 0:
        print(json.dumps(found) + "\\n", end="", flush=True)
        return  # at once: the others still use the store that this rank's node hosts
    time.sleep(2)
    store.set("late", "word")
    found["late"] = store.get("late").decode()
    print(json.dumps(found) + "\\n", end="", flush=True)

main()
"""


def test_a_program_finds_what_it_finds_under_torchrun_even_when_rank_0_ends_first(tmp_path: Path) -> None:
    program = write_program(tmp_path / "program.py", BEHAVIOUR)
    torchrun = [PYTHON, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone", str(program), "--lr", "1"]
    theirs = subprocess.run(torchrun, capture_output=True, text=True, timeout=120)
    command = ["python", str(program), "--lr", "1"]
    run = make_run(tmp_path / "run", command, num_ranks=2, ranks_per_node=2, mpi="none", rendezvous="torch")
    ended = run_attempt(run, launcher=mpirun_argv(2))
    assert ended.word == "done", ended.log
    assert sorted(findings(ended.log)) == sorted(findings(theirs.stdout))
    assert '"late": "word"' in ended.log


NESTED = """
import os, sys
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

@record
def main():
    dist.init_process_group("gloo")
    dist.barrier()
    print(f"{dist.get_rank()} of {dist.get_world_size()}\\n", end="", flush=True)
    if "fail" in sys.argv and dist.get_rank() == 1:
        raise ValueError("the data are empty")
    dist.destroy_process_group()

main()
"""


def test_a_program_may_start_torchrun_itself_and_its_error_is_told(tmp_path: Path) -> None:
    program = write_program(tmp_path / "train.py", NESTED)
    torchrun = [str(Path(PYTHON).with_name("torchrun")), "--standalone", "--nproc-per-node=2", str(program)]
    good = run_command(tmp_path, torchrun, rendezvous="torch", name="good")
    assert good.word == "done", good.log
    assert {line for line in good.log.splitlines() if " of " in line and line[0].isdigit()} == {"0 of 2", "1 of 2"}
    bad = run_command(tmp_path, [*torchrun, "fail"], rendezvous="torch", name="bad")
    assert bad.decision.reason.startswith("the program left with code 1: ValueError: the data are empty"), bad.log


def findings(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("{")]


def test_two_attempts_at_once_on_one_node_do_not_meet(tmp_path: Path) -> None:
    text = """
    import os, torch, torch.distributed as dist
    dist.init_process_group("gloo")
    x = torch.ones(1) * dist.get_rank() + float(os.environ["OFFSET"])
    dist.all_reduce(x)
    port = os.environ["MASTER_PORT"]
    dist.barrier()  # both jobs hold their ports meanwhile
    print(f"{int(x)}:{port}\\n", end="", flush=True)
    """
    program = write_program(tmp_path / "train.py", text)

    def start(number: int) -> Ended:
        changes = {"num_ranks": 2, "ranks_per_node": 2, "mpi": "none", "rendezvous": "torch"}
        environment = {"OFFSET": str(10 * number)}
        run = make_run(tmp_path / f"run{number}", ["python", str(program)], environment=environment, **changes)
        return run_attempt(run, launcher=mpirun_argv(2))

    with ThreadPoolExecutor(2) as pool:
        both = list(pool.map(start, (1, 2)))
    assert [ended.word for ended in both] == ["done", "done"]
    logs = [ended.lines for ended in both]
    sums = [{line.partition(":")[0] for line in log} for log in logs]
    ports = [{line.partition(":")[2] for line in log} for log in logs]
    assert sums == [{"21"}, {"41"}]
    assert [len(port) for port in ports] == [1, 1] and not ports[0] & ports[1]
