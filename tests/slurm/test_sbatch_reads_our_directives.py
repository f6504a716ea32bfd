"""sbatch itself reads back what we write: names, comments and paths byte for byte, and no directive is swallowed."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpc_train.scheduler.directives import directive, output_pattern
from tests.support.cluster import SlurmCluster, wait_for

NAMES = [
    "plain", "a b", "  two  blanks ", "it's", "say \"hi\"", "'", '"', "''", "50% %j %N %%", "../up/and/../down", "#1",
    "a #b", "back\\slash", "trailing\\", "\\n", "$HOME", "${PATH}", "`touch /tmp/x`", "$(touch /tmp/x)", "a;b", "a&b|c",
    "größe ☃", "-x", "--nodes=99", "=", "a=b,c", "*?[x]", "(a)", "~", "!", "{a,b}", "<>", ":", ": x", "@",
]  # fmt: skip
TEXT = st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]), min_size=1, max_size=40)

# A controller that is not there: sbatch tells how it read the script before it looks for one.
CONF = """ClusterName=nowhere
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort=1
NodeName=n1
PartitionName=p Nodes=n1
"""


@pytest.fixture(scope="module")
def reading(tmp_path_factory: pytest.TempPathFactory) -> Callable[[list[str]], dict[str, str]]:
    """How sbatch reads directives: its own listing of the options it found."""
    directory = tmp_path_factory.mktemp("reading")
    (directory / "slurm.conf").write_text(CONF)
    sbatch = shutil.which("sbatch")
    assert sbatch is not None

    def read(directives: list[str]) -> dict[str, str]:
        script = directory / "script"
        script.write_text("".join(["#!/bin/bash\n", *(f"#SBATCH {line}\n" for line in directives), "true\n"]))
        found: dict[str, str] = {}
        process = subprocess.Popen(
            [sbatch, "-vv", str(script)],
            env={"SLURM_CONF": str(directory / "slurm.conf"), "PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        assert process.stderr is not None
        for line in process.stderr:
            text = line.decode().rstrip("\n")
            if match := re.fullmatch(r"sbatch: (?:debug\d?: )?([a-z-]+) +: (.*)", text):
                found[match[1]] = match[2]
            elif "error" in text or (found and text.endswith("-" * 20)):
                break
        process.kill()
        process.wait(timeout=10)
        process.stderr.close()
        return found

    return read


@pytest.mark.parametrize("name", NAMES)
def test_a_name_is_read_byte_for_byte(reading: Callable[[list[str]], dict[str, str]], name: str) -> None:
    found = reading([directive("job-name", name), directive("comment", name), directive("nodes", 3)])
    assert (found.get("job-name"), found.get("comment"), found.get("nodes")) == (name, name, "3")


@given(TEXT, TEXT)
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_is_read_byte_for_byte(reading: Callable[[list[str]], dict[str, str]], name: str, path: str) -> None:
    # the listing shows the name as it was read; a backslash switches off Slurm's own reading of a path
    lines = [directive("job-name", name), directive("output", f"/x/{path}/log"), directive("nodes", 3)]
    found = reading(lines)
    assert (found.get("job-name"), found.get("output"), found.get("nodes")) == (name, f"/x/{path}/log", "3")


def test_the_naive_ways_are_misread(reading: Callable[[list[str]], dict[str, str]]) -> None:
    # stanford-rc/www.sherlock.stanford.edu#19, nextflow-io/nextflow#218: what quoting is for
    for naive in ("--job-name=a b", "--job-name=a\\ b", "--job-name=a'b"):
        assert reading([naive, "--nodes=3"]).get("job-name") not in ("a b", "a'b")


def show(cluster: SlurmCluster, job_id: str) -> str:
    return cluster.run(["scontrol", "show", "job", job_id]).stdout


def submit(cluster: SlurmCluster, directory: Path, directives: list[str], body: str = "true") -> str:
    script = directory / "script.sbatch"
    script.write_text("".join(["#!/bin/bash\n", *(f"#SBATCH {line}\n" for line in directives), f"{body}\n"]))
    done = cluster.run(["sbatch", "--parsable", script], cwd=directory)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_controller_has_names_and_comments_as_they_were_written(cluster: SlurmCluster, job_dir: Path) -> None:
    for name in NAMES:
        lines = [
            "--hold",
            directive("job-name", name),
            directive("comment", f"hpc-train:{name}"),
            directive("nodes", 3),
        ]
        job_id = submit(cluster, job_dir, lines)
        shown = show(cluster, job_id)
        assert shown.splitlines()[0] == f"JobId={job_id} JobName={name}", name
        # scontrol writes a blank after it; this is how the back end looks for it
        comment = cluster.run(["squeue", "--noheader", f"--jobs={job_id}", "--format=%i|%k"]).stdout
        assert comment == f"{job_id}|hpc-train:{name}\n", name
        assert re.search(r"NumNodes=3\b", shown), name
        cluster.run(["scancel", job_id])


@pytest.mark.parametrize("name", ["50% off %j %N", "it's", 'say "hi"', "a b #1", "größe", "$HOME `id`;"])
def test_the_log_lies_at_the_literal_path(cluster: SlurmCluster, job_dir: Path, name: str) -> None:
    directory = job_dir / name
    directory.mkdir()
    shutil.chown(directory, cluster.user)
    log = directory / "batch.log"
    submit(cluster, job_dir, [directive("output", output_pattern(str(log))), "--nodes=1"], "echo here")
    wait_for(f"{log} is written", lambda: log.exists() and log.read_text() == "here\n", timeout=30)
    assert [path.name for path in directory.iterdir()] == ["batch.log"]
