"""The life of a whole cluster: up, down, its state, and the lock that lets one command at a time change it."""

import contextlib
import fcntl
import os
import shutil
import socket
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network

from slurm_cluster import accounts, config_files, daemons, freezing, network, nodes, preflight
from slurm_cluster.errors import ClusterError, tool
from slurm_cluster.layout import USER, Cluster, Layout, Settings
from slurm_cluster.processes import last_lines, wait_until

LOCK_TIMEOUT_S = 120
IDLE_TIMEOUT_S = 120
CANCEL_TIMEOUT_S = 3

Say = Callable[[str], None]


@dataclass(frozen=True)
class Status:
    """What runs of a cluster: `daemons` and `nodes` by recorded process, `states` as the controller says.

    `troubles`: of the living nodes that are cut off or frozen, in words.
    """

    cluster: Cluster | None
    daemons: dict[str, bool]
    nodes: dict[str, bool]
    states: dict[str, str]
    troubles: dict[str, str]

    @property
    def is_up(self) -> bool:
        """Its daemons run; a node may be dead, for that is what this tool is for."""
        return self.cluster is not None and all(self.daemons.values())


@contextlib.contextmanager
def locked(layout: Layout, say: Say) -> Iterator[None]:
    """Hold the cluster's lock, waiting for another command to finish; the kernel frees it when the holder dies."""
    layout.root.mkdir(parents=True, exist_ok=True)
    with layout.lock.open("a+") as lock:
        if not _try_lock(lock.fileno()):
            lock.seek(0)
            say(f"waiting for another slurm-cluster command (PID {lock.read().strip() or 'unknown'})")
            if not wait_until(lambda: _try_lock(lock.fileno()), timeout_s=LOCK_TIMEOUT_S):
                raise ClusterError(f"{layout.lock} is held for more than {LOCK_TIMEOUT_S} s by another slurm-cluster")
        lock.truncate(0)
        lock.write(f"{os.getpid()}\n")
        lock.flush()
        yield


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def status(layout: Layout) -> Status:
    settings = Settings.load(layout.settings)
    running = daemons.are_running(layout)
    if settings is None:
        return Status(None, running, {}, {}, {})
    cluster = Cluster(layout, settings)
    alive = {node: nodes.is_alive(layout, node) for node in settings.node_names}
    troubles = {node: trouble for node, lives in alive.items() if lives and (trouble := trouble_of(layout, node))}
    return Status(cluster, running, alive, nodes.states(cluster) if all(running.values()) else {}, troubles)


def trouble_of(layout: Layout, node: str) -> str:
    """What keeps a living node from its work, in words; "" if nothing does."""
    is_cut = node in network.cut_nodes(layout)
    return ", ".join(filter(None, ("cut off" if is_cut else "", freezing.state_of(layout, node))))


def require_up(layout: Layout) -> Cluster:
    """The cluster, if it is up; ClusterError with the command that brings it up if not."""
    settings = Settings.load(layout.settings)
    if settings is None or not all(daemons.are_running(layout).values()):
        raise ClusterError(f"no cluster is up in {layout.root}; start it with: {tool()} up --dir {layout.root}")
    return Cluster(layout, settings)


def _running(layout: Layout) -> Cluster | None:
    """The cluster if it is up; None also when its settings cannot be read, for then it has to be cleaned away."""
    try:
        return require_up(layout)
    except ClusterError:
        return None


def up(layout: Layout, *, num_nodes: int, subnet: IPv4Network, say: Say) -> None:
    """Bring the cluster up until all nodes are idle; leftovers of a crashed one are removed first.

    Nothing is left running when it fails. Blocks some seconds, IDLE_TIMEOUT_S at most after the last daemon is up.
    """
    preflight.require_room(num_nodes, subnet)
    preflight.require_reachable(layout)
    preflight.require_packages()
    preflight.require_namespaces()
    with locked(layout, say):
        if running := _running(layout):
            say(f"already up in {layout.root} with {running.settings.num_nodes} nodes")
            return
        started = time.monotonic()
        _remove_leftovers(layout)
        try:
            _start(layout, num_nodes, subnet, say)
        except BaseException:
            _remove_leftovers(layout)
            raise
        say(f'up in {time.monotonic() - started:.1f} s; next: eval "$({tool()} env --dir {layout.root})"')


def down(layout: Layout, say: Say) -> None:
    """Cancel the jobs and end every process and interface of the cluster; its files stay, for the next `up`."""
    if not layout.root.exists():
        say(f"nothing in {layout.root}")
        return
    with locked(layout, say):
        if running := _running(layout):
            # So that a waiting srun or sbatch --wait ends with its job instead of asking a dead controller for ever.
            with contextlib.suppress(ClusterError):
                daemons.slurm_command(running, "scancel", f"--user={USER}", "--full", timeout_s=CANCEL_TIMEOUT_S)
        _remove_leftovers(layout)
        say("down")


def _remove_leftovers(layout: Layout) -> None:
    """End what is recorded, running or not, nodes first; remove the interfaces and sockets."""
    nodes.crash(layout, nodes.recorded(layout))
    for name in reversed(daemons.NAMES):
        daemons.stop(layout, name)
    network.remove_links(layout)
    for file in (layout.munge_socket, layout.database_socket):
        file.unlink(missing_ok=True)


def _start(layout: Layout, num_nodes: int, subnet: IPv4Network, say: Say) -> None:
    network.require_free_subnet(layout, subnet)
    settings = Settings(num_nodes, subnet, daemons.free_port(), daemons.free_port())
    cluster = Cluster(layout, settings)
    settings.save(layout.settings)
    _make_directories(layout)
    accounts.create_user(layout)
    network.create_bridge(cluster)

    daemons.create_munge_key(layout)
    daemons.start(layout, daemons.munged(layout))
    daemons.create_database(layout)
    daemons.start(layout, daemons.mariadbd(layout))
    say("munged and mariadbd are up")
    _write_configuration(cluster)
    daemons.start(layout, daemons.slurmdbd(cluster))
    accounts.grant_account(cluster)
    daemons.start(layout, daemons.slurmctld(cluster))
    say("slurmdbd and slurmctld are up")
    if not daemons.loads_pmix(cluster):
        daemons.set_default_mpi(cluster, "none")
        say("Slurm cannot load PMIx, so MpiDefault=none; for MPI run: apt-get install libpmix-dev, then down and up")
    started = int(time.time())
    for node in settings.node_names:
        nodes.start(cluster, node)
    wait_for_nodes(cluster, settings.node_names, started)
    nodes.require_connection(cluster)
    say(f"{num_nodes} nodes are idle")


def kill_node(cluster: Cluster, node: str, *, is_noticed: bool) -> None:
    """Crash a node. The controller notices by itself within about half a minute, at once when `is_noticed`."""
    nodes.crash(cluster.layout, [node])
    if is_noticed:
        nodes.report_crash(cluster, node)


def start_node(cluster: Cluster, node: str) -> None:
    """Bring a dead node back and wait until the controller gives it work again."""
    started = int(time.time())
    nodes.crash(cluster.layout, [node])  # A launcher that outlived its node, if anything.
    nodes.start(cluster, node)
    wait_for_nodes(cluster, [node], started)


def wait_for_nodes(cluster: Cluster, names: Sequence[str], since: int) -> None:
    """Wait until all of these have started since then [seconds since the epoch] and the controller gives them work.

    ClusterError when one dies or IDLE_TIMEOUT_S is over.
    """
    unfit: list[str] = []
    states: dict[str, str] = {}

    def is_settled() -> bool:
        nonlocal unfit, states
        if dead := [node for node in names if not nodes.is_alive(cluster.layout, node)]:
            log = cluster.layout.logs / f"{dead[0]}.out"
            raise ClusterError(f"node {dead[0]} ended at once; the end of {log}:\n{last_lines(log)}")
        times, states = nodes.start_times(cluster), nodes.states(cluster)
        unfit = [node for node in names if times.get(node, 0) < since or states.get(node) not in nodes.HEALTHY_STATES]
        return not unfit

    if not wait_until(is_settled, timeout_s=IDLE_TIMEOUT_S):
        log = cluster.layout.logs / f"{unfit[0]}.out"
        state = states.get(unfit[0], "unknown")
        raise ClusterError(f"node {unfit[0]} is {state} after {IDLE_TIMEOUT_S} s; the end of {log}:\n{last_lines(log)}")


def _make_directories(layout: Layout) -> None:
    """Empty what belongs to one life of the cluster; keep the accounting, the key, home and shared directory."""
    for directory in (layout.logs, layout.run, layout.controller_state, layout.nodes, layout.etc):
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir()
    layout.root.chmod(0o755)
    layout.controller_state.chmod(0o700)
    # munged wants its directory safe from others, and every user to reach the socket in it.
    layout.munge.mkdir(mode=0o711, exist_ok=True)
    layout.database.mkdir(mode=0o700, exist_ok=True)
    shutil.chown(layout.database, daemons.DATABASE_USER, daemons.DATABASE_USER)
    _make_gpu_files(layout)


def _make_gpu_files(layout: Layout) -> None:
    """Twins of /dev/null: Slurm counts a GPU whose file is a device, and no job of ours opens it."""
    for file in layout.gpu_files:
        file.parent.mkdir(exist_ok=True)
        if not file.exists():
            os.mknod(file, stat.S_IFCHR | 0o600, os.stat(os.devnull).st_rdev)


def _write_configuration(cluster: Cluster) -> None:
    layout = cluster.layout
    full_name = socket.gethostname()
    machine = full_name.partition(".")[0]
    machine_names = tuple(dict.fromkeys((full_name, machine)))
    first_job_id = daemons.first_free_job_id(layout)
    files = {
        "slurm.conf": config_files.slurm_conf(cluster, machine=machine, first_job_id=first_job_id, mpi="pmix"),
        "slurmdbd.conf": config_files.slurmdbd_conf(cluster),
        "topology.conf": config_files.topology_conf(cluster.settings.node_names),
        "gres.conf": config_files.gres_conf(cluster),
        "cgroup.conf": config_files.cgroup_conf(preflight.slurm_version()),
        "hosts": config_files.hosts(cluster, machine_names=machine_names),
    }
    for name, text in files.items():
        file = layout.etc / name
        file.write_text(text)
        # slurmdbd refuses a configuration that others may read.
        file.chmod(0o600 if file == layout.slurmdbd_conf else 0o644)
