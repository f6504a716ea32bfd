"""What is known of a run, from its directory and from its scheduler, as one record.

Apart from the commands because status, why, logs and requeue all ask the same question. One query a scheduler for all
runs: login nodes are shared.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from hpc_train.errors import SchedulerError
from hpc_train.files import read_json
from hpc_train.recovery.evidence import read_decision
from hpc_train.recovery.policy import Decision
from hpc_train.run.journal import Event, last_commit, read_journal
from hpc_train.run.layout import RunDir
from hpc_train.scheduler.backend import JobState, make_backend

__all__ = ["RunView", "view_run", "view_runs"]


@dataclass(frozen=True)
class RunView:
    """One run at one instant.

    Attributes:  state: one of STATES.   step, total_steps, last_commit: None where not known.   decision: of the newest
    attempt that has one.   job: what the scheduler said.
    """

    run: RunDir
    job_id: str
    site: str
    scheduler: str
    state: str
    attempts: int
    step: int | None
    total_steps: int | None
    loss: float | None
    last_commit: int | None
    reason: str
    decision: Decision | None
    job: JobState

    @property
    def job_id_shown(self) -> str:
        """The job id as a table shows it: a local job's holds a path that says nothing new."""
        return "local" if self.scheduler == "local" else self.job_id

    def to_json(self) -> dict[str, Any]:
        """The documented form of `status --json`."""
        record = asdict(self)
        record.update(run=self.run.name, run_dir=str(self.run.path), format="hpc-train-status", version=1)
        record["job"] = {"raw": self.job.raw, "reason": self.job.reason, "nodes": self.job.nodes}
        return record


def view_run(run: RunDir) -> RunView:
    """One run's view. Raises: OSError, SchedulerError."""
    return view_runs([run])[0]


def view_runs(runs: Sequence[RunDir]) -> list[RunView]:
    """The views of several runs, one query a scheduler. Raises: OSError if a run cannot be read."""
    records = [_submit_record(run) for run in runs]
    by_kind: dict[str, list[str]] = {}
    for record in records:
        if record["job_id"]:
            by_kind.setdefault(record["scheduler"], []).append(record["job_id"])
    states: dict[str, JobState] = {}
    for kind, job_ids in by_kind.items():
        try:
            states.update(make_backend(kind).states(job_ids))
        except SchedulerError as error:
            # unknown is a value: the run directory still tells what it knows
            states.update({job_id: JobState("unknown", reason=str(error)) for job_id in job_ids})
    return [
        _view(run, record, states.get(record["job_id"], JobState("unknown", reason="not submitted")))
        for run, record in zip(runs, records, strict=True)
    ]


def _submit_record(run: RunDir) -> dict[str, str]:
    for submission in reversed(run.submissions()):
        try:
            record = read_json(submission.submit, limit=64 << 10)
            return {key: str(record[key]) for key in ("job_id", "scheduler", "site")}
        except (OSError, ValueError, KeyError, TypeError):
            continue
    return {"job_id": "", "scheduler": "", "site": ""}


def _view(run: RunDir, record: dict[str, str], job: JobState) -> RunView:
    attempts = run.attempts()
    events = read_journal(run)
    decisions = [decision for attempt in reversed(attempts) if (decision := read_decision(attempt)) is not None]
    newest = read_decision(attempts[-1]) if attempts else None
    step = _last(events, "step", "step")
    return RunView(
        run=run,
        job_id=record["job_id"],
        site=record["site"],
        scheduler=record["scheduler"],
        state=_state(run, job, newest),
        attempts=len(attempts),
        step=step,
        total_steps=_last(events, "progress", "total_steps"),
        loss=_last(events, "step", "loss"),
        last_commit=last_commit(events),
        reason=job.reason or (newest.reason if newest is not None else ""),
        decision=decisions[0] if decisions else None,
        job=job,
    )


def _state(run: RunDir, job: JobState, newest: Decision | None) -> str:
    if run.cancelled.exists() and not job.is_live:
        return "cancelled"
    if job.state == "completed" and (newest is None or newest.word != "done"):
        # Slurm saw code 0, but no rank's word says that the program finished.
        return "unknown" if newest is None else "failed" if newest.word == "stop" else "held"
    if job.state in ("unknown", "failed", "completing") and newest is not None:
        # The scheduler has forgotten the job, or calls every end with a code "failed"; the run knows better.
        if newest.word == "done":
            return "completed"
        if newest.word == "stop":
            return {"timeout": "timeout", "node_fail": "node_fail"}.get(newest.failure, "failed")
        if newest.word == "hold" and job.state != "completing":
            return "held"
    return job.state


def _last(events: list[Event], name: str, key: str) -> Any:
    for event in reversed(events):
        if event.event == name and event.fields.get(key) is not None:
            return event.fields[key]
    return None
