"""From what Slurm says of a job and what its logs say to one diagnosis. Pure.

Apart from both sources, since they contradict each other: Slurm calls every end with a code "failed" and a hang a "time
limit", while a log may hold an exception that the program survived. Standard library only.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hpc_train.diagnosis.engine import Finding, fill_in
from hpc_train.diagnosis.job_facts import JobFacts
from hpc_train.diagnosis.reasons import explain_reason, why_not_started

__all__ = ["LIVE", "Diagnosis", "judge", "of_log", "shown_size", "shown_time", "with_numbers"]

LIVE = ("RUNNING", "COMPLETING", "SUSPENDED", "CONFIGURING", "STAGE_OUT", "RESIZING", "SIGNALING", "STOPPED")
# After a time limit or a scancel an earlier error in the log counts only if about nothing was printed after it: else
# the program had survived it. A job's dying words (one line a rank and more) must fit.
MAX_LINES_AFTER = 200
# A process that had nearly all of the memory and was killed was killed for it.
NEARLY_ALL = 0.9

# class, meaning, who acts, next; {job}, {host}, {limit} and {user} are filled in.
_STATES = {
    "NODE_FAIL": ("node_fail", "a node of the job went away", "site",
                  "submit again, unless Slurm requeued it; see the nodes: sinfo -R"),
    "BOOT_FAIL": ("infrastructure", "its nodes could not be started", "site",
                  "submit again; tell the site if it stays"),
    "PREEMPTED": ("preempted", "a job of a higher priority took its nodes", "wait",
                  "submit again with checkpoints, or to a queue that is not preempted"),
    "OUT_OF_MEMORY": ("out_of_memory", "a process used more host memory than the job had, and was killed", "you",
                      "ask for more: sbatch --mem=… SCRIPT"),
    "DEADLINE": ("timeout", "its deadline (--deadline) came first", "you", "submit again with a later deadline"),
    "TIMEOUT": ("timeout", "it used all the time that it had asked for ({limit})", "you",
                "ask for more: sbatch --time=… SCRIPT; or save before the end and go on (hpc-train submit does both)"),
    "CANCELLED": ("cancelled", "it was cancelled by {user}", "you", "nothing, if that was meant; else submit it again"),
    "REVOKED": ("cancelled", "another cluster of the federation took it", "you", "squeue --federation -j {job}"),
}  # fmt: skip
_OF_PENDING = re.compile(r": cancel it\b.*")  # what is to be done with a job that still waits
# Here Slurm knows better than any log.
_SURE = ("NODE_FAIL", "BOOT_FAIL", "PREEMPTED", "OUT_OF_MEMORY", "DEADLINE", "REVOKED")
# An exit code or a signal alone, where no log says more.
_CODES = {
    126: ("permission", "a program of the script may not be executed", "you", "chmod +x PROGRAM; look at the log"),
    127: ("config", "a command of the script was not found on the node", "you",
          "load the module or activate the environment in the script"),
}  # fmt: skip
_SIGNALS = {
    6: ("crash", "a process aborted itself (SIGABRT)"), 7: ("crash", "a process met a bus error: /dev/shm may be full"),
    9: ("killed", "a process was killed (SIGKILL): mostly for its memory"),
    11: ("crash", "a process crashed (SIGSEGV)"),
    15: ("cancelled", "its processes were told to end (SIGTERM)"),
    53: ("config", "Slurm could not open the log file (--output) or enter the working directory on the node"),
}  # fmt: skip


@dataclass(frozen=True)
class Diagnosis:
    """What happened and what to do.

    Attributes:  failure: a class, or waiting, running, completed, unknown.   what: one sentence.   who: you, site,
    wait or "" (nobody).   next: what to type.   pattern: id of the pattern that was found, "" if none.   rank, host:
    first failing ones as far as known.   evidence: "place: line", the best first.   also: what else was found.
    """

    failure: str
    what: str
    who: str
    next: str
    pattern: str = ""
    rank: int | None = None
    host: str = ""
    evidence: tuple[str, ...] = ()
    also: tuple[str, ...] = ()


def of_log(findings: Sequence[Finding], *, job: str = "", host: str = "", run: str = "") -> Diagnosis:
    """What logs alone say; class "unknown" where they say nothing that is known.

    Args:  job, host: stand in the words where the log itself does not name them.   run: of which run of hpc-train the
    logs are, "" if of none: then the pattern's advice for runs counts.
    """
    if not findings:
        say = "the logs hold nothing that is known here"
        return Diagnosis("unknown", say, "you", "read their ends; give all logs: --log FILE --log FILE")
    best = findings[0]
    pattern = best.pattern
    values = {"job": job, "host": "" if best.host else host, "run": run}
    then = pattern.run if run and pattern.run else pattern.next
    return Diagnosis(
        failure=pattern.failure,
        what=fill_in(pattern.meaning, best, **values),
        who=pattern.who,
        next=fill_in(then, best, **values),
        pattern=pattern.id,
        rank=best.rank,
        host=best.host,
        evidence=(_line(best),),
        also=tuple(f"{_line(one)} ({one.pattern.id})" for one in findings[1:]),
    )


def judge(facts: JobFacts, findings: Sequence[Finding] = ()) -> Diagnosis:
    """What happened to a job.

    Args:  findings: of its logs, best first.
    """
    word = facts.word
    if not word:
        return _nobody_knows(facts, findings)
    if word == "PENDING":
        return _waits(facts)
    if word in LIVE:
        found = of_log(findings, job=facts.id)
        seen = (*found.evidence, *found.also)
        return Diagnosis(
            "running", f"it runs{_spent(facts)}", "", f"hpc-train why {facts.id}, once it has ended", also=seen
        )
    if word == "COMPLETED":
        return _completed(facts, findings)
    if facts.never_started:
        return _never_began(facts)
    return with_numbers(_ended(facts, findings), facts)


def _never_began(facts: JobFacts) -> Diagnosis:
    """Of a job that ended before its script began: no program is to blame."""
    by_slurm = _of_state(facts)
    reason = why_not_started(facts.reason)
    why = f": {_OF_PENDING.sub('', reason.meaning)} ({facts.reason})" if reason is not None else ""
    if facts.word == "CANCELLED" and not why:
        return replace(by_slurm, what=f"{by_slurm.what} before it started: it never had a node")
    what = f"it never started{why or ', and Slurm does not say why'}: its script did not run"
    failure = "infrastructure" if by_slurm.failure == "program" else by_slurm.failure
    if reason is None:
        then = f"ask the site why job {facts.id} did not start"
        return replace(by_slurm, failure=failure, what=what, who="site", next=then)
    # What is typed of a waiting job is too late here.
    looks = [part for part in reason.next.split("; ") if not re.search(r"\bscontrol (update|release)|\bscancel", part)]
    then = "; ".join([*looks, "then submit again" + (" with another request" if reason.who == "you" else "")])
    failure = "config" if reason.who == "you" else failure
    return replace(by_slurm, failure=failure, what=what, who=reason.who, next=fill_in(then, None, job=facts.id))


def _ended(facts: JobFacts, findings: Sequence[Finding]) -> Diagnosis:
    by_slurm = _of_state(facts)
    by_log = of_log(findings, job=facts.id, host=by_slurm.host)
    if not findings:
        return by_slurm
    best = findings[0]
    explains = best.pattern.tier in ("cause", "exception", "hint")
    if facts.word in _SURE and not (explains and best.pattern.failure == by_slurm.failure):
        keep_log = False
    elif facts.word in ("TIMEOUT", "CANCELLED"):
        keep_log = explains and best.lines_left <= MAX_LINES_AFTER
    else:
        keep_log = explains or not by_slurm.failure or by_slurm.failure == "program"
    if keep_log:
        return replace(by_log, evidence=(*by_log.evidence, *by_slurm.evidence))
    return replace(by_slurm, also=(f"{_line(best)} ({best.pattern.id})", *by_log.also), host=by_slurm.host or best.host)


def _of_state(facts: JobFacts) -> Diagnosis:
    """What Slurm alone says of an end."""
    step = facts.failed_step
    evidence = [
        f"Slurm: {facts.state}, ExitCode {facts.code}:{facts.signal}" + (f" ({facts.reason})" if facts.reason else "")
    ]
    if step is not None:
        evidence.append(f"Slurm: step {step.id} {step.state}, ExitCode {step.code}:{step.signal}")
    host = next(
        (
            nodes
            for nodes in (step.nodes if step else "", facts.nodes)
            if nodes and "[" not in nodes and "," not in nodes
        ),
        "",
    )
    if facts.word in _STATES:
        failure, what, who, then = _STATES[facts.word]
    else:
        failure, what, who, then = _of_codes(facts)
    values = {"limit": shown_time(facts.limit_s), "user": _ender(facts), "job": facts.id, "host": host}
    what, then = (fill_in(text, None, **values) for text in (what, then))
    return Diagnosis(failure, what, who, then, host=host, evidence=tuple(evidence))


def _of_codes(facts: JobFacts) -> tuple[str, str, str, str]:
    look = "look at its log: hpc-train why {job} --log FILE"
    step = facts.failed_step
    pairs = [(facts.code, facts.signal)] + ([(step.code, step.signal)] if step else [])
    for code, signal in pairs:
        number = signal or (code - 128 if code > 128 else 0)
        if number in _SIGNALS:
            failure, what = _SIGNALS[number]
            then = "ls -ld the directories of --output and --chdir, on the node too" if number == 53 else look
            return failure, what, "you", then
        if code in _CODES:
            return _CODES[code]
    code = next((code for code, _ in pairs if code), facts.code)
    return "program", f"its script or its program ended with code {code}", "you", look


def _completed(facts: JobFacts, findings: Sequence[Finding]) -> Diagnosis:
    step = facts.failed_step
    if step is not None:
        found = _ended(replace(facts, state=step.state, code=step.code, signal=step.signal), findings)
        ended = f"its step {step.id} did not ({step.state}, {step.code}:{step.signal})"
        what = f"the script ended with code 0, but {ended}: {found.what}"
        evidence = tuple(text for text in found.evidence if not text.startswith("Slurm: FAILED"))
        return with_numbers(replace(found, what=what, evidence=evidence), facts)
    what = f"its script ended with code 0{_spent(facts)}: that is all that Slurm knows"
    best = next(iter(findings), None)
    if best is not None and best.pattern.tier in ("cause", "exception") and best.lines_left <= MAX_LINES_AFTER:
        found = of_log(findings, job=facts.id)
        what = f"the script ended with code 0, but its log holds an error: {found.what}"
        return replace(found, failure="completed", what=what)
    return Diagnosis("completed", what, "", "nothing, if its results are there")


def _waits(facts: JobFacts) -> Diagnosis:
    reason = explain_reason(facts.reason)
    start = f"; Slurm expects to start it at {facts.start}" if facts.start else ""
    evidence = (f"squeue: PENDING ({facts.reason or 'no reason given'})",)
    if reason is None:
        what = f"it waits, for a reason that is not known here: {facts.reason}{start}"
        return Diagnosis("waiting", what, "wait", f"squeue --start -j {facts.id}", evidence=evidence)
    never = "as it is it never starts: " if reason.never else ""
    then = fill_in(reason.next, None, job=facts.id)
    return Diagnosis("waiting", f"it waits: {never}{reason.meaning}{start}", reason.who, then, evidence=evidence)


def _nobody_knows(facts: JobFacts, findings: Sequence[Finding]) -> Diagnosis:
    if findings:
        return of_log(findings, job=facts.id)
    what = "Slurm does not know how it ended: that is not the same as completed"
    return Diagnosis("unknown", what, "you", f"look at its log: hpc-train why --log slurm-{facts.id}.out")


def with_numbers(found: Diagnosis, facts: JobFacts) -> Diagnosis:
    """Say how much to ask for, where it is known how much there was."""
    used = facts.max_rss
    is_near = used is not None and facts.memory and (used.max_rss or 0) >= NEARLY_ALL * facts.memory
    if found.failure == "killed" and is_near:
        what = f"{found.what}; it had used nearly all of the memory of its node's share"
        found = replace(found, failure="out_of_memory", what=what, next="ask for more: sbatch --mem=… SCRIPT")
    then = found.next
    if facts.memory:
        then = then.replace("--mem=…", f"--mem={-(-facts.memory * 3 // 2 >> 20)}M")
    if facts.limit_s:
        then = then.replace("--time=…", f"--time={-(-facts.limit_s * 2 // 60)}")
    return replace(found, next=then)


def _ender(facts: JobFacts) -> str:
    match = re.search(r"by (\d{1,10})", facts.state)
    return f"user id {match[1]}" if match else "somebody"


def _spent(facts: JobFacts) -> str:
    if facts.elapsed_s is None:
        return ""
    limit = f" of {shown_time(facts.limit_s)}" if facts.limit_s else ""
    return f", {shown_time(facts.elapsed_s)}{limit}"


def _line(finding: Finding) -> str:
    return f"{finding.place}: {finding.text}"


def shown_time(seconds: int | None) -> str:
    """A duration as Slurm writes it: 1-02:03:04."""
    if seconds is None:
        return "no limit known"
    days, rest = divmod(seconds, 86400)
    return (f"{days}-" if days else "") + f"{rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}"


def shown_size(size: int) -> str:
    """Bytes for people: 31.2 GiB."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} B"
