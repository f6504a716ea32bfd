"""`hpc-train run`: what srun or mpirun starts, once a rank.

Order matters here: signals are held back first, then the rank learns who it is, sets its environment, forks, and only
the program's process goes on to import anything heavy. Standard library only.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from hpc_train.errors import HpcTrainError, SpecError
from hpc_train.files import read_json, write_atomic
from hpc_train.launch.failure import classify_exception, describe_exception
from hpc_train.launch.grace import outlive_first_sigterm
from hpc_train.launch.guard import InProcess, command_to_execute, parse_python_command, run_guarded
from hpc_train.launch.identity import Identity, find_identity, guess_rank
from hpc_train.launch.kernel import tie_to_parent
from hpc_train.launch.monitor import Monitor, block_signals, unblock_signals
from hpc_train.launch.output import write_to_node_log
from hpc_train.launch.page import RUNNING, Page, attach_page
from hpc_train.launch.peers import Peers
from hpc_train.launch.rendezvous import join_rendezvous, keep_store, start_store_process, torch_is_installed
from hpc_train.launch.sampler import start_sampler
from hpc_train.launch.verdict import Limits
from hpc_train.run.layout import LAUNCH_FORMAT, LAUNCH_VERSION, AttemptDir, RunDir
from hpc_train.run.marks import ExitMark, class_of_code, write_mark

__all__ = ["main", "set_environment"]

ABORT_DELAY_S = 2  # whole seconds: Open MPI reads no others


@dataclass(frozen=True)
class _Start:
    """What a rank starts with: the submission's launch record, who it is, and where it writes."""

    launch: dict[str, Any]
    identity: Identity
    attempt: AttemptDir
    program: InProcess | None

    @property
    def interfaces(self) -> tuple[str, ...]:
        return tuple(self.launch.get("interfaces", ()))

    @property
    def preempt_grace_s(self) -> float:
        return float(self.launch.get("preempt_grace_s") or 0)

    @property
    def wants_rendezvous(self) -> bool:
        return self.launch["rendezvous"] == "torch" and torch_is_installed()


def main(argv: list[str]) -> int:
    """Run one rank. `argv`: RUN --submission K --attempt N. Returns the exit code for the launcher."""
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # inherited by the program: no handler yet must not mean death
    block_signals()
    run = RunDir(Path(argv[0]))
    submission, number = int(argv[argv.index("--submission") + 1]), int(argv[argv.index("--attempt") + 1])
    attempt = run.attempt(number)
    node = socket.gethostname()
    try:
        start = _prepare(run, submission, attempt, node)
        write_atomic(attempt.ready / str(start.identity.rank), node, durable=False)
    except (SpecError, OSError, ValueError, KeyError, TypeError) as error:
        return _refuse(attempt, node, error)
    page = Page()
    size = start.identity.size
    limits = Limits(
        float(start.launch["hang_timeout_s"]), poll_s=max(1.0, size / 256), preempt_grace_s=start.preempt_grace_s
    )
    is_guarded = start.program is not None
    monitor = Monitor(
        attempt,
        start.identity,
        page,
        node=node,
        limits=limits,
        is_guarded=is_guarded,
        relays_stop=bool(start.launch.get("relays_stop")),
    )
    store = _store_process(start)
    parent = os.getpid()
    page.watch()  # before the fork: a program can end before this process runs on
    child = os.fork()
    if child == 0:
        return _program(start, page, parent)
    code = monitor.run(child, spared=None if store is None else store.pid)
    if store is not None and store.stdin is not None:
        store.stdin.close()
    return code


def _prepare(run: RunDir, submission: int, attempt: AttemptDir, node: str) -> _Start:
    """Raises: SpecError if the launcher did not start what was declared; OSError, ValueError, KeyError, TypeError."""
    launch = _read_launch(run.submission(submission).launch)
    if launch["launcher"] == "mpirun":  # srun lets each node write its log by itself
        write_to_node_log(attempt, node)
    identity = find_identity(launch["launcher"], launch["num_ranks"], launch["ranks_per_node"], os.environ)
    set_environment(launch, identity, run, attempt)
    return _Start(launch, identity, attempt, parse_python_command(launch["command"], launch["python"]))


def _read_launch(path: Path) -> dict[str, Any]:
    launch: dict[str, Any] = read_json(path)
    if (launch.get("format"), launch.get("version")) != (LAUNCH_FORMAT, LAUNCH_VERSION):
        raise SpecError(
            f"{path}: format {launch.get('format')!r}, version {launch.get('version')!r}; the hpc-train of this node "
            f"reads {LAUNCH_FORMAT!r}, version {LAUNCH_VERSION}: use the one that submitted the run"
        )
    return launch


def _refuse(attempt: AttemptDir, node: str, error: Exception) -> int:
    if isinstance(error, SpecError):
        failure, code, cause = "launch", 78, str(error)
    else:
        failure, code = classify_exception(error)
        cause = f"this rank could not start: {describe_exception(error)}"
        if failure == "program":  # a record that is missing or damaged
            failure, code = "io", 74
    rank = guess_rank(os.environ)
    mark = ExitMark(writer=rank, rank=rank, node=node, failure=failure, cause=cause, code=code, phase="launch")
    with contextlib.suppress(OSError):
        write_mark(attempt, mark)
    print(f"hpc-train: rank {rank} on {node} failed: {failure}: {cause}", file=sys.stderr)
    return code


def set_environment(launch: dict[str, Any], identity: Identity, run: RunDir, attempt: AttemptDir) -> None:
    """Set torchrun's variables, our own and the site's templates of this rank in os.environ."""
    values = {
        "RANK": identity.rank,
        "WORLD_SIZE": identity.size,
        "LOCAL_RANK": identity.local_rank,
        "LOCAL_WORLD_SIZE": identity.local_size,
        "GROUP_RANK": identity.node_rank,
        "GROUP_WORLD_SIZE": identity.num_nodes,
        "ROLE_RANK": identity.rank,
        "ROLE_WORLD_SIZE": identity.size,
        "ROLE_NAME": "default",
        # As torchrun's: the number of this start, how many more may follow the first, a name that all starts share
        # (programs group their logs by it), and where a program under @record writes why it failed. Not
        # TORCHELASTIC_SIGNALS_TO_HANDLE: that is a setting of torchrun's agent.
        "TORCHELASTIC_RESTART_COUNT": attempt.number,
        "TORCHELASTIC_MAX_RESTARTS": max(int(launch["max_attempts"]) - 1, attempt.number),
        "TORCHELASTIC_RUN_ID": run.name,
        "TORCHELASTIC_ERROR_FILE": attempt.error_file(identity.rank),
        "HPC_TRAIN_RUN_DIR": run.path,
        "HPC_TRAIN_ATTEMPT": attempt.number,
        "HPC_TRAIN_MPI": launch["mpi"],
        "HPC_TRAIN_MPI_FLAVOUR": launch.get("mpi_flavour", ""),
        "PYTHONUNBUFFERED": 1,  # for what the program starts; its own interpreter was started with -u
    }
    # OpenMP takes all cores by default, in every rank.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, int(launch.get("cpus_per_rank") or 1))))
    os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1")  # as torchrun does
    # Where a rank is killed, Open MPI's others abort, and Slurm's PMIx then kills all monitors within 15 ms of the
    # death, in one of seven cases before even one could say who had died. So an abort waits for them.
    os.environ.setdefault("OMPI_MCA_opal_abort_delay", str(ABORT_DELAY_S))
    os.environ.update({name: str(value) for name, value in values.items()})
    names = {"rank": identity.rank, "local_rank": identity.local_rank, "node_rank": identity.node_rank}
    for name, template in launch.get("environment", {}).items():
        text = str(template)
        for key, value in names.items():
            text = text.replace("{" + key + "}", str(value))
        os.environ[name] = text


def _store_process(start: _Start) -> subprocess.Popen[bytes] | None:
    if start.program is not None or start.identity.rank != 0 or not start.wants_rendezvous:
        return None
    return start_store_process(start.attempt.rendezvous, start.identity, start.interfaces)


def _program(start: _Start, page: Page, parent: int) -> int:
    """The forked process: becomes the program. Returns only if that ended cleanly."""
    os.setpgid(0, 0)  # so that a script and its children can be signalled together
    # Nobody types into a job: a program that reads (an interactive Python, say) would wait for ever.
    os.dup2(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), 0)
    tie_to_parent(parent)
    attach_page(page)
    if start.program is not None and start.preempt_grace_s:
        outlive_first_sigterm()
    unblock_signals()
    try:
        os.chdir(start.launch["workdir"])
        if start.program is not None:
            start_sampler(page)
        if start.wants_rendezvous:
            phase = page.enter("rendezvous")
            join_rendezvous(
                start.attempt.rendezvous,
                start.identity,
                wanted=start.interfaces,
                hosted=start.program is None,
            )
            page.leave(phase)
            if start.identity.rank == 0 and start.program is not None and start.identity.size > 1:
                peers = Peers(start.attempt, start.identity, poll_s=1.0)
                atexit.register(keep_store, page, peers.need_no_store, os.getpid())  # runs last
        page.enter("program")
        if start.program is None:
            _execute(start, page)
    except Exception as error:  # noqa: BLE001 - the edge of the process: every end must be told
        _leave_unstarted(page, error)
    return run_guarded(start.program, page)


def _execute(start: _Start, page: Page) -> NoReturn:
    page.set_state(RUNNING)
    command = command_to_execute(start.launch["command"], start.launch["python"])
    # Python ignores these, and ignored signals are inherited: `yes | head` would not end.
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        error.filename = command[0]  # of a word that is looked for in PATH it names none
        raise


def _leave_unstarted(page: Page, error: Exception) -> NoReturn:
    if isinstance(error, FileNotFoundError | NotADirectoryError | PermissionError):
        failure, code = class_of_code(78), 78  # no such program, no such working directory
    else:
        failure, code = classify_exception(error)
    text = f"{type(error).__name__}: {error}" if isinstance(error, HpcTrainError | OSError) else ""
    page.last_words(failure, f"the program could not be started: {text or describe_exception(error)}", code)
    os._exit(code)
