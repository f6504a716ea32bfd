"""What is known of a run, from its directory and from its scheduler, as one record.

Apart from the commands because status, why, cancel and requeue all ask the same question. One query a scheduler for all
runs: login nodes are shared.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from hpc_train.diagnosis.for_run import name_run
from hpc_train.diagnosis.reasons import explain_reason, is_failed_launch, is_held_by_site
from hpc_train.errors import SchedulerError, SiteError
from hpc_train.files import read_json, why_unreadable
from hpc_train.recovery.evidence import read_decision, read_not_continued, submission_of
from hpc_train.recovery.policy import GOES_ON, Decision
from hpc_train.run.journal import Event
from hpc_train.run.layout import RunDir, SubmissionDir
from hpc_train.run.newest import JournalTail, Newest, find_ready_time, newest_checkpoint
from hpc_train.scheduler.backend import JobState
from hpc_train.scheduler.job_records import NO_RECORD, bad_record, newest_records
from hpc_train.scheduler.kinds import make_backend
from hpc_train.scheduler.standing import Standing, measure, revised_total, sane_seconds

__all__ = ["CACHED_S", "RunView", "is_held_by_slurm", "view_run", "view_runs"]

STARTING_S = 120.0  # after its ranks are ready a program that tells steps has mostly told its first
CACHED_S = 10.0  # what a scheduler has said may be so old for commands that only show it

_NOT_SUBMITTED = JobState("unknown", reason="not submitted: no scheduler has taken it")
_STATES_OF_FAILURE = ("timeout", "node_fail", "cancelled", "preempted")  # classes that are states too
_ENDS = ("failed", "timeout", "out_of_memory", "node_fail", "preempted")
_NOTHING = Standing()


@dataclass(frozen=True)
class RunView:
    """One run at one instant.

    Attributes:  name: the job's name as it was asked for.   state: one of STATES.   standing: how far it is.
    ended_before_cancel: the state in which it had ended when it was cancelled, "" where it had not.   decision: of the
    newest attempt that has one.   newest: of the newest attempt, None where it has none.   unbegun: that the newest
    submission's batch script ended before any attempt had begun, "" where it did not.   not_continued: why a held run
    did not go on though its newest decision was to, "" where the decision held it.   job: what the scheduler said.
    walltime_s: limit of the newest attempt, None for none or where it is not known.   ready_time: when the last of its
    ranks so far was ready, None before it has begun.   time: of the view, for ages.
    """

    run: RunDir
    name: str
    job_id: str
    site: str
    scheduler: str
    state: str
    reason: str = ""
    attempts: int = 0
    standing: Standing = _NOTHING
    ended_before_cancel: str = ""
    decision: Decision | None = None
    newest: Decision | None = None
    unbegun: str = ""
    not_continued: str = ""
    job: JobState = _NOT_SUBMITTED
    walltime_s: float | None = None
    ready_time: float | None = None
    time: float = 0.0

    @property
    def step(self) -> int | None:
        """The newest step."""
        return self.standing.step

    @property
    def total_steps(self) -> int | None:
        """Where the run ends, if the program said so."""
        return self.standing.total_steps

    @property
    def loss(self) -> float | None:
        """The loss of the newest step that has one."""
        return self.standing.loss

    @property
    def last_commit(self) -> int | None:
        """Step of the newest checkpoint."""
        return self.standing.last_commit

    @property
    def is_over(self) -> bool:
        """Whether nothing more happens by itself; a scheduler that did not answer leaves that open."""
        return not self.job.is_live and self.job.is_answer

    @property
    def walltime_left_s(self) -> float | None:
        """What is left of the running attempt's time limit."""
        began = self.standing.attempt_time
        if self.state != "running" or self.newest is not None or began is None or self.walltime_s is None:
            return None
        return sane_seconds(began + self.walltime_s - self.time)

    @property
    def state_shown(self) -> str:
        """The state for a person: a cancel does not hide how the run had ended before."""
        return f"{self.ended_before_cancel}, then cancelled" if self.ended_before_cancel else self.state

    @property
    def eta_s(self) -> float | None:
        """Seconds of computing that are left, for a run that runs."""
        return self.standing.eta_s if self.state == "running" else None

    @property
    def is_starting(self) -> bool:
        """Whether a program that tells steps may not have come to its first yet: it imports, loads, compiles."""
        is_young = self.ready_time is None or self.time - self.ready_time < STARTING_S
        return self.state == "running" and self.newest is None and not self.standing.tells_steps and is_young

    @property
    def unwatched(self) -> str:
        """What is not watched of a program that runs and tells no steps, and what it may call; "" where it does."""
        if self.state != "running" or self.newest is not None or self.standing.tells_steps:
            return ""
        if self.is_starting:
            return "starting: no step told so far"
        if self.last_commit is not None:
            return "no steps so far, only commits: a hang is not seen; tell steps with hpc_train.Progress"
        return (
            "no steps so far: only the life of its ranks is watched; tell steps with hpc_train.Progress, saves with "
            "hpc_train.commit"
        )

    @property
    def job_id_shown(self) -> str:
        """The job id as a table shows it: a local job's holds a path that says nothing new."""
        return "local" if self.scheduler == "local" else self.job_id or "-"

    def age_s(self, moment: float | None) -> float | None:
        """Seconds since a moment that a node's clock gave; never negative, as clocks differ."""
        return None if moment is None else sane_seconds(self.time - moment)

    def to_json(self) -> dict[str, Any]:
        """The documented form of `status --json`; a number that is not finite is null, as JSON has none."""
        standing = self.standing
        record = {key: getattr(self, key) for key in ("name", "job_id", "site", "scheduler", "state", "reason")}
        numbers = {key: getattr(standing, key) for key in ("step", "total_steps", "loss", "last_commit", "progress")}
        numbers |= {"steps_per_s": standing.steps_per_s, "samples_per_s": standing.samples_per_s}
        numbers |= {"last_step_age_s": self.age_s(standing.step_time), "started": standing.attempt_time}
        numbers |= {"last_commit_age_s": self.age_s(standing.commit_time), "walltime_s": self.walltime_s}
        numbers |= {"walltime_left_s": self.walltime_left_s, "eta_s": self.eta_s}
        return {
            "format": "hpc-train-status",
            "version": 1,
            "run": self.run.name,
            "run_dir": str(self.run.path),
            **record,
            "attempts": self.attempts,
            **{key: _finite(value) for key, value in numbers.items()},
            "decision": None if self.decision is None else asdict(self.decision),
            "job": {"raw": self.job.raw, "reason": self.job.reason, "nodes": self.job.nodes},
        }


def _finite(value: float | None) -> float | None:
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else None
    return value


def view_run(run: RunDir) -> RunView:
    """One run's view, for a command that will act on it.

    Raises: OSError if the run cannot be read; SchedulerError if its scheduler does not answer: what is not known to
    have ended must not be started again.
    """
    records = newest_records(run)
    if not records:
        return _view(run, NO_RECORD, _NOT_SUBMITTED, JournalTail(run).read())
    kind = records[0]["scheduler"]
    found = make_backend(kind).states([record["job_id"] for record in records])
    record, job = _choose(records, {(kind, job_id): state for job_id, state in found.items()})
    return _view(run, record, job, JournalTail(run).read())


def view_runs(
    runs: Sequence[RunDir], *, max_age_s: float = CACHED_S, tails: dict[RunDir, JournalTail] | None = None
) -> list[RunView]:
    """The views of several runs, for reading, one query a scheduler.

    What cannot be read, or a scheduler that does not answer, gives the state "unknown" with the reason; nothing raises.
    Args:  max_age_s: how old a scheduler's answer may be; 0 asks anew.   tails: kept by who asks again and again, so
    that only what was added to a journal is read.
    """
    records = [newest_records(run) for run in runs]
    states = _ask_schedulers([record for of_run in records for record in of_run], max_age_s)
    tails = {} if tails is None else tails
    views = []
    for run, of_run in zip(runs, records, strict=True):
        record, job = _choose(of_run, states)
        try:
            views.append(_view(run, record, job, *_read(run, tails.setdefault(run, JournalTail(run)))))
        except OSError as error:
            reason = why_unreadable(error.filename or run.path, error)
            views.append(RunView(**_identity(run, record), state="unknown", reason=reason, job=job, time=time.time()))
    return views


def _ask_schedulers(records: Sequence[Mapping[str, str]], max_age_s: float) -> dict[tuple[str, str], JobState]:
    by_kind: dict[str, list[str]] = {}
    for record in records:
        if record["job_id"]:
            by_kind.setdefault(record["scheduler"], []).append(record["job_id"])
    states: dict[tuple[str, str], JobState] = {}
    for kind, job_ids in by_kind.items():
        try:
            found = make_backend(kind).states(job_ids, max_age_s=max_age_s)
        except (SchedulerError, SiteError) as error:
            # unknown is a value: the run directory still tells what it knows
            found = dict.fromkeys(job_ids, JobState("unknown", reason=str(error), is_answer=False))
        states.update({(kind, job_id): state for job_id, state in found.items()})
    return states


def _choose(
    records: Sequence[dict[str, str]], states: Mapping[tuple[str, str], JobState]
) -> tuple[dict[str, str], JobState]:
    """The job that tells how the run stands: the one that runs, else the newest."""
    if not records:
        return NO_RECORD, _NOT_SUBMITTED
    known = [(record, states.get((record["scheduler"], record["job_id"]), _NOT_SUBMITTED)) for record in records]
    return next((each for each in known if each[1].state in ("running", "completing")), known[0])


def _identity(run: RunDir, record: Mapping[str, str]) -> dict[str, Any]:
    try:
        name = read_json(run.record)["job_name"]
    except (OSError, ValueError, KeyError, TypeError):
        name = run.name
    return {"run": run, "name": str(name), **record}


def _read(run: RunDir, tail: JournalTail) -> tuple[Newest, str]:
    """The newest events; none, and why, where they cannot be read: how far the run is, is not known then."""
    try:
        return tail.read(), ""
    except OSError as error:
        return Newest(), why_unreadable(error.filename or run.journal, error)


def _view(run: RunDir, record: Mapping[str, str], job: JobState, events: Newest, problem: str = "") -> RunView:
    attempts = run.attempts()
    standing = _with_checkpoint(run, _with_new_total(run, measure(events), events.progress))
    decisions = [decision for attempt in reversed(attempts) if (decision := read_decision(attempt)) is not None]
    # An attempt of an earlier submission says nothing of how this one ends.
    is_of_newest = bool(attempts) and submission_of(attempts[-1], 0) >= _newest_taken(run)
    newest = read_decision(attempts[-1]) if is_of_newest else None
    unbegun = "" if is_of_newest else _unbegun(run, job)
    state = _state(run, job, newest)
    if state == "unknown" and unbegun:
        state = "failed"  # its code 0 is that of a line before the ranks
    before = _state_before_cancel(job, newest) if state == "cancelled" and run.cancelled.exists() else ""
    is_stuck = state == "held" and newest is not None and newest.word in GOES_ON
    not_continued = read_not_continued(attempts[-1]) if is_stuck else ""
    reason = not_continued or _reason(run, state, job, newest)
    if state == "failed" and unbegun:
        reason = f"{unbegun}; see: hpc-train why {run.name}"
    if not record["job_id"] and newest is None:
        reason = bad_record(run) or reason
    reason = "; ".join(filter(None, [problem, reason]))
    return RunView(
        **_identity(run, record),
        state=state,
        reason=f"{before}, then cancelled: {reason}".removesuffix(": ") if before else reason,
        ended_before_cancel=before,
        attempts=len(attempts),
        standing=standing,
        decision=decisions[0] if decisions else None,
        newest=newest,
        unbegun=unbegun,
        not_continued=not_continued,
        job=job,
        walltime_s=_walltime_s(run),
        ready_time=find_ready_time(attempts[-1]) if attempts else None,
        time=time.time(),
    )


def _with_checkpoint(run: RunDir, standing: Standing) -> Standing:
    """With the checkpoint that lies in the run, where its journal (which may have been cleaned away) tells of none."""
    found = newest_checkpoint(run) if standing.last_commit is None else None
    return standing if found is None else replace(standing, last_commit=found[0], commit_time=found[1])


def _with_new_total(run: RunDir, standing: Standing, told: Event | None) -> Standing:
    """With the steps that the newest submission asks for, where an earlier one's program told the total."""
    newest = _newest_taken(run)
    number = newest if told is None else submission_of(run.attempt(told.attempt), newest)
    if standing.total_steps is None or number >= newest:
        return standing
    before, now = (_command(run.submission(each)) for each in (number, newest))
    return replace(standing, total_steps=revised_total(standing.total_steps, before, now))


def _command(submission: SubmissionDir) -> list[str]:
    try:
        return list(map(str, read_json(submission.launch)["command"]))
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _newest_taken(run: RunDir) -> int:
    """Number of the newest submission that a scheduler took, 0 if none did."""
    return max((each.number for each in run.submissions() if each.submit.exists()), default=0)


def _walltime_s(run: RunDir) -> float | None:
    for submission in reversed(run.submissions()):
        try:
            value = read_json(submission.launch)["walltime_s"]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
    return None


def _state(run: RunDir, job: JobState, newest: Decision | None) -> str:
    word = "" if newest is None else newest.word
    if job.is_live and job.state != "completing":
        return job.state
    if word == "done":
        return "completed"
    if job.is_live and word in ("", *GOES_ON):
        return job.state
    if run.cancelled.exists():
        return "cancelled"
    if word == "stop" and newest is not None and job.state in ("unknown", "failed", "completed", "completing"):
        # The scheduler has forgotten the job, or calls every end with a code "failed"; the run knows better.
        return newest.failure if newest.failure in _STATES_OF_FAILURE else "failed"
    if word == "hold" and job.state in ("unknown", "failed", "completed"):
        return "held"
    if job.state == "completed":
        # The scheduler saw code 0, but no rank's word says that the program finished.
        return "held" if word else "unknown"
    return job.state


def _unbegun(run: RunDir, job: JobState) -> str:
    """That the batch script of a submission without an attempt ended, and how; "" where it lives, or never began."""
    if job.state not in ("completed", "failed") or not run.submission(_newest_taken(run)).batch_log.exists():
        return ""
    of_code = "" if job.state == "failed" else " with code 0"
    said = job.reason if job.reason.startswith("the batch script ended") else f"the batch script ended{of_code}"
    return f"{said} before any attempt had begun"


def _state_before_cancel(job: JobState, newest: Decision | None) -> str:
    """The state in which a cancelled run had ended, or was held, before; "" where it was the cancel that ended it."""
    if newest is None:
        return job.state if job.state in _ENDS else ""
    if newest.word not in ("stop", "hold") or newest.failure == "cancelled":
        return ""
    if newest.word == "hold":
        return "held"
    return newest.failure if newest.failure in _STATES_OF_FAILURE else "failed"


def _reason(run: RunDir, state: str, job: JobState, newest: Decision | None) -> str:
    """What the run says of its end, where it has ended; what the scheduler says of its waiting or of what it lost."""
    if state == "held" and is_held_by_slurm(job, newest):
        return _held(run, job)
    if newest is None or job.is_live or state == "unknown":
        return job.reason
    if state == "held" and newest.word not in ("hold", "stop"):
        return job.reason or name_run(newest.reason, run.name)
    if newest.word in GOES_ON:  # its last words would say that it goes on
        ended = f"{newest.cause or newest.failure}; it did not start again; to go on: hpc-train requeue {run.name}"
        return "cancelled while it waited to start again" if state == "cancelled" else ended
    return name_run(newest.reason, run.name) or job.reason


def is_held_by_slurm(job: JobState, newest: Decision | None) -> bool:
    """Whether a held job is held for Slurm's own reasons or a person's, and not because the run's decision said so.

    Our batch shell holds by requeuehold, also where a full disk took no decision from it.
    """
    is_ours = job.reason.replace("_", " ").lower() == "job requeued in held state"
    decided = is_ours or (newest is not None and newest.word == "hold")
    return job.raw == "PENDING" and bool(job.reason) and not (decided and not is_failed_launch(job.reason))


def _held(run: RunDir, job: JobState) -> str:
    """Why the job is held, and what to type; the command first, as a table may cut the rest."""
    reason = explain_reason(job.reason)
    if reason is None:
        return job.reason
    if is_held_by_site(job.reason):
        return f"{reason.meaning} ({job.reason})"
    return f"hpc-train requeue {run.name}: {reason.meaning} ({job.reason})"
