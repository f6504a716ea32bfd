"""The frameworks people use, started as any program: they train together, stop, are killed, go on, and lose nothing."""

from __future__ import annotations

import os
import signal
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from hpc_train.integrations.completion import complete_checkpoints
from hpc_train.launch.processes import find_ranks
from hpc_train.recovery.evidence import read_decision
from hpc_train.run.journal import read_journal
from hpc_train.run.layout import RunDir
from tests.e2e.conftest import make_local_lab
from tests.e2e.lab import Lab, assert_resumed, lineage_of, steps_of
from tests.e2e.test_local_runs import has_reached, warn
from tests.support.cluster import SlurmCluster

PROGRAMS = Path(__file__).parent


@dataclass(frozen=True)
class Framework:
    """A shipped example, its steps with two ranks, and where it leaves its weights."""

    name: str
    options: Sequence[str]
    steps: int
    weights: str

    def submit(self, lab: Lab, *options: str, pause: float = 0.0) -> RunDir:
        """Start it with two ranks on one node."""
        program = ("python", "-m", f"hpc_train.examples.{self.name}_trainer", *self.options, "--pause", str(pause))
        return lab.submit("--ranks-per-node", "2", "--backoff", "1s", *options, "--", *program)

    def result(self, run: RunDir) -> bytes:
        """The final weights, as the framework writes them."""
        return (run.path / self.name / self.weights).read_bytes()


FRAMEWORKS = [
    Framework("huggingface", ("--steps", "90", "--save-every", "15"), 90, "final/model.safetensors"),
    Framework("lightning", ("--epochs", "3", "--samples", "240", "--save-every", "15"), 90, "final.pt"),
]


@pytest.mark.parametrize("framework", FRAMEWORKS, ids=lambda framework: framework.name)
def test_stopped_and_then_killed_it_ends_where_an_undisturbed_run_ends(
    framework: Framework, local_lab: Lab, tmp_path: Path
) -> None:
    (tmp_path / "other").mkdir()
    other_lab = make_local_lab(tmp_path / "other")
    undisturbed = framework.submit(other_lab)
    # Both at once, on one node: nothing that the frameworks or we choose may clash.
    run = framework.submit(local_lab, pause=0.08)
    local_lab.wait_for("step 20", run, partial(has_reached, run, 20), 120)
    warn(run)
    stopped = local_lab.wait_for("the decision", run, partial(read_decision, run.attempt(0)), 60)
    assert (stopped.failure, stopped.code, stopped.word) == ("stopped", 75, "again"), local_lab.logs(run)
    committed = local_lab.wait_between_commits(run, after=stopped.last_commit + 1, attempt=1)
    victim = next(found for found in find_ranks(run.path) if found.rank == 1)
    os.kill(victim.program, signal.SIGKILL)
    assert local_lab.wait_end(run) == "done", local_lab.logs(run)
    assert other_lab.wait_end(undisturbed) == "done", other_lab.logs(undisturbed)

    lineage = assert_resumed(run, attempts=3)
    assert lineage.resumed == {0: 0, 1: stopped.last_commit, 2: lineage.resumed[2]}
    assert lineage.resumed[2] >= committed  # from the framework's last save, not from the stop
    assert not lineage.missing and not lineage.doubled
    assert len(lineage.steps) == len(lineage_of(undisturbed).steps) == framework.steps
    # With two ranks a sum has one order, so nothing may differ.
    assert framework.result(run) == framework.result(undisturbed)
    assert len(complete_checkpoints(run.path / framework.name)) == 2  # older ones were removed


def test_deepspeed_finds_its_ranks(local_lab: Lab) -> None:
    program = ("python", str(PROGRAMS / "plain_deepspeed.py"))
    run = local_lab.submit("--ranks-per-node", "2", "--", *program)
    assert local_lab.wait_end(run) == "done", local_lab.logs(run)
    logs = local_lab.logs(run)
    assert all(f"rank {rank} of 2, local rank {rank}, sum 3" in logs for rank in range(2)), logs


def test_unmodified_programs_run_over_two_nodes_at_the_same_time(slurm_lab: Lab) -> None:
    shape = ("--nodes", "2", "--ranks-per-node", "2")
    names = ("huggingface", "lightning")
    runs = [slurm_lab.submit(*shape, "--", "python", str(PROGRAMS / f"plain_{name}.py")) for name in names]
    for run in runs:
        assert slurm_lab.wait_end(run, timeout=240) == "done", slurm_lab.logs(run)
    for name, run in zip(names, runs, strict=True):
        logs = slurm_lab.logs(run)
        for rank in range(4):
            assert f"{name}: rank {rank} of 4, local rank {rank % 2}, step 6" in logs, logs
    # Lightning sees srun's variables, and must neither take its ranks from them nor requeue the job by itself.
    assert slurm_lab.logs(runs[1]).count("environment TorchElasticEnvironment, USR1 SIG_DFL") == 4


def test_a_warning_stops_a_framework_on_all_nodes_at_one_step(cluster: SlurmCluster, slurm_lab: Lab) -> None:
    program = ("python", "-m", "hpc_train.examples.lightning_trainer", "--save-every", "1000", "--pause", "0.1")
    run = slurm_lab.submit("--nodes", "2", "--ranks-per-node", "1", "--", *program)
    job_id = slurm_lab.status(run)["job_id"]
    slurm_lab.wait_for("step 3", run, partial(has_reached, run, 3), 120)
    assert cluster.run(["scancel", "--batch", "--signal=USR2", job_id]).returncode == 0
    decision = slurm_lab.wait_for("the decision", run, partial(read_decision, run.attempt(0)), 60)
    slurm_lab.hpc_train("cancel", run.path)
    assert (decision.failure, decision.code, decision.word) == ("stopped", 75, "again"), slurm_lab.logs(run)
    events = read_journal(run)
    [commit] = steps_of(events, "commit")
    assert decision.last_commit == commit == max(steps_of(events, "step"))
    assert [step for step, _ in complete_checkpoints(run.path / "lightning")] == [commit]
