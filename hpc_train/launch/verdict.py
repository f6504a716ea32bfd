"""Whether a program that still runs must be ended, and why. Pure.

Apart from the monitor, which looks and acts, so that every rule is a row of a table test. Standard library only.
"""

from __future__ import annotations

from dataclasses import dataclass

from hpc_train.launch.page import FINISHED, WAITS_FOR_PEERS, WAITS_FOR_THREAD, Snapshot

__all__ = ["Company", "Limits", "Verdict", "judge", "roll_call_s", "waits_in_vain"]

EARLY_EXIT_GRACE_S = 5.0  # a peer that has ended, and this rank in one call that waits for others, both for so long
THREAD_GRACE_S = 8.0  # a thread that died of an exception, and the main thread waiting for a thread for so long
FAILED_GRACE_S = 7.0  # a peer has failed, and the launcher has not ended this rank: longer than any launcher needs
ROLL_CALL_S = 10.0  # a monitor that lives answers within two looks, also on a host with far more work than cores
WAITING_BONUS_S = 3.0  # who waits for others speaks later than who keeps them waiting: the first word names the rank


@dataclass(frozen=True)
class Limits:
    """What the monitor goes by [s].

    Attributes:  hang_timeout_s: how long the program may go without a heartbeat.   poll_s: how often the attempt's
    directory is looked at.   term_grace_s: how long a program has between SIGTERM and SIGKILL.
    preempt_grace_s: how long before the end a preemption sends the first SIGTERM; 0 where it does not.
    """

    hang_timeout_s: float
    poll_s: float = 1.0
    term_grace_s: float = 3.0
    preempt_grace_s: float = 0.0


@dataclass(frozen=True)
class Company:
    """What this rank knows of the others, and of itself as a process.

    Attributes:  left_early: ranks that have ended cleanly, the first of them first.   left_since: when that was seen
    (CLOCK_MONOTONIC).   all_wait: every rank that has not ended waits for others in vain.   awake_since: when this node
    last woke from being suspended.   state: in words, why the program's process does not go on ("" where it may).
    owner: in words, which later attempt owns the run ("" while none does).
    failed, failed_since: a rank that failed (not one that stopped on request), and when that was seen; of a hang, when
    its roll call must be over.   has_hung: that rank hung.   all_spoke: since then every rank has left a word.
    """

    left_early: tuple[int, ...] = ()
    left_since: float | None = None
    all_wait: bool = False
    awake_since: float = 0.0
    state: str = ""
    owner: str = ""
    failed: int | None = None
    failed_since: float = 0.0
    has_hung: bool = False
    all_spoke: bool = False

    def is_deserted(self, now: float) -> bool:
        """Whether a peer failed so long ago that the launcher does not seem to mind.

        MPICH's mpiexec goes on with the others where a rank ends before MPI_Init: they would wait for it for ever.
        """
        return self.failed is not None and now - max(self.failed_since, self.awake_since) > FAILED_GRACE_S


@dataclass(frozen=True)
class Verdict:
    """Why a program is ended. `blamed`: the rank to name where it is another one."""

    failure: str
    cause: str
    blamed: int | None = None


def roll_call_s(poll_s: float) -> float:
    """How long a rank that hangs waits for a word of all others before it is ended [s].

    Its end makes the launcher kill every monitor at once (Slurm's PMIx does), and a rank that only waits looks like the
    one that it waits for, until that one has said that it stands still, or is the only one to say nothing.

    Args:  poll_s: how often a monitor looks at the attempt's directory.
    """
    return ROLL_CALL_S + 2 * poll_s


def judge(page: Snapshot, now: float, limits: Limits, company: Company) -> Verdict | None:
    """Whether a running program must be ended, and why; None to let it run. `now`: CLOCK_MONOTONIC [s]."""
    if page.failure:
        return None
    if company.owner:  # also one that has finished: its exit hooks may wait for ranks that are gone
        return Verdict("superseded", company.owner)
    if page.state == FINISHED:
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
    if company.is_deserted(now):
        return Verdict("peer_lost", f"rank {company.failed} failed, and the launcher left this rank running")
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
