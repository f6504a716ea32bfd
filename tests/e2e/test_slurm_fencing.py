"""Hosts that are given up but live on: cut off the network, or frozen. The run goes on elsewhere, and nothing mixes.

All hosts share the disk here, so a host that is cut off can still write to the run directory: the most dangerous case.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest

from hpc_train.launch.fence import PERIOD_S
from hpc_train.recovery.evidence import read_decision
from hpc_train.recovery.policy import Decision
from hpc_train.run.journal import Event, read_journal
from hpc_train.run.layout import RunDir
from hpc_train.run.marks import ExitMark, read_marks
from tests.e2e.lab import FOUR_NODES, SAVE_EVERY, STEPS, Lab, assert_resumed, assert_same_run, lineage_of, steps_of
from tests.support.cluster import SlurmCluster, wait_for

COUNTING = str(Path(__file__).with_name("counting.py"))
# Long enough that an attempt that was given up is still at work when Slurm has noticed and started the next one.
COUNT, COUNT_PAUSE = 120, 0.75
PAUSE = 0.05


@dataclass(frozen=True)
class Broken:
    """A run that lost `node` in its first attempt and has come to its end."""

    run: RunDir
    node: str
    end: str

    @property
    def decision(self) -> Decision:
        found = read_decision(self.run.attempt(0))
        assert found is not None
        return found

    def late_marks(self) -> list[ExitMark]:
        """Marks of the first attempt that were written after the second had begun."""
        return [mark for mark in read_marks(self.run.attempt(0)) if mark.time > self.began(1)]

    def began(self, attempt: int) -> float:
        """When an attempt began [s since 1970]: all hosts share one clock here."""
        started = [event for event in read_journal(self.run) if event.event == "attempt_started"]
        return next(event.time for event in started if event.attempt == attempt)

    def late_events(self) -> list[Event]:
        """What the first attempt's ranks journalled after the second had begun."""
        events = [event for event in read_journal(self.run) if event.writer == "rank0" and event.attempt == 0]
        return [event for event in events if event.time > self.began(1)]


def host_of(run: RunDir, rank: int) -> str:
    return (run.attempt(0).ready / str(rank)).read_text().strip()


def count(lab: Lab, *options: str, how: str = "", num_steps: int = COUNT) -> RunDir:
    """Submit the torch-free program that counts and saves every 5 steps; it hurries once it has been given up."""
    program = ("python", COUNTING, str(num_steps), "5", str(COUNT_PAUSE), "brief", how)
    return lab.submit("--walltime", "10", "--rendezvous", "none", *options, "--", *program)


@dataclass(frozen=True)
class Cancelled:
    """A run whose host was cut off when it was cancelled.

    Attributes:  at: when cancel had ended.   events, marks, listed: what there was before it was let go on.
    """

    broken: Broken
    done: subprocess.CompletedProcess[str]
    at: float
    events: list[Event]
    marks: list[ExitMark]
    listed: str


class Cases(NamedTuple):
    """The runs that lost a host, and one that was cancelled while it had lost its own."""

    broken: dict[str, Broken]
    cancelled: Cancelled


def cancel_cut_off(cluster: SlurmCluster, lab: Lab, run: RunDir, node: str) -> Cancelled:
    """Cancel a run on a host that is cut off, look at what becomes of it there, and let it go on."""
    done = lab.hpc_train("cancel", run.path, timeout=150)
    at = time.time()
    lab.wait_for("the end of its ranks", run, lambda: len(read_marks(run.attempt(0))) == 2, PERIOD_S * 1.25 + 10)
    job_id = lab.status(run)["job_id"]
    listed = cluster.run(["squeue", "--noheader", f"--jobs={job_id}", "--states=all", "--format=%T"]).stdout
    events, marks = read_journal(run), read_marks(run.attempt(0))
    asked = lab.hpc_train("requeue", run.path)
    assert asked.returncode == 0, asked.stderr
    # Not wait_end: the decision on the attempt that was cancelled may come late, before the next attempt begins.
    lab.wait_for("a done run", run, lambda: any(each.done.exists() for each in run.attempts()), timeout=240)
    return Cancelled(Broken(run, node, "done"), done, at, events, marks, listed)


@pytest.fixture(scope="module")
def cases(cluster: SlurmCluster, slurm_lab: Lab, slurm_data: Path, undisturbed: RunDir) -> Iterator[Cases]:
    """Five runs at once, since most of their time is waiting for Slurm: each loses one host, three of them the same."""
    cluster.wait_idle()
    several = slurm_lab.train(
        slurm_data, *FOUR_NODES, "--walltime", "10", steps=STEPS, save_every=SAVE_EVERY, pause=PAUSE
    )
    elsewhere = ("--exclude", "n[1-4]", "--nodes")
    alone = count(slurm_lab, *elsewhere, "1", "--ranks-per-node", "4")
    asking = count(slurm_lab, *elsewhere, "1", "--ranks-per-node", "2", how="dies")
    cancelled = count(slurm_lab, *elsewhere, "1", "--ranks-per-node", "2")
    frozen = count(slurm_lab, *elsewhere, "2", "--ranks-per-node", "2")
    runs = {"several": several, "alone": alone, "asking": asking, "frozen": frozen}
    try:
        for run, step in ((several, SAVE_EVERY), (alone, 5), (asking, 5), (cancelled, 5), (frozen, 5)):
            slurm_lab.wait_between_commits(run, after=step)
        lost = {name: host_of(run, {"several": 5, "frozen": 2}.get(name, 0)) for name, run in runs.items()}
        for node in {lost["several"], lost["alone"], lost["asking"], host_of(cancelled, 0)}:
            cluster.cut(node)
        cluster.freeze(lost["frozen"])
        (asking.path / "die").touch()
        with ThreadPoolExecutor(1) as pool:
            cancelling = pool.submit(cancel_cut_off, cluster, slurm_lab, cancelled, host_of(cancelled, 0))
            ends = {name: slurm_lab.wait_end(run, timeout=240) for name, run in runs.items()}
            outcome = cancelling.result()
        yield Cases({name: Broken(run, lost[name], ends[name]) for name, run in runs.items()}, outcome)
    finally:
        cluster.repair()


@pytest.fixture(scope="module")
def broken(cases: Cases) -> dict[str, Broken]:
    """The runs that lost a host and went on."""
    return cases.broken


@pytest.mark.parametrize("kind", ["several", "alone", "frozen", "asking"])
def test_the_run_goes_on_without_the_lost_host(broken: dict[str, Broken], kind: str, slurm_lab: Lab) -> None:
    case = broken[kind]
    assert case.end == "done", slurm_lab.logs(case.run)
    lineage = assert_resumed(case.run, attempts=len(case.run.attempts()))
    assert not lineage.missing and not lineage.doubled
    for attempt in case.run.attempts()[1:]:
        assert case.node not in {path.read_text().strip() for path in attempt.ready.glob("[0-9]*")}
    expected = "program" if kind == "asking" else "node_fail"
    assert (case.decision.failure, case.decision.node) == (expected, case.node)


def test_a_run_over_four_hosts_equals_the_undisturbed_one(
    broken: dict[str, Broken], slurm_data: Path, undisturbed: RunDir
) -> None:
    assert assert_same_run(broken["several"].run, undisturbed, slurm_data).num_recomputed > 0


@pytest.mark.parametrize("kind", ["alone", "frozen", "asking"])
def test_the_count_is_right_whoever_counted_beside(broken: dict[str, Broken], kind: str, slurm_lab: Lab) -> None:
    assert f"the sum is {[COUNT * (COUNT + 1) / 2] * 4}" in slurm_lab.logs(broken[kind].run)
    assert lineage_of(broken[kind].run).steps[-1].step == COUNT


@pytest.mark.parametrize(("kind", "ranks"), [("several", {4, 5}), ("alone", {0, 1, 2, 3})])
def test_ranks_on_a_host_that_was_cut_off_live_on_and_end_by_themselves(
    broken: dict[str, Broken], kind: str, ranks: set[int]
) -> None:
    late = broken[kind].late_marks()
    assert {mark.writer for mark in late} == ranks, "no rank was alive when the next attempt began"
    assert {mark.failure for mark in late} == {"superseded"}
    noticed = [mark.time - broken[kind].began(1) for mark in late]
    assert max(noticed) < PERIOD_S * 1.25 + 5, noticed


def test_a_host_that_works_without_the_network_commits_nothing_more(broken: dict[str, Broken]) -> None:
    case = broken["alone"]
    assert steps_of(case.late_events(), "commit") == []
    taken_up = lineage_of(case.run).resumed[1]
    before = [event for event in read_journal(case.run) if event.event == "commit" and event.attempt == 0]
    assert taken_up == max(event.fields["step"] for event in before)
    assert not case.run.attempt(0).done.exists()


def test_a_shell_that_asks_for_a_requeue_while_it_is_cut_off_leaves_the_next_attempt_alone(
    broken: dict[str, Broken],
) -> None:
    case = broken["asking"]
    assert case.decision.word == "again"
    assert case.run.attempt(0).decision.stat().st_mtime < case.began(1)  # its own shell's, which then asked
    assert len(case.run.attempts()) == 2
    said = case.run.submission(0).batch_log.read_text(errors="replace")
    assert "attempt 0 was given up" in said or "the job was started again meanwhile" in said


def test_nothing_is_committed_after_a_cancel_and_a_host_without_network_ends_its_ranks(cases: Cases) -> None:
    case = cases.cancelled
    assert case.done.returncode == 0, case.done.stderr
    assert case.listed.strip() == "CANCELLED"
    assert [event for event in case.events if event.event == "commit" and event.time > case.at] == []
    assert {(mark.failure, mark.cause) for mark in case.marks} == {
        ("superseded", "the run was cancelled, and the scheduler did not reach this node")
    }


def test_a_run_that_was_cancelled_out_of_reach_goes_on_exactly_when_asked(cases: Cases, slurm_lab: Lab) -> None:
    case = cases.cancelled
    # Slurm may first try a host of which it does not know yet that it is lost.
    lineage = assert_resumed(case.broken.run, attempts=len(case.broken.run.attempts()))
    assert not lineage.missing and not lineage.doubled
    assert next(step for attempt, step in lineage.resumed.items() if attempt) == max(
        event.fields["step"] for event in case.events if event.event == "commit"
    )
    assert f"the sum is {[COUNT * (COUNT + 1) / 2] * 4}" in slurm_lab.logs(case.broken.run)


@pytest.mark.parametrize("kind", ["several", "alone"])
def test_what_the_old_attempt_left_confuses_nobody(broken: dict[str, Broken], kind: str, slurm_lab: Lab) -> None:
    case = broken[kind]
    slurm_lab.wait_state(case.run, "completed")
    said = slurm_lab.hpc_train("why", case.run.path).stdout
    assert f"node {case.node} failed" in said and "superseded" not in said
    assert slurm_lab.status(case.run)["last_commit"] == (STEPS if kind == "several" else COUNT)
    decided = [event.attempt for event in read_journal(case.run) if event.event == "decision"]
    assert decided == list(range(len(case.run.attempts())))


def test_a_frozen_host_that_wakes_finds_that_it_was_given_up(broken: dict[str, Broken], cluster: SlurmCluster) -> None:
    case = broken["frozen"]
    assert {mark.writer for mark in read_marks(case.run.attempt(0))} == {0, 1}
    cluster.thaw(case.node)
    # Its slurmd comes back too and may kill the ranks before they have looked: then they say nothing.
    wait_for("the end of its ranks", lambda: not ranks_on(cluster, case.node), timeout=40)
    late = [mark for mark in case.late_marks() if mark.writer in (2, 3)]
    assert {mark.failure for mark in late} <= {"superseded"}
    assert read_decision(case.run.attempt(0)) == case.decision


def ranks_on(cluster: SlurmCluster, node: str) -> bool:
    """Whether something that srun started runs on a node that is up."""
    return cluster.tool("freeze", node, "--ranks").returncode == 0 and cluster.tool("thaw", node).returncode == 0


def test_frozen_ranks_are_named_and_their_host_avoided(cluster: SlurmCluster, slurm_lab: Lab, cases: Cases) -> None:
    cluster.repair()
    cluster.wait_idle()
    run = count(slurm_lab, *FOUR_NODES, "--hang-timeout", "8s", num_steps=40)
    slurm_lab.wait_between_commits(run, after=5)
    frozen = host_of(run, 5)
    cluster.freeze(frozen, only_ranks=True)
    try:
        assert slurm_lab.wait_end(run, timeout=180) == "done", slurm_lab.logs(run)
    finally:
        cluster.thaw(frozen)
    decision = read_decision(run.attempt(0))
    assert decision is not None
    assert (decision.failure, decision.word, decision.node) == ("hang", "again-elsewhere", frozen), decision
    assert decision.rank in (4, 5) and decision.exclude == (frozen,)
    # Every rank that was not frozen had its say before the first was ended, whoever hung first.
    assert {0, 1, 2, 3, 6, 7} <= {mark.writer for mark in read_marks(run.attempt(0))}
    lineage = assert_resumed(run, attempts=2)
    assert not lineage.missing and not lineage.doubled
    assert frozen not in {host_of_attempt.read_text() for host_of_attempt in run.attempt(1).ready.glob("[0-9]*")}
    assert f"the sum is {[40 * 41 / 2] * 4}" in slurm_lab.logs(run)
