"""Who ended a job from outside, from Slurm's own words. Pure.

Apart because SIGTERM says the same for a time limit, a preemption, an administrator's requeue and scancel, and what
must follow differs: a job that its user cancelled must not come back, and one that Slurm starts again needs no second
requeue. Standard library only.
"""

from __future__ import annotations

import re

__all__ = [
    "CANCEL",
    "NODE_FAILURE",
    "PREEMPTION",
    "REQUEUE",
    "TIME_LIMIT",
    "ender_of_state",
    "find_ender",
    "find_state",
]

CANCEL = "its job was cancelled"
NODE_FAILURE = "a node failed"
PREEMPTION = "preempted"
REQUEUE = "its job was requeued from outside"
TIME_LIMIT = "time limit"

# A job whose batch shell lives is completing only if it is being ended; the other words are what completing hides.
_ENDING = ("COMPLETING", "CANCELLED", "PREEMPTED", "TIMEOUT")


def find_ender(queue: str, log: str, *, job_id: str, restart_count: int, node: str = "") -> str:
    """CANCEL, PREEMPTION or TIME_LIMIT; REQUEUE or NODE_FAILURE if Slurm starts the job again by itself; "" if nobody.

    A host that was given up writes its words into the same log, late: what is said of another host counts for nothing.

    Args:  queue: squeue's line on the job: state, number of restarts, when it was preempted, reason; "" if it did not
    answer.   log: the end of the batch shell's log, into which slurmstepd writes before it signals.   restart_count: of
    this start.   node: Slurm's name of the host that asks; "" where it is not known: then every host's words count.
    Source: Slurm 22.05.8, "*** JOB 16 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO PREEMPTION ***". In the grace time
    of a preemption the job is RUNNING, nothing is logged, and only its steps get SIGTERM.
    """
    state, restarts, preempted, reason = [*queue.split(None, 3), "", "", "", ""][:4]
    host = re.escape(node) if node else r"\S+"
    told = re.findall(rf"^slurmstepd\S*: .*\*\*\* JOB {re.escape(job_id)} ON {host} (.*) \*\*\*", log, re.MULTILINE)
    said = told[-1].upper() if told else ""
    if restarts.isdecimal() and int(restarts) > restart_count:
        return NODE_FAILURE if "NODE FAIL" in said else REQUEUE
    if state not in _ENDING:
        return PREEMPTION if preempted[:1].isdigit() else ""
    if reason.strip() == "TimeLimit" or "TIME LIMIT" in said:
        return TIME_LIMIT
    if "PREEMPTION" in said:
        return PREEMPTION
    return CANCEL if reason.strip() == "None" and "NODE FAIL" not in said else ""


# States of a job that has ended, by the first word: "CANCELLED by 501".
_ENDER_OF_STATE = {
    "CANCELLED": CANCEL, "PREEMPTED": PREEMPTION, "NODE_FAIL": NODE_FAILURE, "BOOT_FAIL": NODE_FAILURE,
    "TIMEOUT": TIME_LIMIT, "DEADLINE": TIME_LIMIT,
}  # fmt: skip


def ender_of_state(text: str) -> str:
    """Who ended a job, from the state that it ended in; "" for other states, and for none.

    Args:  text: one line a start of the job, as sacct gives them; the last one counts.
    """
    words = [line.split()[0] for line in text.splitlines() if line.strip()]
    return _ENDER_OF_STATE.get(words[-1].rstrip("+"), "") if words else ""


def find_state(text: str) -> str:
    """The state in a job's record as `scontrol show job` prints it; "" if it holds none."""
    found = re.search(r"(?:^|\s)JobState=(\w+)", text)
    return found[1] if found else ""
