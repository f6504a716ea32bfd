"""The page that program and monitor share."""

from __future__ import annotations

import os
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_train.launch.page import FINISHED, RUNNING, STARTING, WAITS_FOR_PEERS, Page


@pytest.fixture
def page() -> Page:
    return Page()


def in_child(act: object) -> None:
    """Run something in a forked child and wait for it."""
    child = os.fork()
    if child == 0:
        try:
            act()  # type: ignore[operator]
        finally:
            os._exit(0)
    os.waitpid(child, 0)


def test_a_new_page_says_that_the_program_starts(page: Page) -> None:
    now = page.read()
    assert (now.state, now.beats, now.step, now.phase, now.phase_limit_s, now.stop) == (
        STARTING,
        0,
        None,
        "starting",
        0,
        False,
    )


def test_what_a_child_writes_can_be_read_after_its_sudden_end(page: Page) -> None:
    def act() -> None:
        page.set_state(RUNNING)
        page.beat(41)
        page.beat(42)
        page.enter("load", 3)
        page.set_call("comm.Barrier (x.py:1)", 5.0, WAITS_FOR_PEERS)
        page.thread_died("thread 'a' ended")
        page.last_words("program", "ValueError", 3)
        os.kill(os.getpid(), 9)

    in_child(act)
    now = page.read()
    assert (now.state, now.beats, now.step) == (RUNNING, 2, 42)
    assert (now.phase, now.phase_limit_s, now.call, now.call_since) == ("load", 3.0, "comm.Barrier (x.py:1)", 5.0)
    assert (now.failure, now.cause, now.code, now.thread) == ("program", "ValueError", 3, "thread 'a' ended")
    assert now.thread_at >= now.heartbeat


def test_a_data_workers_writes_are_ignored(page: Page) -> None:
    page.own()
    page.beat(7)

    def act() -> None:
        page.beat(99)
        page.enter("other", 1)
        page.set_state(FINISHED)
        page.leave(0)

    in_child(act)
    now = page.read()
    assert (now.state, now.beats, now.step, now.phase) == (STARTING, 1, 7, "starting")


def test_the_stop_flag_crosses_from_parent_to_child(page: Page) -> None:
    page.request_stop()
    heard = Page()

    def act() -> None:
        heard.beat(int(page.stop_requested()))

    in_child(act)
    assert heard.read().step == 1


@given(st.text(max_size=6000))
def test_any_text_fits_and_is_cut_at_the_most(text: str) -> None:
    page = Page()
    page.last_words("x" * 100, text, 1)
    now = page.read()
    whole = text.encode(errors="replace").decode()
    assert whole.startswith(now.cause.rstrip("\ufffd")) or "\ufffd" in now.cause
    assert len(now.cause.encode()) <= 4096 + 3
    assert now.failure == "x" * 62
    assert now.phase == "starting"


def test_an_outer_limit_goes_on_while_inner_phases_come_and_go(page: Page) -> None:
    save = page.enter("save", 60)
    since = page.read().phase_since
    barrier = page.enter("barrier")
    inner = page.read()
    page.leave(barrier)
    assert (inner.phase, inner.phase_limit_s, inner.phase_since) == ("save", 60, since)
    assert page.read().phase_since == since
    page.leave(save)
    assert (page.read().phase, page.read().phase_limit_s) == ("starting", 0)


def test_the_limit_that_runs_out_first_is_shown(page: Page) -> None:
    outer = page.enter("outer", 60)
    page.enter("inner", 5)
    assert page.read().phase == "inner"
    page.leave(outer)
    assert page.read().phase == "inner"


def test_phases_of_another_thread_leave_nothing_behind(page: Page) -> None:
    entered, leave = threading.Event(), threading.Event()

    def prefetch() -> None:
        key = page.enter("read", 60)
        entered.set()
        leave.wait(10)
        page.leave(key)

    thread = threading.Thread(target=prefetch)
    thread.start()
    entered.wait(10)
    barrier = page.enter("barrier")  # begun while the other thread's phase is on, ended after it
    leave.set()
    thread.join()
    assert page.read().phase == "barrier"
    page.leave(barrier)
    assert (page.read().phase, page.read().phase_limit_s) == ("starting", 0)


def test_only_the_main_threads_phases_are_signs_of_life(page: Page) -> None:
    before = page.read().moved
    time.sleep(0.01)
    thread = threading.Thread(target=lambda: page.leave(page.enter("read")))
    thread.start()
    thread.join()
    assert page.read().moved == before
    page.leave(page.enter("barrier"))
    assert page.read().moved > before


def test_many_threads_do_not_tear_the_page(page: Page) -> None:
    def work(number: int) -> None:
        for step in range(300):
            page.beat(number * 1000 + step)
            page.leave(page.enter(f"phase {number}", 5))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    now = page.read()
    assert (now.beats, now.phase, now.step is not None and now.step % 1000) == (2400, "starting", 299)
