"""The last line of `hpc-train why RUN`: what happens by itself, who must act, and what to type.

Apart from the story of the run, so that there is one rule: what waits goes on by itself, what is repaired goes on by
`requeue`, what needs another request or another command by `resume`.
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

from hpc_train.files import read_json
from hpc_train.quantities import format_walltime
from hpc_train.recovery.avoidance import avoided_before
from hpc_train.run.journal import Event
from hpc_train.run.layout import RunDir, SubmissionDir

if TYPE_CHECKING:
    from hpc_train.diagnosis.job_facts import JobFacts
    from hpc_train.scheduler.view import RunView

__all__ = ["avoided", "more_time", "what_next"]

# A longer warning does not help a program that never listens.
_NEVER_SAVED = " (let it call hpc_train.commit after its own save, or use Checkpointer and StopRequest)"
MAX_DOUBLED_S = 1 << 30
_OF_REQUEST = ("config", "launch")  # classes that another size, limit or command may mend
# As launch/main says it; what is missing is named as Python writes it.
_NO_PROGRAM = re.compile(r"the program could not be started: FileNotFoundError: [^']{0,80}: (?P<program>'.*?')(?:;|$)")
_OF_PENDING = re.compile(r": cancel it\b.*")  # advice for a job that still waits


def what_next(view: RunView, facts: JobFacts | None) -> str:
    """What happens by itself, or what the person has to do."""
    from hpc_train.scheduler.view import is_held_by_slurm

    name = view.run.name
    requeue = f"hpc-train requeue {name}"
    if view.state == "completed":
        return f"nothing: it is complete; to train it further: hpc-train resume {name} -- COMMAND"
    if view.state in ("failed", "cancelled", "timeout") and _never_began(view) and not view.run.cancelled.exists():
        return _did_not_start(view)
    if view.state == "failed" and view.unbegun:
        return _ended_before_attempt(view, facts)
    if view.ended_before_cancel:
        return f"nothing, since it was cancelled after its end; to go on {_after_repair(view)}"
    if view.state == "cancelled":
        return f"nothing; to go on after all: {requeue}"
    if view.state in ("running", "completing"):
        return "it runs" if view.newest is None else _is_ending(view, view.newest.word)
    if view.state in ("pending", "requeued"):
        return _waits(view, facts)
    if view.state == "held" and is_held_by_slurm(view.job, view.newest):
        return _held(view)
    if view.not_continued:
        return f"it is held: {view.not_continued}"
    if view.state == "held":
        repaired = "; see the reason above first" if view.newest is not None and view.newest.word == "hold" else ""
        return f"it is held until you ask: {requeue}{repaired}{_other_request(view)}"
    if view.state == "unknown":
        return f"nobody knows whether it goes on; see: hpc-train logs {name}; to go on: {requeue}"
    if view.newest is None:
        return (
            f"it does not start again by itself; see: hpc-train logs {name}; to go on: {requeue}{_other_request(view)}"
        )
    if view.newest.word in ("again", "again-elsewhere"):
        return f"it was to start again, but its job has ended; to go on: {requeue}"
    if view.newest.failure == "timeout":
        asked = "hpc-train asks the program to save before the limit, and it saved nothing"
        asked += _NEVER_SAVED if view.last_commit is None else " new"
        return f"it does not start again by itself: {asked}{_other_request(view)}; as it was: {requeue}"
    return f"it does not start again by itself; {_after_repair(view)}"


def _is_ending(view: RunView, word: str) -> str:
    """Of a run whose decision is newer than what the scheduler last said."""
    if word in ("again", "again-elsewhere"):
        return "its attempt has ended; it starts again by itself"
    if word == "done":
        return "nothing: it is complete, and its job is about to end"
    if word == "hold":
        return f"its attempt has ended, and it is about to be held until you ask: hpc-train requeue {view.run.name}"
    return f"its attempt has ended; once its job has too, it does not start again by itself; {_after_repair(view)}"


def more_time(view: RunView) -> str:
    """The option that gives a run twice the time of its last attempt."""
    known = view.walltime_s is not None and 1 <= view.walltime_s < MAX_DOUBLED_S
    return f"--walltime {format_walltime(2 * round(view.walltime_s or 0)) if known else 'TIME'}"


def _other_request(view: RunView) -> str:
    """How to go on otherwise, where the same request may end in the same way."""
    resume = f"hpc-train resume {view.run.name}"
    failure = view.state if view.newest is None else view.newest.failure
    if failure in ("timeout", "stopped"):
        return f"; with more time: {resume} {more_time(view)}"
    return f"; with another request: {resume} OPTIONS" if failure in _OF_REQUEST else ""


def _after_repair(view: RunView) -> str:
    """How to go on once the fault is mended: `requeue` would repeat a wrong command as it is."""
    requeue = f"hpc-train requeue {view.run.name}"
    if not _is_of_command(view):
        before = _command_before(view.run)
        as_before = f"; with the command of before: hpc-train resume {view.run.name} -- {shlex.join(before)}"
        return f"after a repair: {requeue}{_other_request(view)}{as_before if before else ''}"
    put_right = f"with the command put right: hpc-train resume {view.run.name} -- COMMAND"
    return f"{put_right}; if the fault was elsewhere, after its repair: {requeue}"


def _is_of_command(view: RunView) -> bool:
    """Whether the command itself is at fault: options that the program does not take, a program that is not there."""
    if view.newest is None or view.newest.failure not in ("usage", "config"):
        return False
    submission = view.run.newest_submission()
    command = [] if submission is None else _command_of(submission)
    missing = _NO_PROGRAM.search(view.newest.reason)
    return view.newest.failure == "usage" or (missing is not None and missing["program"] in map(repr, command[:1]))


def _command_of(submission: SubmissionDir) -> list[str]:
    try:
        return list(map(str, read_json(submission.launch)["command"]))
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _command_before(run: RunDir) -> list[str]:
    """The command that the newest submission has replaced; none where it is the same, or the first."""
    commands = [_command_of(submission) for submission in run.submissions()[-2:]]
    return commands[0] if len(commands) == 2 and commands[1] not in ([], commands[0]) else []


def _never_began(view: RunView) -> bool:
    """Whether not even the batch script of a run ever ran."""
    return not view.attempts and not any(each.batch_log.exists() for each in view.run.submissions())


def _did_not_start(view: RunView) -> str:
    """Of a run whose job has ended, or was taken away, before its script began."""
    from hpc_train.diagnosis.reasons import why_not_started

    name = view.run.name
    reason = None if view.job.nodes else why_not_started(view.job.reason)
    if view.state == "cancelled" and reason is None:
        return f"nothing: it was cancelled before it started; to go on after all: hpc-train requeue {name}"
    if reason is None:
        return f"its batch script never began: do the nodes see {view.run.path}? To go on: hpc-train requeue {name}"
    told = f"its job never started: {_OF_PENDING.sub('', reason.meaning)} ({view.job.reason})"
    if reason.who == "site":
        return f"{told}; ask the site; then: hpc-train requeue {name}"
    return f"{told}; change the request: hpc-train resume {name} OPTIONS; as it was: hpc-train requeue {name}"


def _ended_before_attempt(view: RunView, facts: JobFacts | None) -> str:
    """Of a run whose batch script ended in the lines that come before its ranks, or could not start an attempt."""
    name = view.run.name
    told = view.unbegun
    if facts is not None and facts.code:
        told = told.replace("the batch script ended before", f"the batch script ended with code {facts.code} before")
    return (
        f"{told}: see hpc-train logs {name} --batch; if that says nothing, a line of [program] setup or of the site's "
        f"prologue ended it, as `exit` does; after a repair outside the job file: hpc-train requeue {name}; after one "
        "in it: hpc-train submit"
    )


def _held(view: RunView) -> str:
    """Of a job that Slurm, its user or the site keeps from starting."""
    from hpc_train.diagnosis.reasons import explain_reason, is_failed_launch

    requeue = f"hpc-train requeue {view.run.name}"
    reason = explain_reason(view.job.reason)
    if reason is None:
        return f"it is held ({view.job.reason}); to go on: {requeue}"
    told = f"it is held: {reason.meaning} ({view.job.reason})"
    if is_failed_launch(view.job.reason):
        return f"{told}; the node is drained, see: sinfo -R; to go on, elsewhere: {requeue}"
    return f"{told}; ask the site" if reason.who == "site" else f"{told}; to go on: {requeue}"


def _waits(view: RunView, facts: JobFacts | None) -> str:
    waits = "it waits and starts by itself"
    if view.scheduler != "slurm":
        return f"{waits}: {view.job.reason}" if view.job.reason else waits
    from hpc_train.diagnosis.engine import fill_in
    from hpc_train.diagnosis.for_run import advise_run
    from hpc_train.diagnosis.reasons import explain_reason

    start = f"; Slurm expects to start it at {facts.start}" if facts is not None and facts.start else ""
    reason = explain_reason(view.job.reason)
    if reason is None:
        return f"{waits} ({view.job.reason or 'no reason given'}){start}"
    told = f"{reason.meaning} ({view.job.reason})"
    then = advise_run(fill_in(reason.next, None, job=view.job_id), view.run.name)
    if reason.never:
        return f"it waits, and as it is it never starts: {told}; {then}"
    return f"{waits}: {told}{start}; {then}"


def avoided(run: RunDir, view: RunView, events: list[Event]) -> list[str]:
    """Of a job that waits: the hosts that it is kept off because of earlier attempts, and how to let it use them."""
    newest = run.newest_submission()
    nodes = sorted(avoided_before(events, newest.number)) if newest is not None else []
    if newest is None or not nodes or view.state not in ("pending", "requeued", "held"):
        return []
    return [
        f"avoids    {', '.join(nodes)}: earlier attempts failed there",
        f"          if it waits for hosts: scontrol update jobid={view.job_id} ExcNodeList={_excluded_by_user(newest)}",
    ]


def _excluded_by_user(submission: SubmissionDir) -> str:
    try:
        return str(read_json(submission.job)["job"]["exclude"] or "")
    except (OSError, ValueError, KeyError, TypeError):
        return ""
