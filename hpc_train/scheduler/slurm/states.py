"""Slurm's job states and listings, as text to be parsed. Pure.

Apart from the commands so that every text a Slurm was seen to print is a row of a table test.
"""

from __future__ import annotations

from hpc_train.scheduler.backend import JobState

__all__ = [
    "ACCOUNT_FORMAT",
    "QUEUE_FORMAT",
    "TOKEN_FORMAT",
    "explain_reason",
    "find_token",
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

# Why a job waits, in plain words; the first whose beginning fits. Slurm's own list is squeue(1), JOB REASON CODES.
_REASONS = (
    ("BadConstraints", "no nodes of this queue can ever fulfil the request: cancel it and ask for less"),
    ("Priority", "jobs with a higher priority come first"),
    ("Resources", "it is among the first and waits for free nodes"),
    ("BeginTime", "it may not start yet: Slurm lets a requeued job wait for about two minutes"),
    ("Dependency", "it waits for another job"),
    ("ReqNodeNotAvail", "nodes it needs are down or reserved, perhaps for a maintenance"),
    ("Reservation", "it waits for its reservation"),
    ("PartitionTimeLimit", "it asks for more time than the queue allows: cancel it and ask for less"),
    ("PartitionNodeLimit", "it asks for more nodes than the queue allows: cancel it and ask for less"),
    ("PartitionDown", "its queue is closed at present"),
    ("PartitionInactive", "its queue is closed at present"),
    ("InvalidAccount", "its account may not be used here: cancel it and give another"),
    ("InvalidQOS", "its quality of service may not be used here: cancel it and give another"),
    ("Licenses", "it waits for a licence"),
    ("NodeDown", "a node it needs is down"),
    ("QOS", "a limit of its quality of service is reached"),
    ("Assoc", "a limit of your account is reached"),
    ("MaxGRESPerAccount", "a limit of your account is reached"),
)


def state_of(raw: str, reason: str = "") -> str:
    """Our state for Slurm's word ("CANCELLED by 501" too); "unknown" for a word that this version does not know."""
    word = raw.split(" ", 1)[0].rstrip("+").upper()
    state = _STATES.get(word, "unknown")
    said = reason.lower().replace("_", " ")  # blanks or underscores, by version and command
    is_held = any(text in said for text in _HELD_REASONS)
    return "held" if state == "pending" and is_held else state


def explain_reason(reason: str) -> str:
    """Slurm's reason for a waiting job in plain words, "" for one that needs none or is not known here."""
    return next((text for word, text in _REASONS if reason.lower().startswith(word.lower())), "")


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


def find_token(text: str, token: str) -> str | None:
    """The job of an `squeue --format=TOKEN_FORMAT` listing whose comment is the token, None if there is none."""
    for line in text.splitlines():
        job_id, _, comment = line.strip().partition("|")
        if comment == token and _is_job_id(job_id):
            return job_id
    return None


def parse_submitted(text: str) -> str | None:
    """The job id of `sbatch --parsable`, whatever banner a site prints around it ("4711", "4711;cluster")."""
    for line in reversed(text.splitlines()):
        job_id = line.strip().split(";", 1)[0]
        if _is_job_id(job_id):
            return job_id
    return None


def _is_job_id(text: str) -> bool:
    return text.isascii() and text.isdecimal()
