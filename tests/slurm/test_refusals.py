"""What the real sbatch refuses is told in terms of our keys, with its own words behind it; nothing stays behind."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from hpc_train.diagnosis.refusals import explain_refusal
from tests.support.cluster import SlurmCluster

SITE = 'title = "no limits of its own: Slurm itself must refuse"\nextends = "slurm"\n'


@pytest.mark.parametrize(
    ("flags", "job", "advice", "said"),
    [
        (["--queue", "nope"], {}, "--queue or [job].queue (now 'nope')", "invalid partition specified: nope"),
        (["--account", "nope"], {}, "--account or [job].account (now 'nope')", "Invalid account"),
        (
            ["--queue", "short", "--walltime", "1-0"],
            {},
            "--walltime or [job].walltime (now '1-0')",
            "time limit is inv",
        ),
        (["--nodes", "9"], {}, "--nodes or [job].nodes (now 9)", "Node count specification invalid"),
        (["--ranks-per-node", "99"], {}, "[job].ranks_per_node (now 99)", "More processors requested than permitted"),
        (
            ["--gpus-per-rank", "9"],
            {},
            "--gpus-per-rank or [job].gpus_per_rank (now 9)",
            "configuration is not available",
        ),
        (
            ["--memory", "999G"],
            {},
            "--memory or [job].memory (now '999G')",
            "Memory specification can not be satisfied",
        ),
        (["--exclude", "n[1-8]"], {}, "[job].exclude (now 'n[1-8]')", "configuration is not available"),
        (["--exclude", "zz1"], {}, "a node is named that the cluster has not", "Invalid node name specified"),
        ([], {"constraint": "foo"}, "[job].constraint (now 'foo')", "Invalid feature specification"),
        ([], {"reservation": "foo"}, "[job].reservation (now 'foo')", "reservation is invalid"),
        ([], {"licenses": "foo:1"}, "[job].licenses (now 'foo:1')", "Invalid license specification"),
        ([], {"extra_directives": ["--begin=foo"]}, "[job].extra_directives", "Invalid --begin specification"),
        ([], {"extra_directives": ["--gres-flags=foo"]}, "does not take '--gres-flags'", "Invalid --gres-flags"),
    ],
    ids=lambda value: json.dumps(value) if isinstance(value, list | dict) and value else None,
)
def test_a_refusal_names_the_key_to_change(
    cluster: SlurmCluster, job_dir: Path, *, flags: Sequence[str], job: dict[str, object], advice: str, said: str
) -> None:
    (job_dir / "here.toml").write_text(SITE)
    lines = [f"{key} = {json.dumps(value)}" for key, value in job.items()]
    (job_dir / "job.toml").write_text("\n".join(["[job]", *lines, "[program]", 'command = ["true"]', ""]))
    environ = {"HPC_TRAIN_SITES": str(job_dir), "XDG_STATE_HOME": str(job_dir / "state")}
    argv = [sys.executable, "-m", "hpc_train", "submit", "job.toml", "--site", "here", *flags]
    done = cluster.run(argv, cwd=job_dir, env=environ)
    assert (done.returncode, done.stdout) == (69, ""), done.stderr
    assert done.stderr.startswith("hpc-train: error: Slurm refuses this job: ") and done.stderr.count("\n") == 1
    ours, _, own = done.stderr.partition("; its own words: ")
    assert advice in ours
    assert said in own
    assert not (job_dir / "runs").exists()


@pytest.mark.parametrize(
    ("option", "advice"),
    [
        ("--dependency=foo:1", "--dependency is written wrongly"),
        ("--array=0-5000", "MaxArraySize"),
        ("--clusters=foo", "no such cluster"),
        ("--gres=tpu:1", "--gpus-per-rank or [job].gpus_per_rank"),
        ("--mem=1.5G", "--memory or [job].memory"),
        ("--time=soon", "--walltime or [job].walltime"),
        ("--segment=4", "does not take '--segment'"),
        ("--nodelist=zz9", "a node is named that the cluster has not"),
    ],
)
def test_what_no_job_file_can_ask_for_is_known_too(cluster: SlurmCluster, option: str, advice: str) -> None:
    done = cluster.run(["sbatch", "--hold", option, "--wrap", "true"])
    assert done.returncode != 0, done.stdout
    assert advice in str(explain_refusal(done.stderr)), done.stderr
