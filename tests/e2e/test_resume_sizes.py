"""A run that is resumed at other sizes reads the same samples in the same order, from exactly what was saved."""

from __future__ import annotations

import concurrent.futures
import json
import math
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hpc_train.data import expected_digest, read_manifest
from hpc_train.recovery.evidence import read_decision
from hpc_train.run.journal import Event, read_journal
from hpc_train.run.layout import RunDir
from tests.e2e.conftest import make_local_lab
from tests.e2e.lab import Lab, lineage_of, steps_of
from tests.e2e.resizable_training import BASE_LR, GLOBAL_BATCH, HORIZON, SEED
from tests.support.cluster import SlurmCluster, wait_for

PROGRAM = Path(__file__).with_name("resizable_training.py")
Completed = subprocess.CompletedProcess[str]


@dataclass
class Story:
    """One run from its submission through every resume. `sizes`: ranks of each attempt that was asked for."""

    lab: Lab
    data: Path
    run: RunDir
    sizes: list[int] = field(default_factory=list)

    def command(self, steps: int, *, pause: float = 0.0, code: int = 0) -> list[str]:
        return program(self.data, steps, pause=pause, code=code)

    def resume(self, size: int, *words: str) -> Completed:
        """A resume that is taken; waits for its attempt."""
        done = self.lab.hpc_train("resume", self.run.path, *words)
        assert done.returncode == 0, done.stderr
        self.expect(size)
        return done

    def expect(self, size: int) -> None:
        """The next attempt has started."""
        self.sizes.append(size)

        def has_started() -> bool:
            return sum(event.event == "attempt_started" for event in read_journal(self.run)) == len(self.sizes)

        self.lab.wait_for("the next attempt", self.run, has_started, 90)

    def wait_end(self, word: str, state: str) -> None:
        """The newest attempt has ended so."""
        assert self.lab.wait_end(self.run) == word, self.lab.logs(self.run)
        self.lab.wait_state(self.run, state)

    def cancel_after_a_commit(self) -> int:
        """End the run while it trains; returns the step it will go on from."""
        self.lab.wait_between_commits(self.run, after=5, attempt=len(self.sizes) - 1)
        assert self.lab.hpc_train("cancel", self.run.path).returncode == 0
        ended = ("CANCELLED", "cancelled")
        wait_for("the job has ended", lambda: self.lab.status(self.run)["job"]["raw"].startswith(ended), timeout=60)
        return steps_of(read_journal(self.run), "commit")[-1]

    def check(self, steps: int) -> None:
        """Samples, restored state, random streams and learning rate of the whole run."""
        lineage = lineage_of(self.run)
        assert not lineage.missing and not lineage.doubled
        assert [record.step for record in lineage.steps] == list(range(1, steps + 1))
        manifest = read_manifest(self.data)
        for record in lineage.steps:
            planned = expected_digest(manifest, global_batch=GLOBAL_BATCH, seed=SEED, epoch=0, step=record.step - 1)
            assert record.digest == planned
            assert record.loss is not None and math.isfinite(record.loss)
        events = read_journal(self.run)
        started = [event.fields["submission"] for event in events if event.event == "attempt_started"]
        assert started == list(range(len(self.sizes))), "one attempt a submission"
        sizes = [event.fields["num_ranks"] for event in events if event.event == "progress"]
        assert sizes == self.sizes
        check_restored(events)


def program(data: Path, steps: int, *, pause: float = 0.0, code: int = 0) -> list[str]:
    words = ["python", str(PROGRAM), str(data), str(steps), "5", str(pause)]
    return ["--", *words, *([str(code)] if code else [])]


def check_restored(events: list[Event]) -> None:
    """What was loaded is what was saved; no two ranks ever share a random stream."""
    saved: dict[int, dict[str, object]] = {}
    resized = {(event.attempt, event.fields["step"]): event.fields for event in events if event.event == "resized"}
    for event in events:
        if event.event not in ("saved", "loaded"):
            continue
        fields, step = event.fields, event.fields["step"]
        streams = fields["streams"]
        assert len(set(streams)) == len(streams), f"ranks share a stream: attempt {event.attempt}, step {step}"
        if event.event == "loaded" and step:
            before = saved[step]
            assert fields["weights"] == before["weights"]
            known = before["streams"]
            assert isinstance(known, list)
            shared = min(len(known), len(streams))
            assert streams[:shared] == known[:shared], "a rank that goes on keeps its stream"
            assert not set(streams[shared:]) & set(known), "a new rank has one that nobody had"
            is_other = len(known) != len(streams)
            assert ((event.attempt, step) in resized) == is_other
        if step:
            assert fields["lr"] == pytest.approx(BASE_LR * (1 - step / HORIZON)), "counted in global batches, not ranks"
        if event.event == "saved":
            saved[step] = fields


def test_four_two_one_and_four_ranks_on_this_machine(
    local_lab: Lab, local_data: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    options = ["--rendezvous", "none", "--backoff", "1s", "--ranks-per-node", "4"]
    run = local_lab.submit(*options, *program(local_data, 1000, pause=0.05))
    story = Story(local_lab, local_data, run, [4])
    step = story.cancel_after_a_commit()
    done = story.resume(2, "--ranks-per-node", "2", *story.command(step + 8))
    assert "changed 4 -> 2 ranks: the same samples in the same order, but not bit-equal" in done.stdout
    story.wait_end("done", "completed")
    story.resume(1, "--ranks-per-node", "1", *story.command(step + 16, code=93))
    story.wait_end("stop", "failed")

    # of several commands at once, one wins
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        words = ["resume", str(run.path), "--ranks-per-node", "4", *story.command(step + 24)]
        ends = list(pool.map(lambda _: local_lab.hpc_train(*words), range(3)))
    assert sorted(end.returncode for end in ends) == [0, 78, 78], [end.stderr for end in ends]
    story.expect(4)
    story.wait_end("done", "completed")

    # nothing is left to do: it ends at once as done
    story.resume(4)
    story.wait_end("done", "completed")
    story.check(step + 24)
    assert "not bit-equal" in local_lab.logs(run)
    status = local_lab.status(run)
    assert (status["job_id"], status["attempts"]) == (f"local:{run.submission(4).path}", 5)

    other = make_local_lab(tmp_path_factory.mktemp("undisturbed"))
    undisturbed = other.submit(*options[:-1], "2", *program(local_data, step + 24))
    assert other.wait_end(undisturbed) == "done", other.logs(undisturbed)
    assert [r.digest for r in lineage_of(run).steps] == [r.digest for r in lineage_of(undisturbed).steps]


def test_a_size_that_does_not_fit_ends_at_once_and_is_refused_from_then_on(local_lab: Lab, local_data: Path) -> None:
    run = local_lab.submit("--rendezvous", "none", "--ranks-per-node", "3", *program(local_data, 5))
    assert local_lab.wait_end(run) == "stop", local_lab.logs(run)
    local_lab.wait_state(run, "failed")
    decision = read_decision(run.attempt(0))
    assert decision is not None and (decision.failure, decision.code) == ("config", 78)
    assert "run on 1, 2, 4, 8, 16 ranks" in decision.reason
    assert "run on 1, 2, 4, 8, 16 ranks" in local_lab.hpc_train("why", run.path).stdout
    refused = local_lab.hpc_train("resume", run.path, "--ranks-per-node", "5")
    assert refused.returncode == 78
    assert "allowed ranks 1, 2, 4, 8, 16; asked 5 (1 nodes x 5 ranks_per_node)" in refused.stderr
    assert len(run.submissions()) == 1
    story = Story(local_lab, local_data, run, [3])
    story.resume(2, "--ranks-per-node", "2")
    story.wait_end("done", "completed")


def test_eight_four_two_one_and_eight_ranks_on_the_cluster(
    cluster: SlurmCluster, slurm_lab: Lab, slurm_data: Path
) -> None:
    shape = ["--nodes", "4", "--ranks-per-node", "2", "--walltime", "10"]
    run = slurm_lab.submit("--rendezvous", "none", *shape, *program(slurm_data, 1000, pause=0.1))
    story = Story(slurm_lab, slurm_data, run, [8])
    slurm_lab.wait_for("a running job", run, lambda: slurm_lab.status(run)["state"] == "running", 60)
    alive = slurm_lab.hpc_train("resume", run.path, "--nodes", "2")
    assert alive.returncode == 78 and "first: hpc-train cancel" in alive.stderr
    first_job = slurm_lab.status(run)["job_id"]
    step = story.cancel_after_a_commit()

    # of a cancelled run, in another queue, with another limit
    story.resume(4, "--nodes", "2", "--queue", "short", "--walltime", "5", *story.command(step + 8))
    story.wait_end("done", "completed")
    job = slurm_lab.status(run)["job_id"]
    assert job != first_job
    shown = slurm_lab.call(["scontrol", "show", "job", job], timeout=30, cwd=slurm_lab.directory, env={}).stdout
    assert "Partition=short" in shown and "TimeLimit=00:05:00" in shown

    refused = slurm_lab.hpc_train("resume", run.path, "--nodes", "3", "--ranks-per-node", "1")
    assert refused.returncode == 78 and "allowed ranks 1, 2, 4, 8, 16; asked 3" in refused.stderr

    words = {2: ["--nodes", "1"], 1: ["--ranks-per-node", "1"], 8: ["--nodes", "4", "--ranks-per-node", "2"]}
    total = step + 8
    for size, options in words.items():
        total += 8
        story.resume(size, *options, *story.command(total))
        story.wait_end("done", "completed")
    story.check(total)
    status = slurm_lab.status(run)
    newest = json.loads(run.submission(4).submit.read_text())["job_id"]
    assert (status["job_id"], status["attempts"], status["step"]) == (newest, 5, total)
    assert slurm_lab.hpc_train("status", "--json", first_job).returncode == 0

    # a stale job of an older submission that starts late runs nothing
    late = slurm_lab.call(
        ["sbatch", "--wait", str(run.submission(1).script)], timeout=90, cwd=slurm_lab.directory, env={}
    )
    assert late.returncode == 0, late.stderr
    assert len(run.attempts()) == 5
    assert "this job is of submission 1, and submission 4 goes on" in run.submission(1).batch_log.read_text()
