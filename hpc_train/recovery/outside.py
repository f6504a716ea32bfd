"""Who ended a job from outside, from Slurm's own words. Pure.

Apart because SIGTERM says the same for a time limit, a preemption, an administrator's requeue and scancel, and what
must follow differs: a job that its user cancelled must not come back, and one that Slurm starts again needs no second
requeue. Standard library only.
"""

from __future__ import annotations

import re

__all__ = ["CANCEL", "NODE_FAILURE", "PREEMPTION", "REQUEUE", "TIME_LIMIT", "find_ender"]

CANCEL = "its job was cancelled"
NODE_FAILURE = "a node failed"
PREEMPTION = "preempted"
REQUEUE = "its job was requeued from outside"
TIME_LIMIT = "time limit"

# A job whose batch shell lives is completing only if it is being ended; the other words are what completing hides.
_ENDING = ("COMPLETING", "CANCELLED", "PREEMPTED", "TIMEOUT")


def find_ender(queue: str, log: str, *, job_id: str, restart_count: int) -> str:
    """CANCEL, PREEMPTION or TIME_LIMIT; REQUEUE or NODE_FAILURE if Slurm starts the job again by itself; "" if nobody.

    Args:  queue: squeue's line on the job: state, number of restarts, reason; "" if it did not answer.   log: the end
    of the batch shell's log, into which slurmstepd writes before it signals.   restart_count: of this start.
    Source: Slurm 22.05.8, "*** JOB 16 ON n1 CANCELLED AT 2026-01-01T00:00:00 DUE TO PREEMPTION ***".
    """
    state, restarts, reason = [*queue.split(None, 2), "", "", ""][:3]
    told = re.findall(rf"^slurmstepd\S*: .*\*\*\* JOB {re.escape(job_id)} ON \S+ (.*) \*\*\*", log, re.MULTILINE)
    said = told[-1].upper() if told else ""
    if restarts.isdecimal() and int(restarts) > restart_count:
        return NODE_FAILURE if "NODE FAIL" in said else REQUEUE
    if state not in _ENDING:
        return ""
    if reason.strip() == "TimeLimit" or "TIME LIMIT" in said:
        return TIME_LIMIT
    if "PREEMPTION" in said:
        return PREEMPTION
    return CANCEL if reason.strip() == "None" and "NODE FAIL" not in said else ""
