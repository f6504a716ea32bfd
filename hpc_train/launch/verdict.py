"""Whether a program that still runs must be ended, and why. Pure.

Apart from the monitor, which looks and acts, so that every rule is a row of a table test. Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass

from hpc_train.launch.page import FINISHED, WAITS_FOR_PEERS, WAITS_FOR_THREAD, Snapshot

__all__ = ["Company", "Limits", "Verdict", "judge", "waits_in_vain"]

EARLY_EXIT_GRACE_S = 5.0  # a peer that has ended, and this rank in one call that waits for others, both for so long
THREAD_GRACE_S = 8.0  # a thread that died of an exception, and the main thread waiting for a thread for so long
WAITING_BONUS_S = 3.0  # who waits for others speaks later than who keeps them waiting: the first word names the rank


@dataclass(frozen=True)
class Limits:
    """What the monitor goes by [s].

    Attributes:  hang_timeout_s: how long the program may go without a heartbeat.   poll_s: how often the attempt's
    directory is looked at.   term_grace_s: how long a program has between SIGTERM and SIGKILL.
    """

    hang_timeout_s: float
    poll_s: float = 1.0
    term_grace_s: float = 3.0


@dataclass(frozen=True)
class Company:
    """What this rank knows of the others, and of itself as a process.

    Attributes:  left_early: ranks that have ended cleanly, the first of them first.   left_since: when that was seen
    (CLOCK_MONOTONIC).   all_wait: every rank that has not ended waits for others in vain.   awake_since: when this node
    last woke from being suspended.   state: in words, why the program's process does not go on ("" where it may).
    """

    left_early: tuple[int, ...] = ()
    left_since: float | None = None
    all_wait: bool = False
    awake_since: float = 0.0
    state: str = ""


@dataclass(frozen=True)
class Verdict:
    """Why a program is ended. `blamed`: the rank to name where it is another one."""

    failure: str
    cause: str
    blamed: int | None = None


def judge(page: Snapshot, now: float, limits: Limits, company: Company) -> Verdict | None:
    """Whether a running program must be ended, and why; None to let it run. `now`: CLOCK_MONOTONIC [s]."""
    if page.state == FINISHED or page.failure:
        return None
    return _stuck_in_phase(page, now, company) or _no_progress(page, now, limits, company) or _lost(page, now, company)


def _stuck_in_phase(page: Snapshot, now: float, company: Company) -> Verdict | None:
    in_phase = now - max(page.phase_since, company.awake_since)
    if not page.phase_limit_s or in_phase <= page.phase_limit_s + _bonus(page):
        return None
    cause = f"stuck {in_phase:.0f} s in {page.phase} (limit {page.phase_limit_s:g} s)"
    return Verdict("hang", cause + _at(page, company))


def _no_progress(page: Snapshot, now: float, limits: Limits, company: Company) -> Verdict | None:
    # A program that never beat has no heart that could stop: it does not use Progress.
    if not page.beats or page.phase_limit_s:
        return None
    silent = now - max(page.heartbeat, page.moved, company.awake_since)
    if silent <= limits.hang_timeout_s + _bonus(page):
        return None
    cause = f"no progress for {silent:.0f} s in {page.phase or 'the program'} (limit {limits.hang_timeout_s:g} s)"
    return Verdict("hang", cause + _at(page, company))


def _lost(page: Snapshot, now: float, company: Company) -> Verdict | None:
    """What this rank waits for can never come."""
    if company.all_wait and waits_in_vain(page, now, company):
        first = company.left_early[0]
        others = f" (ended early: {', '.join(map(str, company.left_early[:8]))})" if len(company.left_early) > 1 else ""
        cause = f"rank {first} ended with code 0 while others waited for it in {page.call}{others}"
        return Verdict("program", cause, first)
    is_waiting = page.call_kind == WAITS_FOR_THREAD and bool(page.call) and page.heartbeat < page.thread_at
    if page.thread and is_waiting and now - max(page.thread_at, page.call_since) > THREAD_GRACE_S:
        return Verdict("program", f"{page.thread}; the main thread has waited since in {page.call}")
    return None


def waits_in_vain(page: Snapshot, now: float, company: Company) -> bool:
    """Whether a peer has ended and this rank has been in one call that waits for others ever since, for long enough."""
    if company.left_since is None or page.state == FINISHED or not page.call or page.call_kind != WAITS_FOR_PEERS:
        return False
    return now - max(company.left_since, page.call_since, company.awake_since) > EARLY_EXIT_GRACE_S


def _bonus(page: Snapshot) -> float:
    return WAITING_BONUS_S if page.call and page.call_kind == WAITS_FOR_PEERS else 0.0


def _at(page: Snapshot, company: Company) -> str:
    call = f"; main thread in {page.call}" if page.call else ""
    state = f"; its process is {company.state}" if company.state else ""
    return call + state
