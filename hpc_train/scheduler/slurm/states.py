"""Slurm's job states and listings, as text to be parsed. Pure.

Apart from the commands so that every text a Slurm was seen to print is a row of a table test.
"""

from __future__ import annotations

from hpc_train.scheduler.backend import JobState

__all__ = ["ACCOUNT_FORMAT", "QUEUE_FORMAT", "parse_accounting", "parse_queue", "parse_submitted", "state_of"]

# Free text (the reason) comes last, so that a '|' in it cannot shift a column; job names are not asked for at all.
QUEUE_FORMAT = "%i|%T|%N|%r"
ACCOUNT_FORMAT = "JobIDRaw,State,NodeList,Reason"

_STATES = {
    "PENDING": "pending", "CONFIGURING": "pending", "RESV_DEL_HOLD": "held", "REQUEUE_HOLD": "held",
    "SPECIAL_EXIT": "held", "REQUEUE_FED": "requeued", "REQUEUED": "requeued", "RUNNING": "running",
    "SUSPENDED": "running", "SIGNALING": "running", "STAGE_OUT": "completing", "STOPPED": "running",
    "RESIZING": "running", "COMPLETING": "completing", "COMPLETED": "completed", "FAILED": "failed",
    "BOOT_FAIL": "node_fail", "NODE_FAIL": "node_fail", "DEADLINE": "timeout", "TIMEOUT": "timeout",
    "CANCELLED": "cancelled", "REVOKED": "cancelled", "OUT_OF_MEMORY": "out_of_memory", "PREEMPTED": "preempted",
}  # fmt: skip
_HELD_REASONS = ("JobHeldUser", "JobHeldAdmin", "launch failed requeued held", "job requeued in held state")


def state_of(raw: str, reason: str = "") -> str:
    """Our state for Slurm's word ("CANCELLED by 501" too); "unknown" for a word that this version does not know."""
    word = raw.split(" ", 1)[0].rstrip("+").upper()
    state = _STATES.get(word, "unknown")
    is_held = any(text.lower() in reason.lower() for text in _HELD_REASONS)
    return "held" if state == "pending" and is_held else state


def parse_queue(text: str) -> dict[str, JobState]:
    """Jobs of an `squeue --format=QUEUE_FORMAT` listing, by job id; lines of another shape are passed over."""
    found = {}
    for line in text.splitlines():
        parts = line.strip().split("|", 3)
        if len(parts) == 4 and parts[0]:
            job_id, raw, nodes, reason = parts
            reason = "" if reason == "None" else reason
            found[job_id] = JobState(state_of(raw, reason), raw, reason, nodes)
    return found


def parse_accounting(text: str) -> dict[str, JobState]:
    """Jobs of an `sacct --parsable2 --format=ACCOUNT_FORMAT` listing, the last line of a job counts."""
    found = {}
    for line in text.splitlines():
        parts = line.strip().split("|", 3)
        if len(parts) == 4 and parts[0].isdecimal():
            job_id, raw, nodes, reason = parts
            reason = "" if reason == "None" else reason
            found[job_id] = JobState(state_of(raw, reason), raw, reason, "" if nodes == "None assigned" else nodes)
    return found


def parse_submitted(text: str) -> str | None:
    """The job id of `sbatch --parsable`, whatever banner a site prints around it ("4711", "4711;cluster")."""
    for line in reversed(text.splitlines()):
        job_id = line.strip().split(";", 1)[0]
        if job_id.isdecimal() and job_id.isascii():
            return job_id
    return None
