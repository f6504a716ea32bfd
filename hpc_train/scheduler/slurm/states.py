"""Slurm's job states and listings, as text to be parsed. Pure.

Apart from the commands so that every text a Slurm was seen to print is a row of a table test.
"""

from __future__ import annotations

import re

from hpc_train.scheduler.backend import JobState

__all__ = [
    "ACCOUNT_FORMAT",
    "QUEUE_FORMAT",
    "TOKEN_FORMAT",
    "all_controllers_are_down",
    "find_token",
    "find_tokens",
    "parse_listing",
    "parse_submitted",
    "state_of",
]

# Free text (reason, comment) comes last, so that a '|' in it cannot shift a column; job names are not asked for.
QUEUE_FORMAT = "%i|%T|%N|%r"
TOKEN_FORMAT = "%i|%k"
ACCOUNT_FORMAT = "JobIDRaw,State,NodeList,Reason"

_STATES = {
    "PENDING": "pending", "CONFIGURING": "pending", "RESV_DEL_HOLD": "held", "REQUEUE_HOLD": "held",
    "SPECIAL_EXIT": "held", "REQUEUE_FED": "requeued", "REQUEUED": "requeued", "RUNNING": "running",
    "SUSPENDED": "running", "SIGNALING": "running", "STAGE_OUT": "completing", "STOPPED": "running",
    "RESIZING": "running", "COMPLETING": "completing", "COMPLETED": "completed", "FAILED": "failed",
    "BOOT_FAIL": "node_fail", "NODE_FAIL": "node_fail", "DEADLINE": "timeout", "TIMEOUT": "timeout",
    "CANCELLED": "cancelled", "REVOKED": "cancelled", "OUT_OF_MEMORY": "out_of_memory", "PREEMPTED": "preempted",
}  # fmt: skip
_HELD_REASONS = ("jobheld", "launch failed requeued held", "job requeued in held state")


def state_of(raw: str, reason: str = "") -> str:
    """Our state for Slurm's word ("CANCELLED by 501" too); "unknown" for a word that this version does not know."""
    word = raw.split(" ", 1)[0].rstrip("+").upper()
    state = _STATES.get(word, "unknown")
    said = reason.lower().replace("_", " ")  # blanks or underscores, by version and command
    is_held = any(text in said for text in _HELD_REASONS)
    return "held" if state == "pending" and is_held else state


def parse_listing(text: str) -> dict[str, JobState]:
    """Jobs of a listing in QUEUE_FORMAT or ACCOUNT_FORMAT, by job id.

    Lines of another shape, and the steps of a job, are passed over; the last line of a job counts.
    """
    return dict(filter(None, map(_parse_row, text.splitlines())))


def _parse_row(line: str) -> tuple[str, JobState] | None:
    parts = line.strip().split("|", 3)
    if len(parts) != 4 or not _is_job_id(parts[0]):
        return None
    job_id, raw, nodes, reason = parts
    reason = "" if reason in ("None", "(null)") else reason
    return job_id, JobState(state_of(raw, reason), raw, reason, "" if nodes == "None assigned" else nodes)


def all_controllers_are_down(text: str) -> bool:
    """Whether `scontrol ping` clearly says so: "Slurmctld(primary) at c1 is DOWN", and none "is UP"."""
    return re.search(r"Slurmctld\([^)]*\) at .* is DOWN\b", text) is not None and " is UP" not in text


def find_token(text: str, token: str) -> str | None:
    """The job of an `squeue --format=TOKEN_FORMAT` listing whose comment is the token, None if there is none."""
    for line in text.splitlines():
        job_id, _, comment = line.strip().partition("|")
        if comment == token and _is_job_id(job_id):
            return job_id
    return None


def find_tokens(text: str, beginning: str) -> list[str]:
    """The jobs of such a listing whose comment begins so."""
    rows = (line.strip().partition("|") for line in text.splitlines())
    return [job_id for job_id, _, comment in rows if comment.startswith(beginning) and _is_job_id(job_id)]


def parse_submitted(text: str) -> str | None:
    """The job id of `sbatch --parsable`, whatever banner a site prints around it ("4711", "4711;cluster")."""
    for line in reversed(text.splitlines()):
        job_id = line.strip().split(";", 1)[0]
        if _is_job_id(job_id):
            return job_id
    return None


def _is_job_id(text: str) -> bool:
    return text.isascii() and text.isdecimal()
