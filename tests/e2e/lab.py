"""Runs jobs as a user does and reads what became of them from the run directory, on this machine or the cluster.

Assertions go by the journal and the final checkpoint, so that "began again from nothing" or "was killed after its end"
cannot pass for a resume.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hpc_train.checkpoint.catalogue import newest
from hpc_train.data import expected_digest, read_manifest
from hpc_train.observe.lineage import Lineage, trace_lineage
from hpc_train.recovery.evidence import read_decision
from hpc_train.run.journal import Event, read_journal
from hpc_train.run.layout import RunDir

PROGRAM = Path(__file__).with_name("paced_training.py")
WALK = Path(__file__).with_name("paced_walk.py")
GLOBAL_BATCH, SEED = 16, 3  # of paced_training.py and paced_walk.py
STEPS, SAVE_EVERY = 60, 15  # of the run that the fixture `undisturbed` gives, and of those that are held against it
FOUR_NODES = ("--nodes", "4", "--ranks-per-node", "2")

Call = Callable[..., "subprocess.CompletedProcess[str]"]


@dataclass(frozen=True)
class Lab:
    """A place to submit from. `call` runs a command there as the user who submits; `python` runs submit and job."""

    call: Call
    directory: Path
    site: str
    environ: Mapping[str, str]
    python: str = sys.executable

    def hpc_train(self, *words: str | Path, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        """Run `hpc-train WORDS` and give what it printed and returned."""
        argv = [self.python, "-m", "hpc_train", *map(str, words)]
        return self.call(argv, timeout=timeout, cwd=self.directory, env=self.environ)

    def submit(self, *words: str | Path) -> RunDir:
        """Submit to this lab's site; the run must be taken."""
        done = self.hpc_train("submit", "--site", self.site, *words)
        assert done.returncode == 0, done.stderr
        fields = dict(line.split(None, 1) for line in done.stdout.splitlines())
        return RunDir(Path(fields["in"]))

    def train(self, data: Path, *options: str, steps: int, save_every: int, pause: float = 0.0) -> RunDir:
        """Submit paced_training.py; `options` are submit's."""
        program = ["python", str(PROGRAM), str(data), str(steps), str(save_every), str(pause)]
        return self.submit("--rendezvous", "none", *options, "--", *program)

    def walk(self, data: Path, *options: str, steps: int, save_every: int, pause: float = 0.0) -> RunDir:
        """Submit paced_walk.py: as `train`, without torch."""
        program = ["python", str(WALK), str(data), str(steps), str(save_every), str(pause)]
        return self.submit("--rendezvous", "none", *options, "--", *program)

    def status(self, run: RunDir) -> dict[str, Any]:
        """`hpc-train status --json` of one run."""
        done = self.hpc_train("status", "--json", "--fresh", run.path)
        assert done.returncode == 0, done.stderr
        record: dict[str, Any] = json.loads(done.stdout)[0]
        return record

    def logs(self, run: RunDir) -> str:
        """All that the run printed, for messages of failed tests."""
        return self.hpc_train("logs", "--all", run.path).stdout[-6000:]

    def wait_end(self, run: RunDir, timeout: float = 180) -> str:
        """Wait until no further attempt comes; returns the last decision's word."""

        def final() -> str | None:
            events = read_journal(run)
            words = [event.fields["word"] for event in events if event.event == "decision"]
            started = sum(event.event == "attempt_started" for event in events)
            return words[-1] if len(words) == started and words and not words[-1].startswith("again") else None

        return str(self.wait_for("the end of the run", run, final, timeout))

    def wait_state(self, run: RunDir, state: str, timeout: float = 120) -> None:
        """Wait until `hpc-train status` says so; the scheduler learns of an end a little after the journal."""
        self.wait_for(f"state {state}", run, lambda: self.status(run)["state"] == state, timeout)

    def wait_for(self, what: str, run: RunDir, found: Callable[[], Any], timeout: float) -> Any:
        """Poll until `found()` gives something."""
        deadline = time.monotonic() + timeout
        while not (value := found()):
            if time.monotonic() > deadline:
                raise AssertionError(f"not within {timeout:g} s: {what}\n{self.status(run)}\n{self.logs(run)}")
            time.sleep(0.1)
        return value

    def wait_decided(self, run: RunDir, attempt: int, timeout: float = 120) -> None:
        """Wait until an attempt has been decided: what is done to the run then, is done to a later one."""
        self.wait_for(f"the decision on attempt {attempt}", run, run.attempt(attempt).decision.exists, timeout)

    def wait_between_commits(self, run: RunDir, *, after: int, attempt: int = 0, timeout: float = 120) -> int:
        """Wait until a commit at or after step `after` and two more steps are journalled; returns the commit's step.

        `attempt`: which one must not have ended before that, since what the test does next is meant for it.
        """

        def between() -> int:
            ended = read_decision(run.attempt(attempt))
            assert ended is None, f"attempt {attempt} ended early: {ended}\n{self.logs(run)}"
            events = read_journal(run)
            commits, steps = steps_of(events, "commit"), steps_of(events, "step")
            ready = commits and steps and commits[-1] >= after and steps[-1] >= commits[-1] + 2
            return commits[-1] if ready else 0

        return int(self.wait_for(f"a commit at step {after} or later", run, between, timeout))


def steps_of(events: Sequence[Event], kind: str) -> list[int]:
    """The steps of all events of a kind."""
    return [event.fields["step"] for event in events if event.event == kind]


def lineage_of(run: RunDir) -> Lineage:
    """The steps that the run's model rests on."""
    return trace_lineage(read_journal(run))


def final_bytes(run: RunDir) -> dict[str, bytes]:
    """The newest checkpoint's files: weights, optimizer, stream and random state of every rank, and their index."""
    entry = newest(run.checkpoints)
    assert entry is not None, f"{run.path} has no checkpoint"
    files = [*sorted(entry.path.glob("data-*")), entry.path / "index.json"]
    return {path.name: path.read_bytes() for path in files}


def assert_same_run(run: RunDir, reference: RunDir, data: Path) -> Lineage:
    """The run's final state and batches equal those of an undisturbed one, bit for bit."""
    lineage, undisturbed = lineage_of(run), lineage_of(reference)
    assert not lineage.missing and not lineage.doubled
    assert [r.digest for r in lineage.steps] == [r.digest for r in undisturbed.steps]
    assert [r.loss for r in lineage.steps] == [r.loss for r in undisturbed.steps]
    manifest = read_manifest(data)
    planned = [
        expected_digest(manifest, global_batch=GLOBAL_BATCH, seed=SEED, epoch=0, step=r.step - 1) for r in lineage.steps
    ]
    assert [r.digest for r in lineage.steps] == planned
    ours, theirs = final_bytes(run), final_bytes(reference)
    assert ours.keys() == theirs.keys() and ours
    assert ours == theirs, "the final checkpoints differ"
    return lineage


def assert_resumed(run: RunDir, *, attempts: int) -> Lineage:
    """The run took so many attempts, each later one from a commit after step 0.

    A rank that is ended between the rename that commits and its line in the journal has committed all the same.
    """
    events = read_journal(run)
    lineage = lineage_of(run)
    ends = [f"{event.attempt}: {event.fields}" for event in events if event.event == "decision"]
    assert sum(event.event == "attempt_started" for event in events) == attempts, "\n".join(ends)
    for attempt, start in lineage.resumed.items():
        known = steps_of([event for event in events if event.attempt < attempt], "commit")
        assert start == 0 if attempt == 0 else start > 0, (attempt, start)
        assert start == 0 or start in known or start > max(known, default=0), (attempt, start, known)
    return lineage
