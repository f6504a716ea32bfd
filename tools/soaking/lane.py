"""One lane of the soak: one training run after the other, each broken several times and then held to its end.

Apart from the faults, because a lane only waits, with a limit for everything: a soak that hangs has found its bug.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from hpc_train.data import expected_digest, read_manifest
from hpc_train.files import read_json
from hpc_train.run.journal import Event, read_journal
from hpc_train.run.layout import RunDir
from hpc_train.topology.hostlist import expand
from soaking.breaking import BREAKS_NODE, ask_again, break_run, return_drained, undo
from soaking.findings import Injection, Sickness, find_false_alarms, find_losses, find_outcome
from soaking.plan import DISK, RESIZE, Fault
from soaking.report import Case, Ended
from tests.e2e.lab import GLOBAL_BATCH, PROGRAM, SEED, Lab, final_bytes, steps_of
from tests.support.cluster import SlurmCluster

__all__ = ["Grounds", "Lane", "Shape"]

STEPS, SAVE_EVERY, PAUSE_S = 150, 10, 0.15
FAULTS_A_RUN = 4
# Generous: beside other work an attempt may need minutes to start, and that is no hang.
START_LIMIT_S, RESUME_LIMIT_S, END_LIMIT_S = 600.0, 420.0, 420.0
RECOVERY_S = 60.0  # a repaired node is Slurm's again after so long
POLL_S = 0.25

Say = Callable[[str], None]


@dataclass(frozen=True)
class Shape:
    """Hosts and ranks of a lane's runs; its ranks take whole hosts, so that a fault hits one run only."""

    nodes: int
    ranks_per_node: int

    @property
    def smaller(self) -> tuple[str, ...]:
        """What `resume` is asked for when a run goes on at half the size."""
        if self.nodes > 1:
            return ("--nodes", str(self.nodes // 2))
        return ("--ranks-per-node", str(self.ranks_per_node // 2))

    @property
    def options(self) -> tuple[str, ...]:
        cpus = 8 // self.ranks_per_node
        numbers = (
            "--nodes",
            str(self.nodes),
            "--ranks-per-node",
            str(self.ranks_per_node),
            "--cpus-per-rank",
            str(cpus),
        )
        return (*numbers, "--walltime", "30", "--hang-timeout", "15s", "--max-failures", "10", "--rendezvous", "none")


@dataclass
class Grounds:
    """What the lanes share: the cluster, the data, the program, and which nodes were sick when."""

    cluster: SlurmCluster
    lab: Lab
    data: Path
    say: Say
    program: Path = PROGRAM
    deadline: float = 0.0  # CLOCK_MONOTONIC; after it no fault comes
    sick: list[Sickness] = field(default_factory=list)

    @property
    def has_time(self) -> bool:
        return time.monotonic() < self.deadline


class Lane:
    """Runs of one shape. `cases` and `runs` grow while it works.

    Args:  disk: on which its runs lie, if not on the cluster's; it is filled then.
    """

    def __init__(self, grounds: Grounds, shape: Shape, faults: Iterator[Fault], *, disk: Path | None = None) -> None:
        self.grounds = grounds
        self.shape = shape
        self.disk = disk
        self.cases: list[Case] = []
        self.runs: list[Ended] = []
        self.error = ""
        self._faults = faults
        self._reference: dict[str, bytes] = {}
        self._planned: list[int] = []

    def prepare(self) -> None:
        """The undisturbed run. An error of the soak itself is kept in `error`, here as in `work`."""
        self._guarded(self._undisturbed)

    def work(self) -> None:
        """Soak until time is over."""
        while self.grounds.has_time and not self.error:
            self._guarded(self._one_run)

    def _guarded(self, part: Callable[[], None]) -> None:
        try:
            part()
        except Exception as error:  # noqa: BLE001 - a thread: the report must tell what ended it
            self.error = f"{type(error).__name__}: {error}"

    def _submit(self, pause: float) -> RunDir:
        words = ["python", str(self.grounds.program), str(self.grounds.data), str(STEPS), str(SAVE_EVERY), str(pause)]
        root = ("--run-root", str(self.disk / "runs")) if self.disk else ()
        return self.grounds.lab.submit(*self.shape.options, *root, "--", *words)

    def _undisturbed(self) -> None:
        run = self._submit(0.0)
        if self._wait(lambda: self._final_word(run), START_LIMIT_S) != "done":
            raise RuntimeError(f"the undisturbed run {run.path} did not come to its end")
        self._reference = final_bytes(run)
        manifest = read_manifest(self.grounds.data)
        self._planned = [
            expected_digest(manifest, global_batch=GLOBAL_BATCH, seed=SEED, epoch=0, step=step) for step in range(STEPS)
        ]

    def _one_run(self) -> None:
        run = self._submit(PAUSE_S)
        injections: list[Injection] = []
        is_hung = False
        while len(injections) < FAULTS_A_RUN and not is_hung and self._await_ground(run):
            fault = next(self._faults)
            self._wait(lambda: self._final_word(run), fault.delay_s)
            if self._final_word(run):
                break
            injection = break_run(self.grounds.cluster, self.grounds.lab, run, fault)
            if injection is None:
                continue
            injections.append(injection)
            self.grounds.say(f"{run.name}: {fault.kind} (rank {injection.rank} on {injection.node})")
            is_hung = not self._await_resume(run, injection)
            self._tell(run, injection)
        self._close(run, injections, is_hung)

    def _await_ground(self, run: RunDir) -> bool:
        """Wait for a commit of the newest attempt; False where the run has ended, or the soak has no time left."""

        def found() -> str:
            events = read_journal(run)
            newest = max((event.attempt for event in events), default=-1)
            mine = [event for event in events if event.attempt == newest]
            kinds = {event.event for event in mine}
            if not self.grounds.has_time or self._final_word(run):
                return "over"
            is_near_end = bool(steps_of(mine, "step")) and steps_of(mine, "step")[-1] > STEPS - SAVE_EVERY
            return "over" if is_near_end else "ready" if "commit" in kinds and "decision" not in kinds else ""

        return bool(self._wait(found, START_LIMIT_S) == "ready")

    def _await_resume(self, run: RunDir, injection: Injection) -> bool:
        """Wait for a step of a later attempt, repair what was broken; False where no step comes in time."""
        if injection.kind in BREAKS_NODE:
            self.grounds.sick.append(Sickness(injection.node, injection.time, float("inf")))
        asked = self._ask(run, injection)

        def found() -> bool:
            later = [event for event in read_journal(run) if event.attempt > injection.attempt]
            ends = ("", "stop", "hold") if asked else ("",)  # until the next attempt starts, the old word stands
            return any(event.event == "step" for event in later) or self._final_word(run) not in ends

        has_resumed = bool(self._wait(found, RESUME_LIMIT_S))
        self._repair(run, injection)
        return_drained(self.grounds.cluster)
        return has_resumed

    def _repair(self, run: RunDir, injection: Injection) -> None:
        """Undo a fault, unless another lane's run was hit on the same node since: that lane will, once it has seen."""
        sick = self.grounds.sick
        if injection.kind in BREAKS_NODE:
            mine = sick.index(Sickness(injection.node, injection.time, float("inf")))
            sick[mine] = replace(sick[mine], until=time.time() + RECOVERY_S)
            if any(other.node == injection.node and other.until == float("inf") for other in sick):
                return
        undo(self.grounds.cluster, run, injection)

    def _ask(self, run: RunDir, injection: Injection) -> bool:
        """Let a run go on that waits for a person; whether it does."""
        words: dict[str, tuple[str, ...]] = {
            "cancel, then requeue": ("requeue",),
            "cancel, then resume": ("resume",),
            RESIZE: ("resume", *self.shape.smaller),
            DISK: ("requeue",),
        }
        if injection.kind == DISK:
            self._wait(run.attempt(injection.attempt).decision.exists, START_LIMIT_S)
            undo(self.grounds.cluster, run, injection)
        if injection.kind in words:
            ask_again(self.grounds.lab, run, *words[injection.kind])
        return injection.kind in words

    def _tell(self, run: RunDir, injection: Injection) -> None:
        outcome = find_outcome(injection, read_journal(run))
        self.cases.append(Case(injection, outcome))
        self.grounds.say(
            f"{run.name}: {injection.kind}: {outcome.failure} on {outcome.node or '-'} after {outcome.detect_s} s, "
            f"first step after {outcome.resume_s} s, {outcome.recomputed} steps again"
        )

    def _close(self, run: RunDir, injections: list[Injection], is_hung: bool) -> None:
        end = "hung" if is_hung else self._wait(lambda: self._final_word(run), END_LIMIT_S) or "hung"
        if end == "hung":
            self.grounds.lab.hpc_train("cancel", run.path)
        events = read_journal(run)
        is_done = end == "done"
        is_resized = any(each.kind == RESIZE for each in injections)
        ended = Ended(
            run=run.name,
            ranks=self.shape.nodes * self.shape.ranks_per_node,
            attempts=len(run.attempts()),
            end=end,
            is_equal=final_bytes(run) == self._reference if is_done and not is_resized else None,
            losses=find_losses(events, self._planned) if is_done else None,
            false_alarms=tuple(self._false_alarms(run, events, injections)),
        )
        self.runs.append(ended)
        self.grounds.say(f"{run.name}: {end} after {ended.attempts} attempts, equal: {ended.is_equal}")

    def _false_alarms(self, run: RunDir, events: list[Event], injections: list[Injection]) -> list[str]:
        nodes = {}
        for attempt in run.attempts():
            with contextlib.suppress(FileNotFoundError):  # its shell was killed before it could write it
                record: dict[str, Any] = read_json(attempt.started)
                nodes[attempt.number] = expand(str(record["nodes"]))
        return find_false_alarms(events, [done.attempt for done in injections], nodes, list(self.grounds.sick))

    def _final_word(self, run: RunDir) -> str:
        """The word after which no further attempt comes; "" while there is one."""
        events = read_journal(run)
        words = [event.fields["word"] for event in events if event.event == "decision"]
        started = sum(event.event == "attempt_started" for event in events)
        return str(words[-1]) if words and len(words) == started and not words[-1].startswith("again") else ""

    def _wait(self, found: Callable[[], Any], limit_s: float) -> Any:
        deadline = time.monotonic() + limit_s
        while not (value := found()) and time.monotonic() < deadline:
            time.sleep(POLL_S)
        return value
