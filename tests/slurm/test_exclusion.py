"""The list of excluded hosts that `decide` gives, on the real cluster: the job keeps off what failed, and can start."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from hpc_train.recovery.evidence import read_decision
from hpc_train.run.journal import Journal, read_journal
from hpc_train.run.layout import RunDir
from hpc_train.run.marks import write_mark
from tests.run.records import make_run, mark, start_attempt
from tests.support.cluster import SlurmCluster, wait_for

BIG = "hpctrainbig"  # a feature that two hosts have during these tests


@dataclass(frozen=True)
class Case:
    """A run on two hosts, whose job runs with `--exclude=n8`."""

    cluster: SlurmCluster
    run: RunDir
    job_id: str

    def fail_on(self, node: str, *, attempt: int, failure: str = "hang") -> str:
        """An attempt that failed on a host, and what `decide` answers."""
        made = start_attempt(self.run, {0: "n1", 1: "n1", 2: node, 3: node})
        assert made.number == attempt
        write_mark(made, mark(failure, 3, code=76, node=node))
        return self.decide(attempt)

    def decide(self, attempt: int) -> str:
        environ = [f"SLURM_JOB_ID={self.job_id}", "SLURM_JOB_PARTITION=main"]  # the tool passes none of Slurm's on
        argv = ["decide", str(self.run.path), "--submission", "0", "--attempt", str(attempt), "--code", "143"]
        subprocess.run(["chown", "-R", self.cluster.user, str(self.run.path)], check=True)
        done = self.cluster.run(["env", *environ, sys.executable, "-m", "hpc_train", *argv])
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def told(self) -> list[list[str]]:
        """What was avoided after each change."""
        return [event.fields["nodes"] for event in read_journal(self.run) if event.event == "avoided"]

    def script(self, *options: str) -> None:
        lines = ["#!/bin/bash", "#SBATCH --nodes=2 --time=10", *(f"#SBATCH {option}" for option in options), "true\n"]
        self.run.submission(0).script.write_text("\n".join(lines))


@pytest.fixture
def case(cluster: SlurmCluster, job_dir: Path) -> Iterator[Case]:
    cluster.wait_idle()
    asked = ["--parsable", "--exclude=n8", "--nodes=1", "--time=10", "--wrap", "sleep 600"]
    given = cluster.run(["sbatch", *asked], cwd=job_dir)
    assert given.returncode == 0, given.stderr
    job_id = given.stdout.strip()
    made = Case(cluster, make_run(job_dir / "run", max_failures=50), job_id)
    made.script()
    wait_for("it runs", lambda: "R" in cluster.run(["squeue", "-h", "-j", job_id, "-o%t"]).stdout.split(), timeout=60)
    yield made
    cluster.run(["scancel", job_id])


def control(cluster: SlurmCluster, *words: str) -> None:
    """scontrol, as root."""
    subprocess.run(["scontrol", *words], env=cluster.env, check=True, timeout=20, capture_output=True)


def test_what_failed_is_added_to_what_the_user_excluded_and_slurm_takes_the_list(case: Case) -> None:
    assert case.fail_on("n2", attempt=0) == "again-elsewhere 76 ExcNodeList=n2,n8 0"
    control(case.cluster, "requeue", case.job_id)
    changed = case.cluster.run(["scontrol", "update", f"jobid={case.job_id}", "ExcNodeList=n2,n8"])
    assert changed.returncode == 0, changed.stderr
    assert case.fail_on("n3", attempt=1) == "again-elsewhere 76 ExcNodeList=n2,n3,n8 0"
    assert case.told() == [["n2"], ["n2", "n3"]]
    # a person lets it go on: what was ours is let go, what is the user's stays
    Journal(case.run, "login").append("requeue_asked", after_attempt=1)
    start_attempt(case.run, {})
    assert case.decide(2) == "again 143 ExcNodeList=n8 0"
    assert case.told()[-1] == []


# Also by a job that is held: released, it would start on that host, where its last start may still run.
@pytest.mark.parametrize(("failure", "word"), [("killed", "again 137"), ("no_space", "hold 73")])
def test_a_host_that_was_lost_without_a_living_shell_is_avoided_from_the_next_end_on(
    case: Case, failure: str, word: str
) -> None:
    Journal(case.run, "decide", 0).append("decision", word="again", failure="node_fail", node="n4", exclude=[])
    start_attempt(case.run, {})
    made = start_attempt(case.run, {0: "n1", 1: "n1", 2: "n2", 3: "n2"})
    write_mark(made, mark(failure, 3, code=int(word.split()[1])))
    assert case.decide(1) == f"{word} ExcNodeList=n4,n8 0"
    decision = read_decision(made)
    assert decision is not None and decision.exclude == ()


def test_hosts_that_the_job_cannot_do_without_are_not_excluded_whatever_the_queue_has(case: Case) -> None:
    # seven hosts are up, but only two have what the job asks for
    control(case.cluster, "update", "nodename=n[2-3]", f"AvailableFeatures={BIG}", f"ActiveFeatures={BIG}")
    try:
        case.script(f"--constraint={BIG}")
        assert case.fail_on("n2", attempt=0) == "again-elsewhere 76 - 0"
        case.script(f"--constraint={BIG}", "--nodes=1")
        assert case.fail_on("n2", attempt=1) == "again-elsewhere 76 ExcNodeList=n2,n8 0"
    finally:
        control(case.cluster, "update", "nodename=n[2-3]", "AvailableFeatures=", "ActiveFeatures=")


def test_a_queue_with_hosts_down_lets_the_oldest_doubt_go(case: Case) -> None:
    # of n1 to n7 two are needed, and three are left
    control(case.cluster, "update", "nodename=n[4-7]", "state=drain", "reason=test")
    try:
        assert case.fail_on("n2", attempt=0) == "again-elsewhere 76 ExcNodeList=n2,n8 0"
        assert case.fail_on("n3", attempt=1) == "again-elsewhere 76 ExcNodeList=n3,n8 0"
        assert case.told() == [["n2"], ["n3"]]
    finally:
        control(case.cluster, "update", "nodename=n[4-7]", "state=resume")
        wait_for("they are back", lambda: "drain" not in json.dumps(case.cluster.states()), timeout=60)


def test_a_job_whose_user_excluded_nothing_gets_a_list_too(case: Case, job_dir: Path) -> None:
    given = case.cluster.run(["sbatch", "--parsable", "--time=10", "--wrap", "sleep 600"], cwd=job_dir)
    plain = replace(case, job_id=given.stdout.strip())
    try:
        assert plain.fail_on("n2", attempt=0) == "again-elsewhere 76 ExcNodeList=n2 0"
    finally:
        case.cluster.run(["scancel", plain.job_id])


def test_where_slurm_does_not_answer_the_list_stays_as_it_is(case: Case) -> None:
    gone = replace(case, job_id="999999")
    assert gone.fail_on("n2", attempt=0) == "again-elsewhere 76 - 0"
    assert gone.told() == []
