"""One round of the game against `cancel`: a run, a moment in its life, a cancel, and what must hold from then on.

Apart from the tests so that a person can play hundreds of rounds: python -m tests.e2e.cancelling ROUNDS [SEED].
"""

from __future__ import annotations

import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from hpc_train.checkpoint.catalogue import newest
from hpc_train.checkpoint.names import parse_in_progress
from hpc_train.recovery.evidence import read_decision
from hpc_train.run.journal import read_journal
from hpc_train.run.layout import RunDir
from tests.e2e.lab import Lab, lineage_of, steps_of
from tests.support.cluster import SlurmCluster, connect

COUNTING = str(Path(__file__).with_name("counting.py"))
NUM_STEPS = 60
OPTIONS = ("--walltime", "10", "--rendezvous", "none", "--max-failures", "1000", "--ranks-per-node", "1")
SETTLE_S = 3.0  # nothing may come back within this time after a cancel


def is_saving(run: RunDir) -> bool:
    return run.checkpoints.is_dir() and any(parse_in_progress(name) for name in os.listdir(run.checkpoints))


@dataclass(frozen=True)
class Moment:
    """When a run is cancelled: so many seconds, at most, after something was seen first.

    Attributes:  site: of the lab: one that requeues, or one where a new job goes on after each.
    """

    name: str
    seen: Callable[[RunDir], bool]
    within_s: float
    site: str = "slurm-cluster"


def attempt_is_there(run: RunDir) -> bool:
    return run.attempt(0).path.exists()


def has_decided(run: RunDir) -> bool:
    return read_decision(run.attempt(0)) is not None


SUCCESSOR = "no-requeue"
MOMENTS = (
    Moment("submitted", lambda run: True, 0.5),
    Moment("starting", attempt_is_there, 1.5),
    Moment("training", lambda run: bool(steps_of(read_journal(run), "step")), 0.4),
    Moment("saving", is_saving, 0.02),
    Moment("ranks have left", lambda run: any(run.attempt(0).exits.glob("rank-*")), 0.3),
    Moment("requeue is asked", has_decided, 0.3),
    Moment("waits after its requeue", has_decided, 6.0),
    Moment("starts again", lambda run: run.attempt(1).path.exists(), 1.5),
    Moment("successor is registered", attempt_is_there, 1.5, SUCCESSOR),
    Moment("goes on in the successor", has_decided, 1.5, SUCCESSOR),
)


@dataclass(frozen=True)
class Round:
    """A round that was played: what is wrong, in words."""

    name: str
    run: RunDir
    problems: Sequence[str]


def with_successor_site(lab: Lab) -> Lab:
    """The lab, which also knows the cluster as a site that forbids requeue."""
    sites = lab.directory / "sites"
    sites.mkdir(exist_ok=True)
    (sites / f"{SUCCESSOR}.toml").write_text('extends = "slurm-cluster"\ncontinuation = "successor"\n')
    return replace(lab, environ={**lab.environ, "HPC_TRAIN_SITES": str(sites)})


def queued(cluster: SlurmCluster, run: RunDir) -> list[str]:
    """What Slurm still has of the run, "JOB|COMMENT|STATE" each."""
    listing = cluster.run(["squeue", "--noheader", "--format=%i|%k|%T"]).stdout.splitlines()
    return [line for line in listing if f"|hpc-train:{run.name}/" in line]


def play(cluster: SlurmCluster, lab: Lab, moment: Moment, delay_s: float) -> Round:
    """One round. `lab` is one of `with_successor_site`."""
    lab = replace(lab, site=moment.site)
    run = lab.submit(*OPTIONS, "--", "python", COUNTING, str(NUM_STEPS), "2", "0.02", "restless")
    deadline = time.monotonic() + 120
    while not moment.seen(run):  # some windows are milliseconds wide
        assert time.monotonic() < deadline, f"{moment.name}: never seen\n{lab.logs(run)}"
        time.sleep(0.002)
    time.sleep(delay_s)
    problems = [*after_cancel(cluster, lab, run), *after_requeue(lab, run)]
    return Round(f"{moment.name} + {delay_s:.3f} s", run, problems)


def after_cancel(cluster: SlurmCluster, lab: Lab, run: RunDir) -> list[str]:
    """Cancel, and what is wrong then or within SETTLE_S."""
    done = lab.hpc_train("cancel", run.path, timeout=150)
    if done.returncode:
        return [f"cancel: code {done.returncode}: {done.stderr}"]
    at, attempts, commits = time.time(), len(run.attempts()), steps_of(read_journal(run), "commit")
    problems = [f"in the queue after cancel: {line}" for line in queued(cluster, run)]
    until = time.monotonic() + SETTLE_S
    while time.monotonic() < until:
        time.sleep(0.5)
        problems += [f"came back: {line}" for line in queued(cluster, run)]
    state = lab.status(run)["state"]
    if state != "cancelled":
        problems.append(f"its state is {state}")
    if len(run.attempts()) != attempts:
        problems.append(f"attempt {attempts} began after cancel")
    if steps_of(read_journal(run), "commit") != commits:
        problems.append("a checkpoint was committed after cancel")
    late = [event for event in read_journal(run) if event.event == "step" and event.time > at]
    return [*problems, *([f"{len(late)} steps after cancel"] if late else [])]


def after_requeue(lab: Lab, run: RunDir) -> list[str]:
    """Let the run go on to its end, and what is wrong with the whole."""
    # By what lies on the disk: a rank that is ended between the rename and the journal's line has committed too.
    entry = newest(run.checkpoints)
    committed, journal = (entry.step or 0) if entry is not None else 0, read_journal(run)
    earlier = len(run.attempts())
    (run.path / "settle").touch()
    asked = lab.hpc_train("requeue", run.path, timeout=150)
    if asked.returncode:
        return [f"requeue: code {asked.returncode}: {asked.stderr}"]
    lab.wait_state(run, "completed", timeout=120)
    problems, lineage = [], lineage_of(run)
    if lineage.missing or lineage.doubled or lineage.steps[-1].step != NUM_STEPS:
        problems.append(f"missing {lineage.missing}, doubled {lineage.doubled}, last {lineage.steps[-1].step}")
    start = next((step for attempt, step in lineage.resumed.items() if attempt >= earlier), None)
    if start != committed:
        problems.append(f"went on from step {start}, committed was {committed}")
    if committed < max(steps_of(journal, "commit"), default=0):
        problems.append(f"the journal knows a commit after step {committed}, the newest on disk")
    if f"the sum is {[NUM_STEPS * (NUM_STEPS + 1) / 2] * 4}" not in lab.logs(run):
        problems.append("the sum is wrong")
    return problems


def play_many(
    cluster: SlurmCluster, lab: Lab, num_rounds: int, *, seed: int, told: Callable[[Round], None] | None = None
) -> list[Round]:
    """So many rounds, every moment in turn and each at a random instant, side by side on the cluster's hosts."""
    chance = random.Random(seed)
    lab = with_successor_site(lab)
    chosen = [MOMENTS[number % len(MOMENTS)] for number in range(num_rounds)]
    delays = [chance.uniform(0, moment.within_s) for moment in chosen]

    def one(moment: Moment, delay_s: float) -> Round:
        played = play(cluster, lab, moment, delay_s)
        if told is not None:
            told(played)
        return played

    with ThreadPoolExecutor(5) as pool:
        return list(pool.map(one, chosen, delays))


def main() -> None:
    """Play by hand on the cluster of HPC_TRAIN_CLUSTER_DIR; exits with 1 where something was wrong."""
    cluster = connect()
    directory = Path(tempfile.mkdtemp(prefix="cancelling-", dir=cluster.shared))
    shutil.chown(directory, cluster.user)
    lab = Lab(cluster.run, directory, "slurm-cluster", {"XDG_STATE_HOME": str(directory / "state")})
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 1

    def told(played: Round) -> None:
        print(played.name, "ok" if not played.problems else f"{played.run.path}: {played.problems}", flush=True)

    rounds = play_many(cluster, lab, int(sys.argv[1]), seed=seed, told=told)
    bad = [each for each in rounds if each.problems]
    print(f"{len(rounds)} rounds, {len(bad)} of them wrong")
    if not bad:
        shutil.rmtree(directory)
    raise SystemExit(bool(bad))


if __name__ == "__main__":
    main()
