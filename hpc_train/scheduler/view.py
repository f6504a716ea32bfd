"""What is known of a run, from its directory and from its scheduler, as one record.

Apart from the commands because status, why, cancel and requeue all ask the same question. One query a scheduler for all
runs: login nodes are shared.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hpc_train.errors import SchedulerError, SiteError
from hpc_train.files import read_json
from hpc_train.recovery.evidence import read_decision
from hpc_train.recovery.policy import Decision
from hpc_train.run.journal import Event, last_commit, read_journal
from hpc_train.run.layout import RunDir
from hpc_train.scheduler.backend import JobState
from hpc_train.scheduler.kinds import make_backend

__all__ = ["RunView", "view_run", "view_runs"]

_NOT_SUBMITTED = JobState("unknown", reason="not submitted: no scheduler has taken it")


@dataclass(frozen=True)
class RunView:
    """One run at one instant.

    Attributes:  name: the job's name as it was asked for.   state: one of STATES.   step, total_steps, loss,
    last_commit: None where not known.   decision: of the newest attempt that has one.   newest: of the newest attempt,
    None where it has none.   job: what the scheduler said.
    """

    run: RunDir
    name: str
    job_id: str
    site: str
    scheduler: str
    state: str
    reason: str = ""
    attempts: int = 0
    step: int | None = None
    total_steps: int | None = None
    loss: float | None = None
    last_commit: int | None = None
    decision: Decision | None = None
    newest: Decision | None = None
    job: JobState = _NOT_SUBMITTED

    @property
    def job_id_shown(self) -> str:
        """The job id as a table shows it: a local job's holds a path that says nothing new."""
        return "local" if self.scheduler == "local" else self.job_id or "-"

    def to_json(self) -> dict[str, Any]:
        """The documented form of `status --json`; a loss that is no finite number is null, as JSON has none."""
        record = asdict(self)
        del record["newest"]
        record.update(run=self.run.name, run_dir=str(self.run.path), format="hpc-train-status", version=1)
        record["job"] = {"raw": self.job.raw, "reason": self.job.reason, "nodes": self.job.nodes}
        record["loss"] = self.loss if self.loss is not None and math.isfinite(self.loss) else None
        return record


def view_run(run: RunDir) -> RunView:
    """One run's view, for a command that will act on it.

    Raises: OSError if the run cannot be read; SchedulerError if its scheduler does not answer: what is not known to
    have ended must not be started again.
    """
    record = _submit_record(run)
    if not record["job_id"]:
        return _view(run, record, _NOT_SUBMITTED)
    return _view(run, record, make_backend(record["scheduler"]).states([record["job_id"]])[record["job_id"]])


def view_runs(runs: Sequence[RunDir]) -> list[RunView]:
    """The views of several runs, for reading, one query a scheduler.

    What cannot be read, or a scheduler that does not answer, gives the state "unknown" with the reason; nothing raises.
    """
    records = [_submit_record(run) for run in runs]
    states = _ask_schedulers(records)
    views = []
    for run, record in zip(runs, records, strict=True):
        job = states.get((record["scheduler"], record["job_id"]), _NOT_SUBMITTED)
        try:
            views.append(_view(run, record, job))
        except OSError as error:
            reason = f"cannot be read: {error.filename or run.path}: {error.strerror or error}"
            views.append(RunView(**_identity(run, record), state="unknown", reason=reason, job=job))
    return views


def _ask_schedulers(records: Sequence[Mapping[str, str]]) -> dict[tuple[str, str], JobState]:
    by_kind: dict[str, list[str]] = {}
    for record in records:
        if record["job_id"]:
            by_kind.setdefault(record["scheduler"], []).append(record["job_id"])
    states: dict[tuple[str, str], JobState] = {}
    for kind, job_ids in by_kind.items():
        try:
            found = make_backend(kind).states(job_ids)
        except (SchedulerError, SiteError) as error:
            # unknown is a value: the run directory still tells what it knows
            found = dict.fromkeys(job_ids, JobState("unknown", reason=str(error)))
        states.update({(kind, job_id): state for job_id, state in found.items()})
    return states


def _submit_record(run: RunDir) -> dict[str, str]:
    """Job id, scheduler and site of the newest submission that a scheduler took; empty texts if there is none."""
    try:
        submissions = run.submissions()
    except OSError:
        submissions = []
    for submission in reversed(submissions):
        try:
            record = read_json(submission.submit, limit=64 << 10)
            return {key: str(record[key]) for key in ("job_id", "scheduler", "site")}
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return {"job_id": "", "scheduler": "", "site": ""}


def _identity(run: RunDir, record: Mapping[str, str]) -> dict[str, Any]:
    try:
        name = read_json(run.record)["job_name"]
    except (OSError, ValueError, KeyError, TypeError):
        name = run.name
    return {"run": run, "name": str(name), **record}


def _view(run: RunDir, record: Mapping[str, str], job: JobState) -> RunView:
    attempts = run.attempts()
    events = read_journal(run)
    decisions = [decision for attempt in reversed(attempts) if (decision := read_decision(attempt)) is not None]
    newest = read_decision(attempts[-1]) if attempts else None
    state = _state(run, job, newest)
    return RunView(
        **_identity(run, record),
        state=state,
        reason=_reason(state, job, newest),
        attempts=len(attempts),
        step=_last_int(events, "step", "step"),
        total_steps=_last_int(events, "progress", "total_steps"),
        loss=_last_loss(events),
        last_commit=last_commit(events),
        decision=decisions[0] if decisions else None,
        newest=newest,
        job=job,
    )


def _state(run: RunDir, job: JobState, newest: Decision | None) -> str:
    word = "" if newest is None else newest.word
    if job.is_live and job.state != "completing":
        return job.state
    if word == "done":
        return "completed"
    if job.is_live and word in ("", "again", "again-elsewhere"):
        return job.state
    if run.cancelled.exists():
        return "cancelled"
    if word == "stop" and newest is not None and job.state in ("unknown", "failed", "completed", "completing"):
        # The scheduler has forgotten the job, or calls every end with a code "failed"; the run knows better.
        return newest.failure if newest.failure in ("timeout", "node_fail", "cancelled", "preempted") else "failed"
    if word == "hold" and job.state in ("unknown", "failed", "completed"):
        return "held"
    if job.state == "completed":
        # The scheduler saw code 0, but no rank's word says that the program finished.
        return "held" if word else "unknown"
    return job.state


def _reason(state: str, job: JobState, newest: Decision | None) -> str:
    """What the run says of its end, where it has ended; what the scheduler says of its waiting or of what it lost."""
    if newest is None or job.is_live or state == "unknown":
        return job.reason
    if state == "held" and newest.word not in ("hold", "stop"):
        return job.reason or newest.reason
    if state == "cancelled" and newest.word in ("again", "again-elsewhere"):
        return "cancelled while it waited to start again"  # its last words would say that it goes on
    return newest.reason or job.reason


def _last_int(events: Sequence[Event], name: str, key: str) -> int | None:
    found = (event.fields.get(key) for event in reversed(events) if event.event == name)
    return next((value for value in found if type(value) is int), None)


def _last_loss(events: Sequence[Event]) -> float | None:
    found = (event.fields.get("loss") for event in reversed(events) if event.event == "step")
    return next((float(loss) for loss in found if isinstance(loss, int | float) and not isinstance(loss, bool)), None)
