"""tools/slurm-cluster keeps its promises: a real cluster, real crashes, nothing left behind."""

from __future__ import annotations

import dataclasses
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slurm_cluster import config_files
from slurm_cluster.layout import Layout, Settings
from slurm_cluster.processes import Stat, children_in_own_namespace, children_of, end, is_running, read_record, spawn
from tests.support.cluster import TOOL, SlurmCluster, run_tool, wait_for

# Says each time that it starts where it runs, then waits to be crashed or requeued.
WAITING_JOB = """#!/bin/bash
#SBATCH --nodes=2 --time=5 --open-mode=append --output=starts.txt
echo "$SLURM_JOB_NODELIST"
srun sleep 300
"""


def expand(nodelist: str) -> set[str]:
    """Node names of a list like n[1-2] or n3."""
    inside = nodelist.removeprefix("n").strip("[]")
    bounds = [part.split("-") for part in inside.split(",")]
    return {f"n{number}" for part in bounds for number in range(int(part[0]), int(part[-1]) + 1)}


@dataclasses.dataclass(frozen=True)
class WaitingJob:
    """WAITING_JOB, submitted in `directory`."""

    cluster: SlurmCluster
    directory: Path
    number: str

    def starts(self) -> list[set[str]]:
        """The nodes of each start so far."""
        output = self.directory / "starts.txt"
        lines = output.read_text().splitlines() if output.exists() else []
        return [expand(line) for line in lines if line.startswith("n")]

    def wait_for_start(self, ordinal: int, *, timeout: float) -> set[str]:
        wait_for(f"start {ordinal} of job {self.number}", lambda: len(self.starts()) >= ordinal, timeout=timeout)
        return self.starts()[ordinal - 1]


@pytest.fixture
def waiting_job(cluster: SlurmCluster, job_dir: Path) -> Iterator[WaitingJob]:
    (job_dir / "job.sh").write_text(WAITING_JOB)
    cluster.wait_idle()
    submitted = cluster.run(["sbatch", "--parsable", "job.sh"], cwd=job_dir)
    assert submitted.returncode == 0, submitted.stderr
    job = WaitingJob(cluster, job_dir, submitted.stdout.strip())
    yield job
    cluster.run(["scancel", job.number])
    cluster.wait_idle()


@pytest.fixture
def own_dir() -> Iterator[Path]:
    """A directory for a second cluster, where its nodes could see it."""
    directory = Path(tempfile.mkdtemp(prefix="slurm-cluster-test-", dir="/var/tmp"))
    directory.chmod(0o755)
    yield directory
    run_tool("down", "--dir", str(directory))
    shutil.rmtree(directory)


def srun(cluster: SlurmCluster, *arguments: str) -> list[str]:
    """Sorted output lines of a job that must succeed."""
    done = cluster.run(["srun", *arguments])
    assert done.returncode == 0, done.stderr
    return sorted(done.stdout.splitlines())


def assert_one_line(done: subprocess.CompletedProcess[str], exit_code: int, *words: str) -> None:
    assert (done.returncode, done.stdout) == (exit_code, "")
    assert len(done.stderr.splitlines()) == 1 and all(word in done.stderr for word in words), done.stderr


def test_all_nodes_come_up_idle(cluster: SlurmCluster) -> None:
    cluster.wait_idle()
    assert sorted(cluster.states()) == [f"n{number}" for number in range(1, 9)]


def test_a_job_of_the_user_runs_on_four_nodes(cluster: SlurmCluster) -> None:
    lines = srun(cluster, "-N4", "sh", "-c", "echo $(hostname) $(id -un)")
    assert len({line.split()[0] for line in lines}) == 4
    assert {line.split()[1] for line in lines} == {cluster.user}


@pytest.mark.parametrize("place", ["/tmp", "/dev/shm"])
def test_temporary_files_are_private_to_a_node(cluster: SlurmCluster, place: str) -> None:
    lines = srun(cluster, "-N4", "sh", "-c", f"touch {place}/$(hostname); sleep 0.5; echo $(cd {place}; ls -d n*)")
    assert len(lines) == 4 and all(" " not in line for line in lines)


def test_nodes_resolve_each_other_and_the_machine(cluster: SlurmCluster) -> None:
    lines = srun(cluster, "-N1", "getent", "ahostsv4", "n8", os.uname().nodename)
    assert {line.split()[0].rpartition(".")[2] for line in lines} == {"8", "254"}


def test_nodes_have_no_way_to_the_outside(cluster: SlurmCluster) -> None:
    assert [line.split()[2] for line in srun(cluster, "-N1", "ip", "route", "show")] == ["eth0"]


def test_gpus_are_counted_per_node(cluster: SlurmCluster) -> None:
    assert srun(cluster, "-N2", "--gpus-per-node=2", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES") == ["0,1", "0,1"]


def test_leaves_hold_four_nodes_each(cluster: SlurmCluster) -> None:
    shown = cluster.run(["scontrol", "show", "topology"]).stdout
    assert "SwitchName=leaf0 Level=0 LinkSpeed=1 Nodes=n[1-4]" in shown
    assert "SwitchName=leaf1 Level=0 LinkSpeed=1 Nodes=n[5-8]" in shown


def test_mpi_ranks_span_nodes(cluster: SlurmCluster) -> None:
    program = "from mpi4py import MPI; world = MPI.COMM_WORLD; print(world.rank, world.allreduce(1))"
    lines = srun(cluster, "-N2", "--ntasks-per-node=2", "--mpi=pmix", sys.executable, "-c", program)
    assert lines == ["0 4", "1 4", "2 4", "3 4"]


def test_sacct_shows_the_job_to_a_node(cluster: SlurmCluster) -> None:
    number = srun(cluster, "sh", "-c", "echo $SLURM_JOB_ID")[0]
    ask = f"sacct -X -n -P -j {number} -o Account,User,State"
    # slurmctld hands jobs to the accounting in the background, every few seconds.
    wait_for(ask, lambda: srun(cluster, *ask.split()) == [f"hpctrain|{cluster.user}|COMPLETED"], timeout=60)


def test_a_job_that_its_queue_can_never_run_is_refused(cluster: SlurmCluster) -> None:
    done = cluster.run(["srun", "--partition=short", "--time=11", "true"])
    assert done.returncode != 0 and "time limit" in done.stderr


def test_a_requeued_job_waits_seconds_only(cluster: SlurmCluster, waiting_job: WaitingJob) -> None:
    waiting_job.wait_for_start(1, timeout=60)
    requeued = time.monotonic()
    assert cluster.run(["scontrol", "requeue", waiting_job.number]).returncode == 0
    waiting_job.wait_for_start(2, timeout=60)  # Slurm's own default is two minutes
    assert time.monotonic() - requeued > config_files.CREDENTIAL_LIFETIME_S - 1


def test_a_crash_is_noticed_and_the_job_runs_again_on_others(cluster: SlurmCluster, waiting_job: WaitingJob) -> None:
    crashed = min(waiting_job.wait_for_start(1, timeout=60))
    cluster.kill("n8")  # Nobody tells the controller of this one, which takes it up to half a minute.
    cluster.kill(crashed, noticed=True)
    assert cluster.states()[crashed].startswith("down")
    assert waiting_job.wait_for_start(2, timeout=60).isdisjoint({crashed, "n8"})
    wait_for("n8 is down", lambda: cluster.states()["n8"].startswith("down"), timeout=60)
    for node in (crashed, "n8"):
        cluster.start(node)
        assert cluster.states()[node] == "idle"


@pytest.mark.parametrize("verb", ["kill", "start"])
def test_an_unknown_node_is_named(cluster: SlurmCluster, verb: str) -> None:
    assert_one_line(cluster.tool(verb, "n9"), 2, "'n9'", "n1 to n8")


def test_up_needs_root(cluster: SlurmCluster, job_dir: Path) -> None:
    # A copy, since the checkout may lie where only root can read.
    shutil.copytree(TOOL.parent / "slurm_cluster", job_dir / "slurm_cluster")
    tool = shutil.copy(TOOL, job_dir)
    done = subprocess.run(["runuser", "-u", cluster.user, "--", tool, "up"], capture_output=True, text=True, timeout=20)
    assert_one_line(done, 77, "root", "sudo")


def test_up_of_a_running_cluster_says_so(cluster: SlurmCluster) -> None:
    done = cluster.tool("up")
    assert done.returncode == 0 and "already up" in done.stdout


def test_a_command_waits_for_another_one(cluster: SlurmCluster) -> None:
    with (cluster.dir / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        up = [str(TOOL), "up", "--dir", str(cluster.dir)]
        second = subprocess.Popen(up, stdout=subprocess.PIPE, text=True)
        assert second.stdout and "waiting for another" in second.stdout.readline()
    said, _ = second.communicate(timeout=60)
    assert second.returncode == 0 and "already up" in said


def test_env_can_be_evaluated(cluster: SlurmCluster) -> None:
    script = f'eval "$("{TOOL}" env --dir {cluster.dir})" && cd "$SLURM_CLUSTER_SHARED" && sinfo -h -p main -o %D'
    done = subprocess.run(["sh", "-c", script], capture_output=True, text=True, timeout=20)
    assert (done.stdout, done.stderr) == ("8\n", "")


def test_run_passes_arguments_environment_and_exit_code(cluster: SlurmCluster) -> None:
    done = cluster.run(["sh", "-c", 'printf %s "$1$ADDED"; exit 7', "sh", "a 'b'\n--"], env={"ADDED": "é"})
    assert (done.returncode, done.stdout) == (7, "a 'b'\n--é")


def test_run_stays_where_the_user_may_be(cluster: SlurmCluster, job_dir: Path, tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    assert cluster.run(["pwd"], cwd=job_dir).stdout.strip() == str(job_dir)
    assert cluster.run(["pwd"], cwd=tmp_path).stdout.strip() == str(cluster.shared)


def test_a_missing_package_is_named(own_dir: Path) -> None:
    script = f'mount --bind /dev/null /usr/sbin/slurmdbd && exec "{TOOL}" up --dir {own_dir}'
    done = subprocess.run(["unshare", "--mount", "sh", "-c", script], capture_output=True, text=True, timeout=30)
    assert_one_line(done, 69, "slurmdbd", "apt-get install --yes slurmdbd")


def test_a_machine_without_namespaces_is_refused(own_dir: Path) -> None:
    weaker = ["setpriv", "--bounding-set=-sys_admin", "--inh-caps=-sys_admin", str(TOOL), "up", "--dir", str(own_dir)]
    done = subprocess.run(weaker, capture_output=True, text=True, timeout=30)
    assert_one_line(done, 69, "namespaces", "--privileged")


def test_commands_for_a_running_cluster_say_how_to_start_one(own_dir: Path) -> None:
    for arguments in (["env"], ["run", "--", "true"], ["kill", "n1"], ["start", "n1"]):
        verb, *others = arguments
        assert_one_line(run_tool(verb, "--dir", str(own_dir), *others), 69, f"{TOOL} up --dir {own_dir}")


def test_a_directory_with_other_files_stays_untouched(own_dir: Path) -> None:
    (own_dir / "log").mkdir()
    assert_one_line(run_tool("up", "--dir", str(own_dir)), 2, "other files")
    assert [path.name for path in own_dir.iterdir()] == ["log"]


def test_a_directory_of_another_user_is_not_trusted(own_dir: Path) -> None:
    os.chown(own_dir, 65534, 65534)
    assert_one_line(run_tool("up", "--dir", str(own_dir)), 77, "another user")


@pytest.mark.parametrize("directory", ["/tmp/cluster", "/dev/shm/cluster", "/var/tmp/a b", "/var/tmp/" + "x" * 80])
def test_a_directory_that_cannot_hold_a_cluster_is_refused(directory: str) -> None:
    assert_one_line(run_tool("up", "--dir", directory), 2, "--dir")


def test_addresses_in_use_are_refused_and_nothing_is_left(cluster: SlurmCluster, own_dir: Path) -> None:
    settings = Settings.load(Layout.at(cluster.dir).settings)
    assert settings is not None
    taken = str(settings.subnet)
    done = run_tool("up", "--dir", str(own_dir), "--nodes", "1", "--subnet", taken)
    assert_one_line(done, 69, taken, "--subnet")
    assert traces_of(own_dir) == []


def traces_of(directory: Path) -> list[str]:
    """What of a cluster is still on the machine: processes, network interfaces, mounts."""
    shown = subprocess.run(["ip", "link", "show"], capture_output=True, text=True, timeout=20, check=True).stdout
    links = [line for line in shown.splitlines() if Layout.at(directory).identity in line]
    mounts = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if str(directory) in line]
    processes = []
    for entry in filter(lambda entry: entry.name.isdigit(), Path("/proc").iterdir()):
        try:
            said = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
        except OSError:
            continue
        if f"{directory}/".encode() in said:
            processes.append(f"process {entry.name}")
    return links + mounts + processes


def test_a_second_cluster_survives_the_death_of_all_its_processes(cluster: SlurmCluster, own_dir: Path) -> None:
    up = ["up", "--dir", str(own_dir), "--nodes", "2", "--subnet", "10.78.0.0/24"]
    assert run_tool(*up).returncode == 0
    end(map(read_record, Layout.at(own_dir).run.glob("*.record")), signal.SIGKILL, timeout_s=10)
    assert run_tool("status", "--dir", str(own_dir)).returncode == 69 and traces_of(own_dir)

    assert run_tool(*up).returncode == 0
    hostnames = run_tool("run", "--dir", str(own_dir), "--", "srun", "-N2", "hostname", timeout=30)
    assert sorted(hostnames.stdout.split()) == ["n1", "n2"]
    assert run_tool("down", "--dir", str(own_dir)).returncode == 0
    assert traces_of(own_dir) == []
    assert cluster.tool("status").returncode == 0


def test_a_recycled_pid_is_never_killed(tmp_path: Path) -> None:
    spawn(["sleep", "60"], record=tmp_path / "record", log=tmp_path / "log")
    ours = read_record(tmp_path / "record")
    assert ours and is_running(ours)
    for stranger in (
        dataclasses.replace(ours, start_ticks=ours.start_ticks - 1),
        dataclasses.replace(ours, boot_id="an earlier boot"),
    ):
        assert end([stranger], signal.SIGKILL, timeout_s=1) and is_running(ours)
    assert end([ours], signal.SIGKILL, timeout_s=5) and not is_running(ours)


def test_a_helper_of_the_starting_shell_is_not_taken_for_a_nodes_first_process(tmp_path: Path) -> None:
    """The shell's `mv` was, where it outlived the record for a moment: ip link add ... netns PID: No such process."""
    shell = "sleep 3; exec unshare --pid --fork --kill-child sleep 60"
    process = subprocess.Popen(["/bin/sh", "-c", shell])
    try:
        wait_for("the shell's helper is there", lambda: children_of(process.pid), timeout=30)
        assert children_in_own_namespace(process.pid) == []
        wait_for("the first process is there", lambda: children_in_own_namespace(process.pid), timeout=30)
        (first,) = children_in_own_namespace(process.pid)
        wait_for("it is what was asked for", lambda: Path(f"/proc/{first}/comm").read_text() == "sleep\n", timeout=30)
    finally:
        process.kill()
        process.wait()


def test_a_process_name_with_parentheses_and_blanks_is_read() -> None:
    assert Stat.parse("7 (a) R 1 (b) S 3 " + " ".join(str(field) for field in range(5, 53))) == Stat(7, "S", 3, 22)


@pytest.mark.parametrize(
    ("names", "lines"),
    [
        (("n1",), ["SwitchName=leaf0 Nodes=n1", "SwitchName=spine Switches=leaf0"]),  # no empty second leaf
        (
            ("n1", "n2", "n3"),  # the odd one goes below the first leaf
            ["SwitchName=leaf0 Nodes=n[1-2]", "SwitchName=leaf1 Nodes=n3", "SwitchName=spine Switches=leaf[0-1]"],
        ),
    ],
)
def test_topology_of_few_nodes(names: tuple[str, ...], lines: list[str]) -> None:
    assert config_files.topology_conf(names).splitlines() == lines
