"""`hpc-train run`: what srun or mpirun starts, once a rank.

Order matters here: signals are held back first, then the rank learns who it is, sets its environment, forks, and only
the program's process goes on to import anything heavy. Standard library only.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from hpc_train.errors import HpcTrainError, SpecError
from hpc_train.files import read_json, write_atomic
from hpc_train.launch.guard import parse_python_command, run_guarded
from hpc_train.launch.identity import Identity, find_identity
from hpc_train.launch.monitor import Limits, Monitor
from hpc_train.launch.page import RUNNING, Page, attach_page
from hpc_train.launch.rendezvous import join_rendezvous, start_store_process, torch_is_installed
from hpc_train.launch.sampler import start_sampler
from hpc_train.run.layout import AttemptDir, RunDir
from hpc_train.run.marks import ExitMark, class_of_code, write_mark

__all__ = ["main"]

_PR_SET_PDEATHSIG = 1


def main(argv: list[str]) -> int:
    """Run one rank. `argv`: RUN --submission K --attempt N. Returns the exit code for the launcher."""
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # inherited by the program: no handler yet must not mean death
    Monitor.block_signals()
    run = RunDir(Path(argv[0]))
    submission, attempt_number = int(argv[argv.index("--submission") + 1]), int(argv[argv.index("--attempt") + 1])
    attempt = run.attempt(attempt_number)
    launch: dict[str, Any] = read_json(run.submission(submission).launch)
    node = socket.gethostname()
    try:
        identity = find_identity(launch["launcher"], launch["num_ranks"], launch["ranks_per_node"], os.environ)
    except SpecError as error:
        return _refuse(attempt, node, error)
    set_environment(launch, identity, run, attempt)
    write_atomic(attempt.ready / str(identity.rank), node)
    page = Page()
    limits = Limits(float(launch["hang_timeout_s"]), poll_s=max(1.0, identity.size / 256))
    monitor = Monitor(attempt, identity, page, node=node, limits=limits)
    store = _store_process(launch, identity, attempt)
    child = os.fork()
    if child == 0:
        return _program(launch, identity, attempt, page)
    try:
        return monitor.run(child)
    finally:
        if store is not None and store.stdin is not None:
            store.stdin.close()


def _refuse(attempt: AttemptDir, node: str, error: SpecError) -> int:
    rank = next((int(os.environ[n]) for n in ("SLURM_PROCID", "PMIX_RANK") if os.environ.get(n, "").isdecimal()), 0)
    mark = ExitMark(writer=rank, rank=rank, node=node, failure="launch", cause=str(error), code=78, phase="launch")
    write_mark(attempt, mark)
    print(f"hpc-train: rank {rank} on {node} failed: launch: {error}", file=sys.stderr)
    return 78


def set_environment(launch: dict[str, Any], identity: Identity, run: RunDir, attempt: AttemptDir) -> None:
    """Set torchrun's variables, our own and the site's templates of this rank in os.environ."""
    values = {
        "RANK": identity.rank,
        "WORLD_SIZE": identity.size,
        "LOCAL_RANK": identity.local_rank,
        "LOCAL_WORLD_SIZE": identity.local_size,
        "GROUP_RANK": identity.node_rank,
        "GROUP_WORLD_SIZE": -(-identity.size // identity.local_size),
        "ROLE_RANK": identity.rank,
        "ROLE_WORLD_SIZE": identity.size,
        "ROLE_NAME": "default",
        "TORCHELASTIC_MAX_RESTARTS": 0,
        "TORCHELASTIC_RUN_ID": f"{run.name}-{attempt.number}",
        "HPC_TRAIN_RUN_DIR": run.path,
        "HPC_TRAIN_ATTEMPT": attempt.number,
        "HPC_TRAIN_MPI": launch["mpi"],
        "PYTHONUNBUFFERED": 1,
    }
    # The signal path interrupts no system call of torch's: but OpenMP threads per rank default to all cores.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, int(launch.get("cpus_per_rank") or 1))))
    os.environ.update({name: str(value) for name, value in values.items()})
    names = {"rank": identity.rank, "local_rank": identity.local_rank, "node_rank": identity.node_rank}
    for name, template in launch.get("environment", {}).items():
        text = str(template)
        for key, value in names.items():
            text = text.replace("{" + key + "}", str(value))
        os.environ[name] = text


def _store_process(launch: dict[str, Any], identity: Identity, attempt: AttemptDir) -> Any:
    is_ours = parse_python_command(launch["command"], launch["python"]) is not None
    wants_store = launch["rendezvous"] == "torch" and identity.rank == 0 and torch_is_installed()
    if is_ours or not wants_store:
        return None
    return start_store_process(attempt.rendezvous, identity, tuple(launch.get("interfaces", ())))


def _program(launch: dict[str, Any], identity: Identity, attempt: AttemptDir, page: Page) -> int:
    os.setpgid(0, 0)  # so that the monitor can end everything that the program leaves behind
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    Monitor.unblock_signals()
    os.chdir(launch["workdir"])
    program = parse_python_command(launch["command"], launch["python"])
    store = None
    try:
        if launch["rendezvous"] == "torch" and torch_is_installed():
            store = join_rendezvous(
                attempt.rendezvous,
                identity,
                wanted=tuple(launch.get("interfaces", ())),
                hosted=program is None,
                key=str(attempt.number),
            )
        if program is None:
            page.set_state(RUNNING)
            page.enter("program")
            os.execvp(launch["command"][0], launch["command"])
    except (HpcTrainError, OSError) as error:
        code = error.exit_code if isinstance(error, HpcTrainError) else 78
        page.last_words(class_of_code(code), f"{type(error).__name__}: {error}")
        os._exit(code)
    attach_page(page)
    start_sampler(page)
    page.enter("program")
    code = run_guarded(program, page)
    del store
    return code
