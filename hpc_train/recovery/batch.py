"""`hpc-train begin` and `hpc-train decide`: what the batch shell asks before and after the launcher.

Apart because bash must do what needs scontrol or sbatch, and nothing else: each command prints one line of words that
the script reads. Standard library only.
"""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

from hpc_train.errors import HpcTrainError
from hpc_train.files import write_json
from hpc_train.recovery.evidence import decide_attempt, last_cleared_attempt
from hpc_train.recovery.policy import Decision
from hpc_train.run.journal import Journal, read_journal
from hpc_train.run.layout import RunDir
from hpc_train.run.ownership import take_ownership

__all__ = ["begin", "decide", "main"]


def main(command: str, argv: list[str]) -> int:
    """Run one of the two commands; prints its answer. Returns an exit code that the script passes on."""
    run = RunDir(Path(argv[0]))
    submission = int(argv[argv.index("--submission") + 1])
    try:
        if command == "begin":
            print(begin(run, submission))
        else:
            attempt = int(argv[argv.index("--attempt") + 1])
            code = int(argv[argv.index("--code") + 1])
            print(decide(run, submission, attempt, code, was_terminated="--terminated" in argv))
    except HpcTrainError as error:
        print(f"hpc-train {command}: {error}", file=sys.stderr)
        return error.exit_code
    except (OSError, ValueError, KeyError) as error:
        print(f"hpc-train {command}: {run.path}: {error}", file=sys.stderr)
        return 74
    return 0


def begin(run: RunDir, submission: int) -> str:
    """Start an attempt: "go N TOKEN", or why there is none: "hold 0", "stop CODE".

    Where no shell lived to decide the attempt before, it is decided here first. Raises: OSError, ValueError.
    """
    if run.cancelled.exists():
        return "stop 0"
    attempts = run.attempts()
    if attempts:
        before = decide_attempt(run, attempts[-1], submission=submission, launcher_code=None)
        asked_again = last_cleared_attempt(read_journal(run)) >= attempts[-1].number
        if before.word in ("hold", "stop", "done") and not asked_again:
            print(f"hpc-train: not started again: {before.reason}", file=sys.stderr)
            return f"{'stop' if before.word == 'done' else before.word} {before.code}"
    owner = take_ownership(run)
    attempt = run.attempt(owner.attempt)
    where = {
        "submission": submission,
        "host": socket.gethostname(),
        "job_id": os.environ.get("SLURM_JOB_ID", ""),
        "nodes": os.environ.get("SLURM_JOB_NODELIST", socket.gethostname()),
        "restart_count": os.environ.get("SLURM_RESTART_COUNT", "0"),
    }
    write_json(attempt.started, where)
    Journal(run, "batch", owner.attempt).append("attempt_started", **where)
    return f"go {owner.attempt} {owner.token}"


def decide(run: RunDir, submission: int, attempt: int, code: int, *, was_terminated: bool) -> str:
    """Decide an ended attempt: "WORD CODE NODES", NODES a comma-separated list or "-". Raises: OSError, ValueError."""
    directory = run.attempt(attempt)
    if was_terminated and not directory.stop.exists():
        write_json(directory.stop, {"reason": "ended by the scheduler: time limit, preemption or cancel"})
    decision = decide_attempt(run, directory, submission=submission, launcher_code=code)
    print(sentence(decision, attempt), file=sys.stderr)
    return f"{decision.word} {decision.code} {','.join(decision.exclude) or '-'}"


def sentence(decision: Decision, attempt: int) -> str:
    """The one line that names the first failing rank, for the batch log."""
    who = "" if decision.rank is None else f" rank {decision.rank} on {decision.node or '?'}"
    step = "" if decision.step is None else f" at step {decision.step}"
    saved = "none" if decision.last_commit is None else f"step {decision.last_commit}"
    return (
        f"hpc-train: attempt {attempt}: {decision.failure}:{who}{step}: {decision.reason} "
        f"[last commit: {saved}; next: {decision.word}]"
    )
