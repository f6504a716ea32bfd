"""The nodes: each is one slurmd in namespaces of its own, whose PID 1 can be killed like a machine loses its power.

Two processes per node are recorded: the launcher (unshare), which waits in the machine's PID namespace, and the node's
PID 1 (boot_node.sh). If the launcher dies the kernel kills PID 1 (--kill-child); if PID 1 dies it kills all the rest.
"""

import re
import shutil
import signal
from collections.abc import Iterable
from pathlib import Path

from slurm_cluster import network
from slurm_cluster.config_files import SLURMD_PORT
from slurm_cluster.daemons import slurm_command
from slurm_cluster.errors import ClusterError
from slurm_cluster.layout import Cluster, Layout
from slurm_cluster.processes import (
    children_in_own_namespace,
    command,
    end,
    is_running,
    last_lines,
    read_record,
    spawn,
    wait_until,
    write_record,
)

START_TIMEOUT_S = 30
CRASH_TIMEOUT_S = 10

# unshare and not `ip netns exec`: that one mounts a new /sys without the control groups, and slurmd dies of it.
UNSHARE = ("unshare", "--net", "--uts", "--ipc", "--pid", "--mount", "--fork", "--kill-child", "--mount-proc")

BOOT = Path(__file__).with_name("boot_node.sh")

# States of a node that is fit for work, as `sinfo %T` writes them; a mark like '*' behind the word means trouble.
HEALTHY_STATES = frozenset({"idle", "mixed", "allocated", "completing"})
START_TIME = re.compile(r"^NodeName=(\S+) .*? SlurmdStartTime=(\d+) ", re.MULTILINE)


def launcher_of(node: str) -> str:
    return f"{node}.launcher"


def is_alive(layout: Layout, node: str) -> bool:
    return is_running(read_record(layout.record_of(node)))


def start(cluster: Cluster, node: str) -> None:
    """Start the slurmd of a node in new namespaces, with an empty /tmp and /dev/shm as after a boot."""
    layout, settings = cluster.layout, cluster.settings
    launcher = layout.record_of(launcher_of(node))
    shutil.rmtree(layout.tmp_of(node), ignore_errors=True)
    layout.spool_of(node).mkdir(parents=True, exist_ok=True)
    layout.tmp_of(node).mkdir()
    layout.tmp_of(node).chmod(0o1777)
    address = f"{settings.address_of(node)}/{settings.subnet.prefixlen}"
    boot = ("/bin/sh", str(BOOT), node, address, str(layout.hosts), str(layout.tmp_of(node)))
    spawn(
        [*UNSHARE, *boot],
        record=launcher,
        log=layout.logs / f"{node}.out",
        environment={"SLURM_CONF": str(layout.slurm_conf)},
    )
    pid = _first_process(layout, node)
    write_record(layout.record_of(node), pid)
    network.attach_node(layout, node, pid)


def _first_process(layout: Layout, node: str) -> int:
    """The launcher's child, by its PID outside of the node."""
    launcher = read_record(layout.record_of(launcher_of(node)))
    children: list[int] = []

    def is_settled() -> bool:
        nonlocal children
        # Right after its start the launcher is still the shell that writes the record, and has other children.
        children = children_in_own_namespace(launcher.pid) if launcher and is_running(launcher) else []
        return bool(children) or not is_running(launcher)

    wait_until(is_settled, timeout_s=START_TIMEOUT_S)
    if not children:
        log = layout.logs / f"{node}.out"
        raise ClusterError(f"node {node} did not start; the end of {log}:\n{last_lines(log)}")
    return children[0]


def crash(layout: Layout, nodes: Iterable[str]) -> None:
    """Kill these nodes as a power cut would: all of their processes at once, without a word to anybody."""
    records = [layout.record_of(name) for node in nodes for name in (node, launcher_of(node))]
    if not end(map(read_record, records), signal.SIGKILL, timeout_s=CRASH_TIMEOUT_S):
        raise ClusterError(f"a process of a node did not end within {CRASH_TIMEOUT_S} s of SIGKILL; see {layout.run}")
    for record in records:
        record.unlink(missing_ok=True)


def recorded(layout: Layout) -> list[str]:
    """Names of the nodes that have a record, also those of a cluster that had more nodes than the settings say."""
    suffix = layout.record_of(launcher_of("")).name
    return sorted(path.name.removesuffix(suffix) for path in layout.run.glob(f"*{suffix}"))


def states(cluster: Cluster) -> dict[str, str]:
    """State of every node as the controller sees it (idle, mixed, down*, ...); empty when it gives no answer."""
    result = slurm_command(cluster, "sinfo", "--noheader", "--Node", "--format=%N %T")
    return dict(line.split(maxsplit=1) for line in result.stdout.splitlines() if line.strip())


def start_times(cluster: Cluster) -> dict[str, int]:
    """When the slurmd started that the controller last heard of, by node [seconds since the epoch].

    A state alone may tell of an earlier life: a node that crashed a second ago is still idle to the controller.
    """
    environment = {"SLURM_CONF": str(cluster.layout.slurm_conf), "SLURM_TIME_FORMAT": "%s"}
    answer = command(["scontrol", "--oneliner", "show", "nodes"], timeout_s=10, environment=environment).stdout
    return {node: int(started) for node, started in START_TIME.findall(answer)}


def report_crash(cluster: Cluster, node: str) -> None:
    """Tell the controller that a node is down, as a site's monitoring would; it would find out itself, but late."""
    change = ["update", f"NodeName={node}", "State=DOWN", "Reason=killed by slurm-cluster"]
    if (result := slurm_command(cluster, "scontrol", *change)).returncode != 0:
        raise ClusterError(f"{node} is dead, but the controller could not be told: {result.stderr.strip()}")


def require_connection(cluster: Cluster) -> None:
    """ClusterError unless the first node reaches the last one's slurmd: a firewall may drop what crosses a bridge."""
    first, last = cluster.settings.node_names[0], cluster.settings.node_names[-1]
    record = read_record(cluster.layout.record_of(first))
    address = cluster.settings.address_of(last)
    reach = ["timeout", "3", "bash", "-c", f": </dev/tcp/{address}/{SLURMD_PORT}"]
    if record and command(["nsenter", f"--net=/proc/{record.pid}/ns/net", *reach]).returncode != 0:
        raise ClusterError(
            f"node {first} does not reach {last} ({address}): a firewall here (Docker's?) drops what crosses a bridge; "
            f"allow it by: iptables -I FORWARD -i {cluster.layout.bridge} -o {cluster.layout.bridge} -j ACCEPT"
        )
