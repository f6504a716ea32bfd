"""`hpc-train begin` and `hpc-train decide`: what the batch shell asks before and after the launcher.

Apart because bash must do what needs scontrol or sbatch, and nothing else: each command prints one line of words that
the script reads. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
from pathlib import Path
from typing import Any

from hpc_train.errors import HpcTrainError, from_os_error
from hpc_train.files import write_json
from hpc_train.recovery.evidence import decide_attempt, last_cleared_attempt
from hpc_train.recovery.outside import NODE_FAILURE, REQUEUE, find_ender
from hpc_train.recovery.policy import Decision
from hpc_train.run.journal import Journal, read_journal
from hpc_train.run.layout import RunDir
from hpc_train.run.ownership import take_ownership

__all__ = ["begin", "decide", "main"]

_ENDED_FROM_OUTSIDE = ("timeout", "terminated", "preempted", "cancelled", "node_fail", "unknown")
_LOG_TAIL_BYTES = 64 << 10


def main(command: str, argv: list[str]) -> int:
    """Run one of the two commands; prints its answer. Returns an exit code that the script passes on."""
    try:
        run = RunDir(Path(argv[0]))
        submission = int(argv[argv.index("--submission") + 1])
        if command == "begin":
            print(begin(run, submission))
        else:
            attempt = int(argv[argv.index("--attempt") + 1])
            code = int(argv[argv.index("--code") + 1])
            print(decide(run, submission, attempt, code, was_terminated="--terminated" in argv))
    except HpcTrainError as error:
        print(f"hpc-train {command}: {error}", file=sys.stderr)
        return error.exit_code
    except OSError as error:
        known = from_os_error(error, f"{command}: {error.filename or argv[:1]}")
        print(f"hpc-train {known}", file=sys.stderr)
        return known.exit_code
    except (ValueError, IndexError) as error:
        print(f"hpc-train {command}: {error}", file=sys.stderr)
        return 74
    return 0


def begin(run: RunDir, submission: int) -> str:
    """Start an attempt: "go N TOKEN", or why there is none: "hold CODE", "stop CODE" (0: the run is done or cancelled).

    Where no shell lived to decide the attempt before, it is decided here first. Raises: OSError, ValueError.
    """
    if run.cancelled.exists():
        return "stop 0"
    attempts = run.attempts()
    if attempts:
        before = decide_attempt(run, attempts[-1], submission=submission, launcher_code=None)
        asked_again = last_cleared_attempt(read_journal(run)) >= attempts[-1].number
        # Somebody outside had ended that attempt. That this start happens at all says it was preemption, a node, or an
        # administrator's requeue, not the time limit: after that Slurm starts nothing by itself.
        is_outside = before.word == "stop" and before.failure in _ENDED_FROM_OUTSIDE
        if before.word in ("hold", "stop", "done") and not (asked_again or is_outside):
            print(f"hpc-train: not started again: {before.reason}", file=sys.stderr)
            return f"{'stop' if before.word == 'done' else before.word} {before.code}"
    owner = take_ownership(run)
    attempt = run.attempt(owner.attempt)
    where: dict[str, Any] = {
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
    """Decide an ended attempt: "WORD CODE NODES", NODES a comma-separated list or "-".

    WORD is the decision's, or "leave" where Slurm starts the job again by itself, or has: `begin` acts on the decision.
    Raises: OSError, ValueError.
    """
    directory = run.attempt(attempt)
    ender = _find_ender(run, submission)
    if (was_terminated or ender) and not directory.stop.exists():
        write_json(directory.stop, {"reason": ender or "ended by the scheduler: time limit, preemption or cancel"})
    decision = decide_attempt(run, directory, submission=submission, launcher_code=code, ended_by=ender)
    print(sentence(decision, attempt), file=sys.stderr)
    is_late = run.attempts()[-1].number > attempt  # of a node that was cut off: a requeue would end the next attempt
    word = "leave" if ender in (REQUEUE, NODE_FAILURE) or is_late else decision.word
    return f"{word} {decision.code} {','.join(decision.exclude) or '-'}"


def _find_ender(run: RunDir, submission: int) -> str:
    """Who has ended this job from outside; "" if nobody, or under another scheduler than Slurm."""
    job_id, restarts = os.environ.get("SLURM_JOB_ID", ""), os.environ.get("SLURM_RESTART_COUNT", "")
    queue = os.environ.get("HPC_TRAIN_QUEUE_SAYS", "")
    if not queue.strip():
        return ""
    log = ""
    with contextlib.suppress(OSError), open(run.submission(submission).batch_log, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _LOG_TAIL_BYTES))
        log = file.read(_LOG_TAIL_BYTES).decode(errors="replace")
    return find_ender(queue, log, job_id=job_id, restart_count=int(restarts) if restarts.isdecimal() else 0)


def sentence(decision: Decision, attempt: int) -> str:
    """The one line that names the first failing rank, for the batch log."""
    who = "" if decision.rank is None else f" rank {decision.rank} on {decision.node or '?'}"
    step = "" if decision.step is None else f" at step {decision.step}"
    saved = "none" if decision.last_commit is None else f"step {decision.last_commit}"
    return (
        f"hpc-train: attempt {attempt}: {decision.failure}{':' if who or step else ''}{who}{step}: {decision.reason} "
        f"[last commit: {saved}; next: {decision.word}]"
    )
