"""What Slurm says of one job, from the texts of squeue, sacct and scontrol. Pure.

Apart from the calls, so that every text a Slurm was seen to print is a row of a table test. Free text (names, comments)
is not asked for, or comes last: a separator in it must not shift a column. Standard library only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace

__all__ = [
    "ACCOUNTING_FIELDS",
    "QUEUE_FIELDS",
    "SEPARATOR",
    "JobFacts",
    "StepFacts",
    "parse_accounting",
    "parse_details",
    "parse_queue",
]

SEPARATOR = "\x1f"
ACCOUNTING_FIELDS = (
    "JobID", "JobIDRaw", "State", "ExitCode", "DerivedExitCode", "ElapsedRaw", "TimelimitRaw", "NNodes", "NCPUS",
    "NodeList", "ReqMem", "MaxRSS", "MaxRSSNode", "User", "Account", "Partition", "Reason", "WorkDir",
)  # fmt: skip
# id, state, user, partition, account, time used, limit, start, nodes, memory of a node, node list, and at last reason
QUEUE_FIELDS = "%i|%T|%u|%P|%a|%M|%l|%S|%D|%m|%N|%r"

_SIZE = re.compile(r"(\d+(?:\.\d+)?)([KMGTP]?)([nc]?)")
_UNITS = {"": 1 << 20, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "P": 1 << 50}
_CODE = re.compile(r"(\d{1,5}):(\d{1,5})")
_TIME = re.compile(r"(?:(\d{1,6})-)?(?:(\d{1,3}):)?(\d{1,2}):(\d{2})")
_NOTHING = ("", "None", "(null)", "N/A", "Unknown", "None assigned", "INVALID")


@dataclass(frozen=True)
class StepFacts:
    """One step. `code`, `signal`: how it ended; `max_rss`: bytes of its largest task, None if not measured."""

    id: str
    state: str
    code: int = 0
    signal: int = 0
    max_rss: int | None = None
    max_rss_node: str = ""
    nodes: str = ""


@dataclass(frozen=True)
class JobFacts:
    """One job, or one task of an array, as far as Slurm tells.

    Attributes:  id: as Slurm writes it.   raw_id: the number of its own that a task of an array has.   state: Slurm's
    word, "" if nobody knows it.   code, signal: how its script ended.   start: expected or true start.   limit_s: None
    if there is none or it is not known.   memory: bytes asked for on each node.   outputs: files of its output.
    earlier: states of its earlier starts.   tasks: how many tasks of the array are in which state.   notes: what could
    not be found out, and why.
    """

    id: str
    raw_id: str = ""
    state: str = ""
    reason: str = ""
    code: int = 0
    signal: int = 0
    user: str = ""
    account: str = ""
    queue: str = ""
    elapsed_s: int | None = None
    limit_s: int | None = None
    start: str = ""
    num_nodes: int = 0
    nodes: str = ""
    memory: int | None = None
    work_dir: str = ""
    outputs: tuple[str, ...] = ()
    steps: tuple[StepFacts, ...] = ()
    earlier: tuple[str, ...] = ()
    tasks: tuple[tuple[str, int], ...] = ()
    notes: tuple[str, ...] = field(default=())

    @property
    def word(self) -> str:
        """The state's first word: CANCELLED of "CANCELLED by 501"."""
        return self.state.split(" ", 1)[0].rstrip("+").upper()

    @property
    def never_started(self) -> bool:
        """Whether Slurm says that it had no time on any node; False where that is not known."""
        return self.elapsed_s == 0 and not (self.nodes or self.steps or self.earlier)

    @property
    def max_rss(self) -> StepFacts | None:
        """The step with the largest task, None if none was measured."""
        measured = [step for step in self.steps if step.max_rss]
        return max(measured, key=lambda step: step.max_rss or 0, default=None)

    @property
    def failed_step(self) -> StepFacts | None:
        """The first step that did not end well: one with ranks before the batch script, which only passes codes on."""
        failed = [step for step in self.steps if step.state.split(" ")[0] not in ("COMPLETED", "RUNNING", "PENDING")]
        ranks = [step for step in failed if step.id.rpartition(".")[2].isdecimal()]
        return next(iter([*ranks, *failed]), None)


def parse_queue(text: str) -> list[JobFacts]:
    """Jobs of `squeue --format=QUEUE_FIELDS`; lines of another shape are passed over."""
    found = []
    for line in text.splitlines():
        parts = line.strip().split("|", 11)
        if len(parts) != 12 or not parts[0][:1].isdecimal():
            continue
        job_id, state, user, queue, account, used, limit, start, num_nodes, memory, nodes, reason = parts
        found.append(
            JobFacts(
                id=job_id,
                state=state,
                reason=_said(reason),
                user=_said(user),
                account=_said(account),
                queue=_said(queue),
                elapsed_s=_seconds(used),
                limit_s=_seconds(limit),
                start=_said(start),
                num_nodes=int(num_nodes) if num_nodes.isdecimal() else 0,
                nodes=_said(nodes),
                memory=_size(memory, 1, 1),
            )
        )
    return found


def parse_accounting(text: str) -> list[JobFacts]:
    """Jobs of sacct with ACCOUNTING_FIELDS and SEPARATOR, in its order; one that started several times comes as often.

    A step's row follows its job's. Rows of another shape are passed over.
    """
    jobs: list[tuple[JobFacts, list[StepFacts]]] = []
    for line in text.splitlines():
        row = dict(zip(ACCOUNTING_FIELDS, line.split(SEPARATOR, len(ACCOUNTING_FIELDS) - 1)))
        if len(row) != len(ACCOUNTING_FIELDS) or not row["JobID"][:1].isdecimal():
            continue
        if "." not in row["JobID"]:
            jobs.append((_job(row), []))
        elif jobs and row["JobID"].partition(".")[0] == jobs[-1][0].id:
            jobs[-1][1].append(_step(row))
    return [replace(job, steps=tuple(steps)) for job, steps in jobs]


def parse_details(text: str) -> JobFacts:
    """Exit code and output files of `scontrol show job`.

    Only keys that begin a line are taken: names and comments may hold any text. Free text that stands before could
    still hold a line of its own, so the files are only looked at, never trusted.
    """

    def value(key: str) -> str:
        match = re.search(rf"^ +{key}=(.*)$", text, re.MULTILINE)
        return _said(match[1].strip()) if match else ""

    code = re.search(r"^ +Requeue=.* ExitCode=(\d{1,5}:\d{1,5})", text, re.MULTILINE)
    number, signal = _code(code[1] if code else "")
    outputs = dict.fromkeys(filter(None, (value("StdOut"), value("StdErr"))))
    return JobFacts(
        id="", code=number, signal=signal, work_dir=value("WorkDir"),
        outputs=tuple(name for name in outputs if name != "/dev/null"),
    )  # fmt: skip


def _job(row: dict[str, str]) -> JobFacts:
    code, signal = _code(row["ExitCode"])
    num_nodes = int(row["NNodes"]) if row["NNodes"].isdecimal() else 0
    num_cpus = int(row["NCPUS"]) if row["NCPUS"].isdecimal() else 0
    limit = row["TimelimitRaw"]
    return JobFacts(
        id=row["JobID"],
        raw_id=row["JobIDRaw"],
        state=row["State"],
        reason=_said(row["Reason"]),
        code=code,
        signal=signal,
        user=_said(row["User"]),
        account=_said(row["Account"]),
        queue=_said(row["Partition"]),
        elapsed_s=int(row["ElapsedRaw"]) if row["ElapsedRaw"].isdecimal() else None,
        limit_s=60 * int(limit) if limit.isdecimal() else None,
        num_nodes=num_nodes,
        nodes=_said(row["NodeList"]),
        memory=_size(row["ReqMem"], num_nodes, num_cpus),
        work_dir=_said(row["WorkDir"]),
    )


def _step(row: dict[str, str]) -> StepFacts:
    code, signal = _code(row["ExitCode"])
    rss = _size(row["MaxRSS"], 1, 1, default_unit="")
    return StepFacts(row["JobID"], row["State"], code, signal, rss, _said(row["MaxRSSNode"]), _said(row["NodeList"]))


def _code(text: str) -> tuple[int, int]:
    match = _CODE.fullmatch(text)
    return (int(match[1]), int(match[2])) if match else (0, 0)


def _size(text: str, num_nodes: int, num_cpus: int, *, default_unit: str = "M") -> int | None:
    """Bytes on each node: since 21.08 sacct gives the job's memory in all, before "16Gn" of a node, "4Gc" of a core."""
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        return None
    unit = match[2] or default_unit
    size = float(match[1]) * (_UNITS[unit] if unit else 1)
    if match[3] == "c":
        size *= max(1, num_cpus)
    return int(size if match[3] == "n" else size / max(1, num_nodes))


def _seconds(text: str) -> int | None:
    match = _TIME.fullmatch(text.strip())
    if match is None:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def _said(text: str) -> str:
    return "" if text in _NOTHING else text
