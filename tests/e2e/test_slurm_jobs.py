"""What a user does on a cluster: any script, the shipped examples, odd names, stop, cancel, look."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from hpc_train.files import read_json
from hpc_train.recovery.evidence import read_decision
from hpc_train.run.journal import read_journal
from tests.e2e.lab import Lab, steps_of
from tests.support.cluster import SlurmCluster
from tests.support.ranks import MPICH, OPENMPI, Mpi

SHAPE = ("--nodes", "2", "--ranks-per-node", "2")
STOPPABLE = Path(__file__).with_name("stoppable.py")


def test_an_unmodified_env_script_runs_over_two_nodes(slurm_lab: Lab) -> None:
    program = ("python", "-m", "hpc_train.examples.plain_ddp", "--lr", "1e-3")
    run = slurm_lab.submit(*SHAPE, "--", *program)
    assert slurm_lab.wait_end(run) == "done", slurm_lab.logs(run)
    logs = slurm_lab.logs(run)
    for rank in range(4):
        assert f"rank {rank} of 4, local rank {rank % 2}, mean loss" in logs
    nodes = {(run.attempt(0).ready / str(rank)).read_text().strip() for rank in range(4)}
    assert len(nodes) == 2


def test_the_shipped_example_trains_on_the_cluster(slurm_lab: Lab, slurm_data: Path) -> None:
    job = slurm_lab.directory / "job.toml"
    job.write_text(
        f"""
        [job]
        name = "gpt"
        nodes = 2
        ranks_per_node = 2
        walltime = "10"
        [program]
        command = ["python", "-m", "hpc_train.examples.byte_gpt", "--data", {json.dumps(str(slurm_data))},
                   "--steps", "12", "--save-every", "6", "--width", "40", "--layers", "1"]
        rendezvous = "none"
        [data]
        path = [{json.dumps(str(slurm_data))}]
        """
    )
    run = slurm_lab.submit(job)
    assert slurm_lab.wait_end(run) == "done", slurm_lab.logs(run)
    slurm_lab.wait_state(run, "completed")
    assert steps_of(read_journal(run), "commit") == [6, 12]
    listed = slurm_lab.hpc_train("checkpoint", "verify", run.path)
    assert listed.returncode == 0, listed.stdout + listed.stderr


def test_names_with_quotes_blanks_and_percent_arrive(cluster: SlurmCluster, slurm_lab: Lab) -> None:
    name = """it's "a" 100% name; $(touch pwned) ../x"""
    root = slurm_lab.directory / "r u n%j x%Ny s%%"
    options = ("--name", name, "--run-root", root, "--rendezvous", "none")
    program = ("python", "-c", "import sys; print(sys.argv)", "a b", "$HOME", "1e-3; echo")
    run = slurm_lab.submit(*options, "--", *program)
    assert slurm_lab.wait_end(run) == "done", slurm_lab.logs(run)
    assert run.path.parent == root
    assert "['-c', 'a b', '$HOME', '1e-3; echo']" in slurm_lab.logs(run)
    job_id = slurm_lab.status(run)["job_id"]
    shown = cluster.run(["scontrol", "show", "job", job_id])
    assert f"JobName={name}\n" in shown.stdout + "\n" or f"JobName={name} " in shown.stdout.replace("\n", " ")
    # not by `scontrol show`, which expands the name once more for display
    assert "hpc-train: attempt 0: done" in run.submission(0).batch_log.read_text()
    assert not (slurm_lab.directory / "pwned").exists()


def test_a_warning_during_import_is_heard_on_all_ranks(cluster: SlurmCluster, slurm_lab: Lab) -> None:
    run = slurm_lab.submit(*SHAPE, "--rendezvous", "none", "--max-failures", "0", "--", "python", str(STOPPABLE), "3")
    slurm_lab.wait_for("the ranks are up", run, lambda: len(list(run.attempt(0).ready.glob("[0-9]*"))) == 4, 60)
    job_id = slurm_lab.status(run)["job_id"]
    assert cluster.run(["scancel", "--batch", "--signal=USR2", job_id]).returncode == 0

    decision = slurm_lab.wait_for("the decision", run, lambda: read_decision(run.attempt(0)), 60)
    assert (decision.failure, decision.code) == ("stopped", 75)
    heard = {read_json(path)["step"] for path in (run.path / "stops").iterdir()}
    assert len(heard) == 1, f"ranks stopped at different steps: {heard}"
    assert len(list((run.path / "stops").iterdir())) == 4
    slurm_lab.hpc_train("cancel", run.path)


@pytest.mark.parametrize(
    ("mpi", "protocol", "said", "remedy"),
    [(OPENMPI, "pmi2", "world of its own", "Open MPI: pmix"), (MPICH, "pmix", "does not speak", 'mpich = "pmi2"')],
    ids=["openmpi", "mpich"],
)
def test_an_mpi_that_does_not_speak_the_launchers_protocol_stops_at_once(
    slurm_lab: Lab, mpi: Mpi, protocol: str, said: str, remedy: str
) -> None:
    sites = slurm_lab.directory / "sites"
    sites.mkdir(exist_ok=True)
    (sites / "wrong.toml").write_text(f'extends = "slurm-cluster"\n[launch.mpi_of]\n{mpi.name} = "{protocol}"\n')
    environ = {**slurm_lab.environ, "HPC_TRAIN_SITES": str(sites)}
    wrong = replace(slurm_lab, site="wrong", environ=environ, python=mpi.python)
    program = "import hpc_train; hpc_train.init(process_group=False)"
    run = wrong.submit(*SHAPE, "--rendezvous", "none", "--", "python", "-c", program)
    assert wrong.wait_end(run) == "stop"
    decision = read_decision(run.attempt(0))
    assert decision is not None and decision.code == 78
    assert said in decision.reason and remedy in decision.reason


def test_cancel_ends_a_running_job_for_good(slurm_lab: Lab) -> None:
    run = slurm_lab.submit("--rendezvous", "none", "--", "sleep", "300")
    slurm_lab.wait_for("the attempt", run, lambda: list(run.attempt(0).ready.glob("[0-9]*")), 60)
    assert slurm_lab.status(run)["state"] == "running"
    cancelled = slurm_lab.hpc_train("cancel", run.path)
    assert cancelled.returncode == 0, cancelled.stderr
    slurm_lab.wait_state(run, "cancelled")
    assert "hpc-train requeue" in slurm_lab.hpc_train("why", run.path).stdout


def test_a_refused_job_leaves_nothing(slurm_lab: Lab) -> None:
    before = sorted((slurm_lab.directory / "runs").glob("*"))
    words = ("submit", "--site", "slurm-cluster", "--account", "nobodys", "--", "true")
    done = slurm_lab.hpc_train(*words)
    assert done.returncode == 69
    assert done.stderr.count("\n") == 1 and "account" in done.stderr.lower()
    assert sorted((slurm_lab.directory / "runs").glob("*")) == before
