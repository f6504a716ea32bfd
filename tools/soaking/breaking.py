"""Doing a fault to a run on the cluster, and undoing what outlives it.

Apart from the plan, which is data, and from the lanes, which wait and watch. Faults are done as they happen to users:
by signals, crashes, cables and Slurm's own commands, never through hpc-train's code.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path

from hpc_train.launch.processes import find_ranks
from hpc_train.run.layout import RunDir
from soaking.findings import Injection
from soaking.plan import DISK, Fault
from tests.e2e.lab import Lab
from tests.support.cluster import SlurmCluster

__all__ = ["BREAKS_NODE", "ask_again", "break_run", "make_disk", "return_drained", "undo"]

BREAKS_NODE = ("crash node", "cut node", "freeze ranks", "freeze node")
REQUEUE_TIMEOUT_S = 120
DISK_MIB = 96
FILLER = "filler"


def break_run(cluster: SlurmCluster, lab: Lab, run: RunDir, fault: Fault) -> Injection | None:
    """Do a fault to the newest attempt of a run; None where that has just ended, so that there is nothing to break."""
    attempt = run.attempts()[-1]
    ready = sorted(int(path.name) for path in attempt.ready.iterdir() if path.name.isdecimal())
    if not ready or attempt.decision.exists():
        return None
    rank = ready[int(fault.victim * len(ready))]
    node = (attempt.ready / str(rank)).read_text().strip()
    done = Injection(fault.kind, run.name, attempt.number, rank, node, time.time())
    if fault.kind in BREAKS_NODE:
        return done if _break_node(cluster, fault.kind, node) else None
    if fault.kind == DISK:
        fill(run.path.parents[1])
        return done
    if fault.kind.startswith("kill"):
        return done if _kill(run, done) else None
    return done if _ask_slurm(cluster, lab, run, fault.kind) else None


def _parent_of(pid: int) -> int:
    """Of a rank's monitor: the slurmstepd that started the ranks of that node."""
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _break_node(cluster: SlurmCluster, kind: str, node: str) -> bool:
    verbs = {
        "crash node": ["kill", node],
        "cut node": ["cut", node],
        "freeze node": ["freeze", node],
        "freeze ranks": ["freeze", node, "--ranks"],
    }
    return cluster.tool(*verbs[kind]).returncode == 0


def _kill(run: RunDir, wanted: Injection) -> bool:
    ranks = find_ranks(run.path, attempt=wanted.attempt)
    try:
        victim = next(found for found in ranks if found.rank == wanted.rank)
        os.kill(victim.program if wanted.kind == "kill rank" else _parent_of(victim.monitor), signal.SIGKILL)
    except (StopIteration, ProcessLookupError, FileNotFoundError):
        return False
    return True


def _ask_slurm(cluster: SlurmCluster, lab: Lab, run: RunDir, kind: str) -> bool:
    job_id = str(lab.status(run)["job_id"])
    if kind == "warning":
        words = ["scancel", "--batch", "--signal=USR2", job_id]
    elif kind == "requeue by Slurm":
        words = ["scontrol", "requeue", job_id]
    else:
        words = []
    done = cluster.run(words) if words else lab.hpc_train("cancel", run.path)
    return done.returncode == 0


def make_disk(cluster: SlurmCluster, directory: Path) -> Path:
    """A small file system that all hosts see: they take over the mounts that there are when they start."""
    directory.mkdir()
    options = f"size={DISK_MIB}m,mode=0777"
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(directory)], check=True, timeout=20)
    for node in sorted(cluster.states()):
        cluster.kill(node, noticed=True)
        cluster.start(node)
    return directory


def fill(disk: Path) -> None:
    """Take every byte that is left of a disk, as another user's job does."""
    with open(disk / FILLER, "ab", buffering=0) as file, contextlib.suppress(OSError):
        for size in (1 << 20, 1 << 12, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(bytes(size))


def undo(cluster: SlurmCluster, run: RunDir, injection: Injection) -> None:
    """Repair what a fault broke for longer than one attempt; RuntimeError where that cannot be done."""
    if injection.kind == DISK:
        (run.path.parents[1] / FILLER).unlink(missing_ok=True)
    if injection.kind in BREAKS_NODE:
        # By what the node suffers from now: another lane's run may have been hit there since. And more than once: on a
        # busy machine a node may need longer than the tool waits for it.
        for tries_left in (2, 1, 0):
            try:
                cluster.repair_node(injection.node)
                return
            except AssertionError as error:
                if not tries_left:
                    raise RuntimeError(f"repair of {injection.node}: {error}") from error


def return_drained(cluster: SlurmCluster) -> None:
    """Let Slurm use again what it has drained, as an administrator does once a host is repaired."""
    for node, state in cluster.states().items():
        if "drain" in state:
            words = ["scontrol", "update", f"nodename={node}", "state=resume"]
            subprocess.run(words, env=cluster.env, capture_output=True, timeout=20, check=False)


def ask_again(lab: Lab, run: RunDir, *words: str) -> None:
    """`hpc-train requeue` or `resume` of a run; refused as long as its job is being ended."""
    verb, *others = words
    deadline = time.monotonic() + REQUEUE_TIMEOUT_S
    while (done := lab.hpc_train(verb, run.path, *others)).returncode != 0:
        if time.monotonic() > deadline:
            raise RuntimeError(f"{verb} of {run.name}: {done.stderr.strip()}")
        time.sleep(1.0)
