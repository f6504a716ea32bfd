"""Lets a run go on: the same request once more (requeue), or a changed one as a further submission (resume).

Apart from submitting because the run is there already: what must not happen is two jobs of one run. So one command at
a time claims the run, a job that may still do something is left alone, and older submissions are fenced off
(`run.ownership.check_submission`).
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shlex
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpc_train.diagnosis.reasons import is_held_by_site
from hpc_train.errors import SchedulerError, SpecError, from_os_error
from hpc_train.files import read_text, write_atomic
from hpc_train.job.loader import LoadedJob, RecordedJob, changed_values, revise_job
from hpc_train.job.spec import JobSection
from hpc_train.recovery.evidence import read_not_continued
from hpc_train.run.copied import original_of
from hpc_train.run.journal import Event, Journal, read_journal
from hpc_train.run.kept import describe_gone, warn_of_loss
from hpc_train.run.layout import RunDir, SubmissionDir
from hpc_train.scheduler.job_records import is_noted, read_submit_records
from hpc_train.scheduler.kinds import make_backend
from hpc_train.scheduler.planning import choose_launch, plan_for
from hpc_train.scheduler.records import read_records
from hpc_train.scheduler.remarks import remarks_on
from hpc_train.scheduler.script import Plan
from hpc_train.scheduler.sizes import Streams, check_ranks, find_streams
from hpc_train.scheduler.submission import Request, Submitted, add_submission, note_job
from hpc_train.scheduler.view import RunView, view_run
from hpc_train.site.loader import LoadedSite, site_from_json
from hpc_train.site.spec import Site

__all__ = ["Resumed", "find_job_ids", "preview", "requeue", "resume"]


MAX_SHOWN = 60  # of one value that has changed
_NOTHING_NEW = (
    "the run had completed, and nothing is changed: a program that loads its checkpoint ends at once, any other trains "
    "all again (hpc-train cancel {name}); to train further: hpc-train resume {name} -- COMMAND"
)


@dataclass(frozen=True)
class Resumed:
    """A run that goes on with a changed request.

    Attributes:  job: what it asks for now.   changes: what is new of that, one text each, "nodes 4 -> 2".
    """

    submitted: Submitted
    job: JobSection
    changes: tuple[str, ...]
    warnings: tuple[str, ...]


def requeue(run: RunDir, environ: Mapping[str, str]) -> str:
    """Let a run go on with the same request: its job is released or requeued, else submitted anew. Returns the job id.

    Raises: SpecError (it is alive, complete, or claimed by another command), SchedulerError, and as `submit`. A
    cancelled run stays cancelled then.
    """
    with _claimed(run):
        number = _next_number(run)
        was_cancelled = run.cancelled.exists()
        _adopt(run, environ)
        view = view_run(run)
        if view.state == "completed":
            more = f"to train it further: hpc-train resume {run.name} -- COMMAND"
            raise SpecError(f"run {run.name} has completed; there is nothing left to do ({more})")
        _refuse_copy(view)
        _refuse_alive(view, "it goes on by itself")

        def start() -> Submitted:
            newest = run.newest_submission()
            is_submitted = newest is not None and is_noted(newest)
            if is_submitted and view.job_id and make_backend(view.scheduler).requeue(view.job_id, view.job):
                return Submitted(run, view.job_id, view.scheduler, ())
            plan, request = _plan_same(run, number)
            return add_submission(plan, request, environ)

        _tell(run, "requeue_asked")
        return _uncancelled(run, was_cancelled, start).job_id


def resume(run: RunDir, flags: Mapping[str, Any], environ: Mapping[str, str]) -> Resumed:
    """Let a run go on as a new submission, with what `flags` give and otherwise as its newest submission was asked.

    Args:  flags: as of `load_job`.
    Raises: SpecError (it is alive, claimed by another command, or cannot run so), SchedulerError, and as `submit`.
    Nothing has changed then.
    """
    with _claimed(run):
        number = _next_number(run)
        was_cancelled = run.cancelled.exists()
        _adopt(run, environ)
        view = view_run(run)
        _refuse_copy(view)
        first = f"to run it otherwise, first: hpc-train cancel {run.name}"
        _refuse_alive(view, f"{first}, and resume it once that has ended")
        revision = _revise(run, number, flags, environ)
        _tell(run, "resume_asked", submission=number, changed=[key for key, _, _ in revision.changed])
        done = _uncancelled(run, was_cancelled, lambda: add_submission(revision.plan, revision.request, environ))
        warning = warn_of_loss(run, _events(run))
        warnings = (*done.warnings, *remarks_on(revision.plan, environ), *_drop_held(view))
        if warning:
            warnings = (*warnings, warning)
        elif view.state == "completed" and not revision.changes:
            warnings = (*warnings, _NOTHING_NEW.format(name=run.name))
    return Resumed(done, revision.plan.job.job, revision.changes, warnings)


def preview(run: RunDir, flags: Mapping[str, Any], environ: Mapping[str, str]) -> tuple[Plan, tuple[str, ...]]:
    """What `resume` would submit, checked alike, and what changes. Writes nothing; does not ask the scheduler."""
    revision = _revise(run, _next_number(run), flags, environ)
    return revision.plan, revision.changes


@contextlib.contextmanager
def _claimed(run: RunDir) -> Iterator[None]:
    """Keep other commands that would let the run go on out. Raises: SpecError if there is one.

    Where the file system has no locks, the atomic mkdir of the next submission decides instead: its number is chosen
    before the scheduler is asked.
    """
    try:
        fd = os.open(run.claim, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise from_os_error(error, f"cannot write into {run.path}") from error
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EACCES):
            os.close(fd)
            raise SpecError(
                f"another command lets run {run.name} go on just now; see: hpc-train status {run.name}"
            ) from error
    try:
        yield
    finally:
        os.close(fd)


def _next_number(run: RunDir) -> int:
    return max((each.number for each in run.submissions()), default=-1) + 1


def find_job_ids(run: RunDir) -> dict[str, list[str]]:
    """The jobs of a run by kind of scheduler, the newest first; also one that nobody lived to note.

    Raises: SchedulerError if one may have gone unnoted and the scheduler does not answer; SiteError.
    """
    by_kind: dict[str, list[str]] = {}
    with contextlib.suppress(FileNotFoundError):  # without a record of the site nobody knows whom to ask
        if found := _find_unnoted(run):
            _, site, job_id = found
            by_kind[site.scheduler.kind] = [job_id]
    for record in read_submit_records(run):
        by_kind.setdefault(record["scheduler"], []).append(record["job_id"])
    return by_kind


def _find_unnoted(run: RunDir) -> tuple[SubmissionDir, Site, str] | None:
    """The job of a newest submission that no record tells, None if there is none.

    Its command was killed after the scheduler had taken it, or the record has been damaged since.
    Raises: SchedulerError if the scheduler does not answer; SiteError, OSError.
    """
    newest = run.newest_submission()
    if newest is None or is_noted(newest):
        return None
    site = site_from_json(read_text(newest.site), str(newest.site))
    job_id = make_backend(site.scheduler.kind).find(run, newest)
    return None if job_id is None else (newest, site, job_id)


def _adopt(run: RunDir, environ: Mapping[str, str]) -> None:
    found = _find_unnoted(run)
    if found is not None:
        submission, site, job_id = found
        note_job(run, submission, site, job_id, environ)


def _refuse_copy(view: RunView) -> None:
    """A job that still lives belongs to the run whose directory was copied. Raises: SpecError."""
    if (view.job.is_live or view.job.state == "held") and (original := original_of(view.run)):
        raise SpecError(
            f"{view.run.path} is a copy, and job {view.job_id_shown} is that of {original}; once that has ended the "
            "copy can go on by itself"
        )


def _refuse_alive(view: RunView, remedy: str) -> None:
    """Raises: SpecError if the run's job may still do something."""
    job, name = view.job, view.run.name
    if job.is_live:
        remedy = "ask again once it has ended" if job.state == "completing" else remedy
        raise SpecError(f"run {name}: its job {view.job_id} is {job.state}; {remedy}")
    if job.state == "held" and is_held_by_site(job.reason):  # a new job would get round whoever holds this one
        raise SpecError(
            f"run {name}: an administrator of the site holds its job {view.job_id} ({job.reason}); ask the site, or "
            f"give the job up first: hpc-train cancel {name}"
        )
    is_elsewhere = view.scheduler == "local" and job.nodes not in ("", socket.gethostname())
    if is_elsewhere and view.state == "unknown":
        raise SpecError(
            f"run {name}: it may still run on {job.nodes}; go on there, or if that machine is gone for good, first: "
            f"hpc-train cancel {name}"
        )


def _tell(run: RunDir, event: str, **fields: Any) -> None:
    """Journal that a person let the run go on: failures up to here no longer count."""
    attempts = run.attempts()
    # Gone as seen from here, or as the last start that was refused has told: else nobody has agreed to begin anew.
    knew_gone = bool(attempts and read_not_continued(attempts[-1])) or bool(describe_gone(run, _events(run)))
    after = attempts[-1].number if attempts else -1
    Journal(run, "login").append(event, after_attempt=after, knew_gone=knew_gone, **fields)


def _events(run: RunDir) -> list[Event]:
    """The journal without steps. Raises: an error that names what cannot be read."""
    try:
        return read_journal(run, without=("step",))
    except OSError as error:
        raise from_os_error(error, f"run {run.name} cannot go on: cannot read {error.filename}") from error


def _uncancelled(run: RunDir, was_cancelled: bool, start: Callable[[], Submitted]) -> Submitted:
    """Start with the mark of an earlier cancel taken away; put it back if that fails.

    A cancel that comes in between may not have seen the new job: it wins, and the job is cancelled here.
    """
    if was_cancelled:
        run.cancelled.unlink(missing_ok=True)  # before the start, which looks for it
    try:
        started = start()
    except BaseException:
        if was_cancelled:
            write_atomic(run.cancelled, "cancelled by its user\n")
        raise
    if run.cancelled.exists():
        make_backend(started.scheduler).cancel(started.job_id)
        raise SpecError(f"run {run.name} was cancelled in the meantime, and its new job {started.job_id} too")
    return started


def _drop_held(view: RunView) -> tuple[str, ...]:
    """Take the held job of the submission before out of the queue: it could start nothing any more."""
    if view.job.state != "held" or view.scheduler == "local":  # where a held job is no job, only a record
        return ()
    try:
        make_backend(view.scheduler).cancel(view.job_id)
    except SchedulerError as error:
        return (f"the held job {view.job_id} of the submission before stays in the queue, and starts nothing: {error}",)
    return ()


def _base(run: RunDir) -> SubmissionDir:
    before = run.newest_submission()
    if before is None:
        raise SpecError(f"run {run.name} was never submitted as a whole; submit it anew and remove {run.path}")
    return before


def _plan_same(run: RunDir, number: int) -> tuple[Plan, Request]:
    """The plan of the same request once more, not checked anew: what was queued once is queued again."""
    before = read_records(run, _base(run))
    plan = Plan(
        job=before.job,
        site=before.site,
        placement=before.placement,
        run=run,
        submission=run.submission(number),
        python=before.python,
        mpi=choose_launch(before.job, before.site, before.python),
        workdir=before.workdir,
    )
    return plan, before.request


@dataclass(frozen=True)
class _Revision:
    """A changed request: `changed` holds (dotted key, old value, new value)."""

    plan: Plan
    request: Request
    changed: tuple[tuple[str, Any, Any], ...]
    changes: tuple[str, ...]


def _revise(run: RunDir, number: int, flags: Mapping[str, Any], environ: Mapping[str, str]) -> _Revision:
    base = _base(run)
    before = read_records(run, base)
    recorded = RecordedJob(
        text=before.job_text,
        where=str(base.job),
        submission=base.number,
        origins=before.request.origins,
        site=LoadedSite(before.site, base.site, {}),
        directory=before.request.directory or Path(before.workdir),
    )
    loaded = revise_job(recorded, _rooted(flags), environ)
    plan = plan_for(loaded, run, number, python=before.python, workdir=before.workdir)
    streams = _check_size(run, plan, loaded, flags)
    changed = changed_values(before.job, loaded.spec)
    texts = [f"{key.rpartition('.')[2]} {' -> '.join(_shown(old, new))}" for key, old, new in changed]
    if before.num_ranks != plan.placement.num_ranks:
        sizes = f"{before.num_ranks} -> {plan.placement.num_ranks} ranks"
        same = "the same samples in the same order, but not bit-equal"
        texts.append(f"{sizes}: {same if streams else 'how it deals the samples to them is up to the program'}")
    return _Revision(plan, Request(loaded.origins, recorded.directory), tuple(changed), tuple(texts))


def _rooted(flags: Mapping[str, Any]) -> dict[str, Any]:
    """Flags whose paths start where they were typed, not where the run was first submitted."""
    venv = flags.get("env.venv")
    return {**flags, "env.venv": os.path.abspath(os.path.expanduser(venv))} if venv else dict(flags)


def _check_size(run: RunDir, plan: Plan, loaded: LoadedJob, flags: Mapping[str, Any]) -> Streams | None:
    """A number of ranks to which the run's batches cannot be dealt must not wait in a queue first.

    Returns: the streams that the run has opened, None if it reads its data by other means.
    """
    streams = find_streams(_events(run))
    if streams is not None and flags.get("data.global_batch") is None:  # else the plan was held against the new one
        asked = f"{plan.placement.num_nodes} nodes x {loaded.spec.job.ranks_per_node} ranks_per_node"
        check_ranks(plan.placement.num_ranks, streams, run=run.name, asked=asked)
    return streams


def _shown(old: Any, new: Any) -> tuple[str, str]:
    """Both values in short, from where they begin to differ if they are long."""
    texts = [_text(old), _text(new)]
    if max(map(len, texts)) <= MAX_SHOWN:
        return texts[0], texts[1]
    words = [text.split(" ") for text in texts]
    num_same = next((n for n, pair in enumerate(zip(*words, strict=False)) if pair[0] != pair[1]), min(map(len, words)))
    shown = [" ".join(["…", *each[num_same:]] if num_same else each) for each in words]
    one, other = (text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 1]}…" for text in shown)
    return one, other


def _text(value: Any) -> str:
    if isinstance(value, list | tuple):
        value = shlex.join(map(str, value))
    return "none" if value in (None, "") else str(value)
