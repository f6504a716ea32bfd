"""The run root's file system fills up while a run goes on: nothing is lost, the run is held, and says why.

On a real small tmpfs, with real ranks, on this machine and under Slurm.
"""

from __future__ import annotations

import dataclasses
import re
import shutil
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from hpc_train.checkpoint import Checkpointer
from hpc_train.checkpoint.verify import verify_tree
from hpc_train.recovery.evidence import read_decision
from hpc_train.run.journal import read_journal
from hpc_train.run.layout import RunDir
from tests.e2e.conftest import make_local_lab
from tests.e2e.lab import Lab, steps_of
from tests.support.cluster import SlurmCluster

PROGRAM = Path(__file__).with_name("filling.py")
STEPS, COMMITTED = 40, 10
# What meets the full disk first, and the class of that: "" where nobody had room to write it down.
KINDS = {"journal": "no_space", "log": "no_space", "own file": "no_space", "save": "no_space", "save-all": ""}


@dataclass(frozen=True)
class Outcome:
    """A held run: what was said of it, and what became of it after space was made."""

    run: RunDir
    why: str
    committed_then: list[int]
    good_then: bool
    failure: str
    state_after: str


def mount(directory: Path) -> Path:
    """A file system of 3 MiB."""
    directory.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=3m,mode=0777", "tmpfs", str(directory)], check=True, timeout=20)
    return directory


def fill_and_mend(lab: Lab, disk: Path, kind: str, *options: str) -> Outcome:
    """Run until the disk is full and the run held; then make space and ask it to go on."""
    run = lab.submit("--run-root", disk / "runs", "--rendezvous", "none", *options, "--", "python", PROGRAM, kind)
    lab.wait_state(run, "held", timeout=120)
    why = lab.hpc_train("why", run.path).stdout
    decision = read_decision(run.attempt(0))
    events = read_journal(run)
    good = all(verdict.is_good for verdict in verify_tree(run.path))
    if lab.site == "local":  # Slurm starts the job, which is held again
        refuse_while_full(lab, disk, run)
    (disk / "filler").unlink()
    asked = lab.hpc_train("requeue", run.path)
    assert asked.returncode == 0, asked.stderr
    state = lab.wait_for("an end", run, lambda: ended(lab, run), 120)
    return Outcome(run, why, steps_of(events, "commit"), good, "" if decision is None else decision.failure, state)


def refuse_while_full(lab: Lab, disk: Path, run: RunDir) -> None:
    """As long as nothing is free, neither the run nor a new one is started, and nothing half is left."""
    before = sorted(disk.rglob("*"))
    asking: list[list[str | Path]] = [["requeue", run.path], ["submit", "--run-root", disk / "runs", "--", "true"]]
    for words in asking:
        asked = lab.hpc_train(*words)
        assert asked.returncode == 73 and asked.stderr.count("\n") == 1, asked.stderr
    assert lab.status(run)["state"] == "held"
    made = {path.name for path in disk.rglob("*") if path not in before}
    assert made <= {"login.jsonl", ".claim.lock", ".reserve-marks"}, made


def ended(lab: Lab, run: RunDir) -> str:
    state = str(lab.status(run)["state"])
    return state if state in ("completed", "held", "failed", "cancelled", "unknown") else ""


def assert_held_and_resumed(outcome: Outcome, kind: str) -> None:
    assert (outcome.committed_then, outcome.good_then) == ([COMMITTED], True)
    assert outcome.failure == KINDS[kind], outcome.why
    assert "space" in outcome.why and str(outcome.run.path.parent.parent) in outcome.why
    assert " bytes and " in outcome.why and "free; a quota may allow less" in outcome.why
    assert re.search(r"the last checkpoint took 16\d,\d\d\d bytes in", outcome.why), outcome.why
    assert outcome.why.splitlines()[-1].startswith("next      it is held until you ask: hpc-train requeue")
    assert outcome.state_after == "completed", outcome.why
    events = read_journal(outcome.run)
    assert [(event.attempt, event.fields["step"]) for event in events if event.event == "resumed"] == [(1, COMMITTED)]
    live = {"sum": {"x": np.zeros(20_000)}}
    assert Checkpointer(outcome.run.checkpoints).load(live) == STEPS
    assert (live["sum"]["x"] == sum(range(STEPS + 1))).all()


@pytest.fixture(scope="module")
def local_outcomes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Outcome]]:
    """Every kind on a disk of its own, two at a time."""
    base = tmp_path_factory.mktemp("disks")
    disks = {kind: mount(base / f"disk {number}") for number, kind in enumerate(KINDS)}

    def run(kind: str) -> Outcome:
        lab = dataclasses.replace(make_local_lab(base), directory=disks[kind])
        return fill_and_mend(lab, disks[kind], kind, "--ranks-per-node", "2")

    try:
        with ThreadPoolExecutor(2) as pool:
            yield dict(zip(KINDS, pool.map(run, KINDS), strict=True))
    finally:
        for disk in disks.values():
            subprocess.run(["umount", "--lazy", str(disk)], check=True, timeout=20)


@pytest.mark.parametrize("kind", KINDS)
def test_a_full_disk_holds_a_local_run_and_costs_no_more_than_its_steps(
    local_outcomes: dict[str, Outcome], kind: str
) -> None:
    assert_held_and_resumed(local_outcomes[kind], kind)


def test_a_run_that_ends_on_a_full_disk_is_done(tmp_path: Path) -> None:
    disk = mount(tmp_path / "disk")
    lab = make_local_lab(tmp_path)
    try:
        options = ("--run-root", disk / "runs", "--rendezvous", "none", "--ranks-per-node", "2")
        run = lab.submit(*options, "--", "python", PROGRAM, "end")
        lab.wait_state(run, "completed", timeout=60)
        assert lab.status(run)["last_commit"] == COMMITTED
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True, timeout=20)


@pytest.fixture(scope="module")
def slurm_disk(cluster: SlurmCluster, slurm_lab: Lab) -> Iterator[Path]:
    """A small file system that two nodes see: nodes take over the mounts that there are when they start."""
    disk = mount(slurm_lab.directory / "disk")
    shutil.chown(disk, cluster.user)
    restart(cluster)
    yield disk
    subprocess.run(["umount", "--lazy", str(disk)], check=True, timeout=20)
    restart(cluster)


def restart(cluster: SlurmCluster) -> None:
    for node in ("n1", "n2"):
        cluster.kill(node, noticed=True)
        cluster.start(node)


@pytest.mark.parametrize("kind", ["save", "save-all"])
def test_a_full_disk_holds_a_slurm_run_and_costs_no_more_than_its_steps(
    slurm_lab: Lab, slurm_disk: Path, kind: str
) -> None:
    options = ("--nodes", "2", "--exclude", "n[3-8]")
    assert_held_and_resumed(fill_and_mend(slurm_lab, slurm_disk, kind, *options), kind)
