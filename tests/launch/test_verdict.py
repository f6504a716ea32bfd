"""When a running program must be ended, and how an ended one ended: one row a rule."""

from __future__ import annotations

import signal
from dataclasses import replace

import pytest

from hpc_train.launch.ending import Circumstances, Ending, how_it_ended
from hpc_train.launch.page import FINISHED, RUNNING, WAITS_FOR_PEERS, WAITS_FOR_THREAD, Page, Snapshot
from hpc_train.launch.verdict import Company, Limits, judge

NOW = 10_000.0
LIMITS = Limits(hang_timeout_s=100)
AT_WORK = replace(
    Page().read(),
    state=RUNNING,
    beats=5,
    step=4,
    heartbeat=NOW - 1,
    moved=NOW - 1,
    phase="program",
    phase_since=NOW - 500,
)
IN_BARRIER = {"call": "comm.Barrier (x.py:1)", "call_kind": WAITS_FOR_PEERS}
IN_GET = {"call": "q.get (x.py:2)", "call_kind": WAITS_FOR_THREAD}
DEAD_THREAD = {"thread": "thread 'a' ended with ValueError", "thread_at": NOW - 20, "heartbeat": NOW - 30}


@pytest.mark.parametrize(
    ("page", "company", "cause"),
    [
        ({}, {}, None),
        ({"heartbeat": NOW - 101, "moved": NOW - 101}, {}, "no progress for 101 s in program (limit 100 s)"),
        ({"heartbeat": NOW - 101}, {}, None),  # its main thread has begun another phase since
        ({"beats": 0, "heartbeat": NOW - 900, "moved": NOW - 900}, {}, None),  # it never beat: no watchdog
        ({"state": FINISHED, "heartbeat": NOW - 900, "moved": NOW - 900}, {}, None),
        ({"failure": "program", "heartbeat": NOW - 900, "moved": NOW - 900}, {}, None),  # it is leaving
        # a rank that waits for others speaks 3 s later than the one it waits for
        ({"heartbeat": NOW - 102, "moved": NOW - 102, **IN_BARRIER}, {}, None),
        (
            {"heartbeat": NOW - 104, "moved": NOW - 104, **IN_BARRIER},
            {},
            "no progress for 104 s in program (limit 100 s); main thread in comm.Barrier (x.py:1)",
        ),
        (
            {"heartbeat": NOW - 101, "moved": NOW - 101},
            {"state": "stopped by a signal"},
            "no progress for 101 s in program (limit 100 s); its process is stopped by a signal",
        ),
        # the node was suspended, or the job: clocks that ran meanwhile do not count
        ({"heartbeat": NOW - 900, "moved": NOW - 900}, {"awake_since": NOW - 99}, None),
        ({"phase": "load", "phase_since": NOW - 3, "phase_limit_s": 2.0}, {}, "stuck 3 s in load (limit 2 s)"),
        ({"phase": "load", "phase_since": NOW - 1, "phase_limit_s": 2.0}, {}, None),
        ({"phase": "load", "phase_since": NOW - 3, "phase_limit_s": 2.0}, {"awake_since": NOW - 1}, None),
        (
            {"beats": 0, "phase": "load", "phase_since": NOW - 3, "phase_limit_s": 2.0},
            {},
            "stuck 3 s in load (limit 2 s)",
        ),
        # a phase with a limit of its own may take longer than the run's
        (
            {
                "heartbeat": NOW - 200,
                "moved": NOW - 200,
                "phase": "save",
                "phase_since": NOW - 200,
                "phase_limit_s": 300.0,
            },
            {},
            None,
        ),
        # another attempt owns the run: whatever this one does, even if it has finished; but not its last words
        ({}, {"owner": "attempt 1 owns the run now"}, "attempt 1 owns the run now"),
        ({"state": FINISHED}, {"owner": "attempt 1 owns the run now"}, "attempt 1 owns the run now"),
        ({"failure": "program"}, {"owner": "attempt 1 owns the run now"}, None),
        # a peer has ended, and everybody else waits
        (
            {**IN_BARRIER, "call_since": NOW - 9},
            {"left_early": (2,), "left_since": NOW - 9, "all_wait": True},
            "rank 2 ended with code 0 while others waited for it in comm.Barrier (x.py:1)",
        ),
        (
            {**IN_BARRIER, "call_since": NOW - 9},
            {"left_early": (2, 0), "left_since": NOW - 9, "all_wait": True},
            "rank 2 ended with code 0 while others waited for it in comm.Barrier (x.py:1) (ended early: 2, 0)",
        ),
        ({**IN_BARRIER, "call_since": NOW - 9}, {"left_early": (2,), "left_since": NOW - 9}, None),  # some still work
        ({**IN_BARRIER, "call_since": NOW - 2}, {"left_early": (2,), "left_since": NOW - 9, "all_wait": True}, None),
        ({**IN_BARRIER, "call_since": NOW - 9}, {"left_early": (2,), "left_since": NOW - 2, "all_wait": True}, None),
        ({**IN_GET, "call_since": NOW - 9}, {"left_early": (2,), "left_since": NOW - 9, "all_wait": True}, None),
        # a peer failed, and the launcher does nothing about it
        ({}, {"failed": 2, "failed_since": NOW - 9}, "rank 2 failed, and the launcher left this rank running"),
        (
            {"beats": 0, **IN_BARRIER},
            {"failed": 2, "failed_since": NOW - 9},
            "rank 2 failed, and the launcher left this rank running",
        ),
        ({}, {"failed": 2, "failed_since": NOW - 5}, None),  # it may be about to
        ({}, {"failed": 2, "failed_since": NOW - 9, "awake_since": NOW - 5}, None),
        ({"failure": "program"}, {"failed": 2, "failed_since": NOW - 9}, None),  # it is leaving
        # a thread died, and the main thread waits for a thread
        (
            {**DEAD_THREAD, **IN_GET, "call_since": NOW - 25},
            {},
            "thread 'a' ended with ValueError; the main thread has waited since in q.get (x.py:2)",
        ),
        ({**DEAD_THREAD, **IN_GET, "call_since": NOW - 5}, {}, None),  # it has moved since
        ({**DEAD_THREAD, **IN_GET, "call_since": NOW - 25, "thread_at": NOW - 5}, {}, None),
        ({**DEAD_THREAD, **IN_GET, "call_since": NOW - 25, "heartbeat": NOW - 10}, {}, None),  # it has got on since
        ({**DEAD_THREAD, **IN_BARRIER, "call_since": NOW - 25}, {}, None),  # it waits for something else
        ({**DEAD_THREAD, "call": "", "call_since": NOW - 25}, {}, None),
    ],
)
def test_a_rule_ends_a_program_or_lets_it_run(
    page: dict[str, object], company: dict[str, object], cause: str | None
) -> None:
    verdict = judge(replace(AT_WORK, **page), NOW, LIMITS, Company(**company))  # type: ignore[arg-type]
    assert (None if verdict is None else verdict.cause) == cause


def test_the_rank_that_left_is_blamed_not_the_one_that_waits() -> None:
    page = replace(AT_WORK, call="w.barrier (x.py:1)", call_kind=WAITS_FOR_PEERS, call_since=NOW - 9)
    verdict = judge(page, NOW, LIMITS, Company((2, 1), NOW - 9, all_wait=True))
    assert verdict is not None
    assert (verdict.failure, verdict.blamed) == ("program", 2)


def words(failure: str, code: int) -> Snapshot:
    return replace(AT_WORK, failure=failure, cause="said", code=code)


DONE = replace(AT_WORK, state=FINISHED)


@pytest.mark.parametrize(
    ("page", "code", "case", "expected"),
    [
        (DONE, 0, {}, None),
        (DONE, -signal.SIGSEGV, {}, None),  # a crash in clean-up, after the end
        (DONE, -signal.SIGKILL, {}, None),
        (DONE, 0, {"told": True}, Ending("terminated", "left with code 0 after", 143)),
        (AT_WORK, 0, {}, None),  # os._exit(0), or any other program's 0
        (AT_WORK, 0, {"is_guarded": False}, None),
        (AT_WORK, 0, {"told": True}, Ending("terminated", "left with code 0 after", 143)),
        (AT_WORK, 0, {"detached": True}, Ending("config", "the program went to the background", 78)),
        (AT_WORK, 3, {}, Ending("program", "the program left with code 3", 3)),
        (AT_WORK, 93, {}, Ending("forbidden", "the program left with code 93", 93)),
        (AT_WORK, 75, {"told": True}, Ending("stopped", "the program left with code 75", 75)),
        (AT_WORK, 137, {}, Ending("program", "the program left with code 137", 137)),  # Python's own choice
        (AT_WORK, 137, {"is_guarded": False}, Ending("killed", "ended by SIGKILL", 137)),  # a shell's word
        (AT_WORK, 139, {"is_guarded": False}, Ending("crash", "ended by SIGSEGV", 139)),
        # Open MPI's own exit when slurmstepd is gone; another program may mean what it likes by it
        (AT_WORK, 195, {}, Ending("infrastructure", "MPI ended the program: it lost the launcher", 76)),
        (AT_WORK, 195, {"is_guarded": False}, Ending("program", "the program left with code 195", 195)),
        (AT_WORK, 255, {"is_guarded": False}, Ending("program", "the program left with code 255", 255)),
        (AT_WORK, 143, {"is_guarded": False, "told": True}, Ending("terminated", "ended by SIGTERM by", 143)),
        (AT_WORK, -signal.SIGKILL, {}, Ending("killed", "ended by SIGKILL", 137)),
        (AT_WORK, -signal.SIGKILL, {"told": True}, Ending("terminated", "ended by SIGKILL by the launcher", 137)),
        (
            AT_WORK,
            -signal.SIGKILL,
            {"ran_out_of_memory": True},
            Ending("out_of_memory", "ended by SIGKILL: the kernel's memory limit", 137),
        ),
        (AT_WORK, -signal.SIGTERM, {}, Ending("terminated", "ended by SIGTERM", 143)),
        (AT_WORK, -signal.SIGSEGV, {"told": True}, Ending("crash", "ended by SIGSEGV", 139)),
        (AT_WORK, -40, {}, Ending("crash", "ended by signal 40", 168)),  # a real-time signal has no name
        (
            replace(AT_WORK, phase="barrier"),
            14,
            {},
            Ending("peer_lost", "ended with code 14 inside barrier, as MPI", 14),
        ),
        (
            replace(AT_WORK, phase="start of MPI"),
            16,
            {},
            Ending(
                "peer_lost", "ended with code 16 inside start of MPI, as MPI does when a peer is gone or it cannot", 16
            ),
        ),
        # last words count more than the way of leaving: an exit hook may do anything
        (words("program", 1), 0, {}, Ending("program", "said", 1)),
        (words("no_space", 73), -signal.SIGKILL, {}, Ending("no_space", "said", 73)),
        (words("stopped", 75), 75, {"told": True}, Ending("stopped", "said", 75)),
    ],
)
def test_an_end_gets_its_class_cause_and_code(
    page: Snapshot, code: int, case: dict[str, bool], expected: Ending | None
) -> None:
    ending = how_it_ended(page, code, Circumstances(**case))
    if expected is None or ending is None:
        assert ending is expected
    else:
        assert (ending.failure, ending.code) == (expected.failure, expected.code)
        assert ending.cause.startswith(expected.cause)
