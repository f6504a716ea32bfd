"""`hpc-train begin` and `hpc-train decide`: what the batch shell asks before and after the launcher.

Apart because bash must do what needs scontrol or sbatch, and nothing else: each command prints one line of words that
the script reads. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
from pathlib import Path
from typing import Any

from hpc_train.errors import CannotCreateError, HpcTrainError, NoSpaceError, Superseded, from_os_error
from hpc_train.files import answer, open_regular, tell, write_atomic, write_json
from hpc_train.quantities import shown
from hpc_train.recovery.evidence import (
    decide_attempt,
    is_loss_accepted,
    job_of,
    last_cleared_attempt,
    read_decision,
    read_limits,
    submission_of,
)
from hpc_train.recovery.exclusion import NO_CHANGE, next_list
from hpc_train.recovery.outside import NODE_FAILURE, REQUEUE, find_ender
from hpc_train.recovery.policy import GOES_ON, Decision, delay_s
from hpc_train.recovery.predecessor import ask_ender
from hpc_train.run.index import open_run
from hpc_train.run.jobs import read_jobs, record_job
from hpc_train.run.journal import Journal, read_journal
from hpc_train.run.kept import describe_gone, describe_lost
from hpc_train.run.layout import AttemptDir, RunDir
from hpc_train.run.marks import CODE_OF_CLASS
from hpc_train.run.ownership import check_submission, take_ownership
from hpc_train.run.reserve import DECISION, keep_reserve, with_reserve

__all__ = ["begin", "decide", "main"]

_ENDED_FROM_OUTSIDE = ("timeout", "terminated", "preempted", "cancelled", "node_fail", "unknown")
_LOG_TAIL_BYTES = 64 << 10
_SETUP_SHOWN = 300


def main(command: str, argv: list[str]) -> int:
    """Run one of the two commands; prints its answer. Returns an exit code that the script passes on."""
    try:
        run = open_run(Path(argv[0]))
        submission = int(argv[argv.index("--submission") + 1])
        if command == "begin":
            answer(argv, begin(run, submission))
        else:
            attempt = int(argv[argv.index("--attempt") + 1])
            code = int(argv[argv.index("--code") + 1])
            answer(argv, decide(run, submission, attempt, code, was_terminated="--terminated" in argv))
    except HpcTrainError as error:
        tell(f"hpc-train {command}: {error}")
        return error.exit_code
    except OSError as error:
        known = from_os_error(error, f"{command}: {error.filename or argv[:1]}")
        tell(f"hpc-train {known}")
        # 73 tells the shell that the disk is full; where a file is gone or in the way, free space would not help.
        return 74 if isinstance(known, CannotCreateError) and not isinstance(known, NoSpaceError) else known.exit_code
    except (ValueError, IndexError) as error:
        tell(f"hpc-train {command}: {error}")
        return 74
    return 0


def begin(run: RunDir, submission: int) -> str:
    """Start an attempt: "go N TOKEN", or why there is none: "hold CODE", "stop CODE" (0: the run is done or cancelled).

    Where no shell lived to decide the attempt before, it is decided here first. A job of an older submission, however
    late it starts, decides nothing and is stopped: the newest one alone goes on. Raises: OSError (nothing was started
    then), ValueError.
    """
    _note_job(run, submission)
    if failed := _failed_setup():
        tell(f"hpc-train: {failed}; it goes on all the same: put || exit 1 behind a line that must not fail")
    try:
        return _begin(run, submission)
    except Superseded as error:
        tell(f"hpc-train: not started: {error}")
        return "stop 0"


def _begin(run: RunDir, submission: int) -> str:
    if run.cancelled.exists():
        return "stop 0"
    lost = ""
    attempts = run.attempts()  # before the look at the submissions: none of these can be an attempt of a newer one
    check_submission(run, submission)
    if attempts:
        before, is_other_job = _decide_before(run, attempts[-1], submission)
        events = read_journal(run, without=("step",))
        asked_again = last_cleared_attempt(events) >= attempts[-1].number
        # Somebody outside had ended that attempt. That this start happens at all says it was preemption, a node, or an
        # administrator's requeue, not the time limit: after that Slurm starts nothing by itself. A successor starts
        # whatever that was.
        is_outside = before.word == "stop" and before.failure in _ENDED_FROM_OUTSIDE and not is_other_job
        if before.word in ("hold", "stop", "done") and not (asked_again or is_outside):
            tell(f"hpc-train: not started again: {before.reason}")
            return f"{'stop' if before.word == 'done' else before.word} {before.code}"
        if gone := describe_gone(run, events):  # all that was done so far would be done again without a word
            if not is_loss_accepted(events, attempts[-1].number):
                told = (
                    f"not started again: {gone}; is its file system mounted there? "
                    f"Once they are back, or to begin anew without them: hpc-train requeue {run.name}"
                )
                tell(f"hpc-train: {told}")
                with contextlib.suppress(OSError):  # the log above has it
                    write_atomic(attempts[-1].not_continued, told)
                return f"hold {CODE_OF_CLASS['io']}"
            tell(f"hpc-train: {gone}; its person let it go on all the same")
        elif lost := describe_lost(run, events):
            tell(f"hpc-train: {lost}; what was done after it is done again")
    keep_reserve(run, read_limits(run, submission).num_ranks)
    owner = take_ownership(run, submission)
    attempt = run.attempt(owner.attempt)
    where: dict[str, Any] = {
        "submission": submission,
        "host": socket.gethostname(),
        "job_id": os.environ.get("SLURM_JOB_ID", ""),
        "nodes": os.environ.get("SLURM_JOB_NODELIST", socket.gethostname()),
        "restart_count": os.environ.get("SLURM_RESTART_COUNT", "0"),
    }
    try:
        write_json(attempt.started, where)
        journal = Journal(run, "batch", owner.attempt)
        journal.append("attempt_started", **where)
        if lost:
            journal.append("checkpoint_lost", told=lost)
    except OSError:  # a full disk: an attempt that never was must not count as one that failed
        shutil.rmtree(attempt.path, ignore_errors=True)
        raise
    return f"go {owner.attempt} {owner.token}"


def _decide_before(run: RunDir, attempt: AttemptDir, submission: int) -> tuple[Decision, bool]:
    """The decision on the attempt before, and whether another job than this one ran it."""
    job_id = os.environ.get("SLURM_JOB_ID", "")
    is_other_job = job_id not in ("", job_of(attempt))
    ender = ask_ender(job_of(attempt)) if is_other_job and read_decision(attempt) is None else ""
    if ender and not attempt.stop.exists():
        write_json(attempt.stop, {"reason": ender})
    of_attempt = submission_of(attempt, submission)  # its number of ranks counts, not that of this one
    return decide_attempt(run, attempt, submission=of_attempt, launcher_code=None, ended_by=ender), is_other_job


def _note_job(run: RunDir, submission: int) -> None:
    """A job whose registration was cut short tells of itself."""
    job_id = os.environ.get("SLURM_JOB_ID", "")
    if job_id and job_id not in [record.job_id for record in read_jobs(run)]:
        with contextlib.suppress(OSError):
            record_job(run.submission(submission), job_id)


def decide(run: RunDir, submission: int, attempt: int, code: int, *, was_terminated: bool) -> str:
    """Decide an ended attempt: "WORD CODE LIST DELAY".

    LIST: what scontrol must change in the job's excluded hosts, or "-".   DELAY: seconds that the next attempt waits.
    WORD is the decision's, or "leave" where Slurm starts the job again by itself, or has: `begin` acts on the decision.
    Also then the list is Slurm's to hear: a host that was lost, and is back too soon, may still run this job.
    Raises: OSError, ValueError.
    """
    directory = run.attempt(attempt)
    ender = _find_ender(run, submission)
    if (was_terminated or ender) and not directory.stop.exists():
        stop = {"reason": ender or "ended by the scheduler: time limit, preemption or cancel"}
        with_reserve(run, DECISION, lambda: write_json(directory.stop, stop))
    decision = decide_attempt(
        run, directory, submission=submission, launcher_code=code, ended_by=ender, remark=_failed_setup()
    )
    tell(sentence(decision, attempt))
    # Of a node that was cut off: a requeue would end the next attempt, or be turned away by the next submission.
    is_late = run.attempts()[-1].number > attempt or _has_newer(run, submission)
    word = "leave" if ender in (REQUEUE, NODE_FAILURE) or is_late else decision.word
    changes, wait_s = NO_CHANGE, 0
    if decision.word in (*GOES_ON, "hold") and not is_late:
        limits = read_limits(run, submission)
        changes = next_list(run, attempt, submission=submission, num_nodes=limits.num_nodes)
        wait_s = delay_s(decision, limits) if word in GOES_ON else 0
    return f"{word} {decision.code} {changes} {wait_s}"


def _failed_setup() -> str:
    """Which setup lines had failed before the ranks started, as the batch script saw; "" where none had."""
    failed = " ".join(os.environ.get("HPC_TRAIN_SETUP_FAILED", "").split())
    return f"of [program] setup failed: {shown(failed, _SETUP_SHOWN)}" if failed else ""


def _has_newer(run: RunDir, submission: int) -> bool:
    newest = run.newest_submission()
    return newest is not None and newest.number > submission


def _find_ender(run: RunDir, submission: int) -> str:
    """Who has ended this job from outside; "" if nobody, or under another scheduler than Slurm."""
    job_id, restarts = os.environ.get("SLURM_JOB_ID", ""), os.environ.get("SLURM_RESTART_COUNT", "")
    queue = os.environ.get("HPC_TRAIN_QUEUE_SAYS", "")
    if not queue.strip():
        return ""
    log = ""
    with contextlib.suppress(OSError), open_regular(run.submission(submission).batch_log) as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - _LOG_TAIL_BYTES))
        log = file.read(_LOG_TAIL_BYTES).decode(errors="replace")
    restart_count = int(restarts) if restarts.isdecimal() else 0
    node = os.environ.get("SLURMD_NODENAME", "")
    return find_ender(queue, log, job_id=job_id, restart_count=restart_count, node=node)


def sentence(decision: Decision, attempt: int) -> str:
    """The one line that names the first failing rank, for the batch log."""
    who = "" if decision.rank is None else f" rank {decision.rank} on {decision.node or '?'}"
    step = "" if decision.step is None else f" at step {decision.step}"
    saved = "none" if decision.last_commit is None else f"step {decision.last_commit}"
    return (
        f"hpc-train: attempt {attempt}: {decision.failure}{':' if who or step else ''}{who}{step}: {decision.reason} "
        f"[last commit: {saved}; next: {decision.word}]"
    )
