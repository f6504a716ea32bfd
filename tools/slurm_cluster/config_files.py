"""The text of every configuration file of the cluster: settings in, text out, nothing touched.

Partitions are data (`PARTITIONS`): a queue more is a line more.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from slurm_cluster.layout import NUM_GPUS_PER_NODE, Cluster

CLUSTER_NAME = "hpctrain"
ACCOUNTING_DATABASE = "slurm_acct_db"
SLURMD_PORT = 6818  # Each node has a network of its own, so the default cannot clash.
NUM_CPUS_PER_NODE = 8
MEMORY_PER_NODE_MB = 4000
# Lifetime of a job's credential, and with it the time a requeued job waits before it may start again (default 120 s).
# Shorter than this and a busy machine of two cores could need longer than that to launch a step.
CREDENTIAL_LIFETIME_S = 6
# First version of Slurm in which the cgroup plugin can be switched off.
CGROUP_CAN_BE_DISABLED = (23, 11)


@dataclass(frozen=True)
class Partition:
    """One queue over all nodes; `options` are further keys of its slurm.conf line."""

    name: str
    max_time: str
    is_default: bool = False
    options: tuple[tuple[str, str], ...] = (("PreemptMode", "OFF"),)


def _preemptable(mode: str, grace_s: int) -> tuple[tuple[str, str], ...]:
    return (("PreemptMode", mode), ("GraceTime", str(grace_s)))


# Jobs of `urgent` take the nodes of the spare queues' jobs; nobody takes those of the others.
URGENT = (("PreemptMode", "OFF"), ("PriorityTier", "2"))
PREEMPTION_GRACE_S = 20
PARTITIONS = (
    Partition("main", max_time="UNLIMITED", is_default=True),
    Partition("short", max_time="10"),
    Partition("urgent", max_time="10", options=URGENT),
    Partition("spare-requeue", max_time="UNLIMITED", options=_preemptable("REQUEUE", 0)),
    Partition("spare-requeue-grace", max_time="UNLIMITED", options=_preemptable("REQUEUE", PREEMPTION_GRACE_S)),
    Partition("spare-cancel", max_time="UNLIMITED", options=_preemptable("CANCEL", 0)),
    Partition("spare-cancel-grace", max_time="UNLIMITED", options=_preemptable("CANCEL", PREEMPTION_GRACE_S)),
)


def slurm_conf(cluster: Cluster, *, machine: str, first_job_id: int, mpi: str) -> str:
    """slurm.conf with the controller on `machine` (a short host name); `mpi` is what srun uses by default."""
    return _lines(
        _assignments(
            *_control_keys(cluster, machine),
            *_path_keys(cluster),
            *_node_keys(mpi),
            *_scheduling_keys(first_job_id),
            *_accounting_keys(cluster),
        ),
        (_node_line(cluster, node) for node in cluster.settings.node_names),
        (_partition_line(partition) for partition in PARTITIONS),
    )


def slurmdbd_conf(cluster: Cluster) -> str:
    """slurmdbd.conf; without a password: the database knows root by the credentials of its socket."""
    layout = cluster.layout
    return _lines(
        _assignments(
            ("DbdHost", "localhost"),
            ("DbdPort", cluster.settings.accounting_port),
            ("AuthType", "auth/munge"),
            ("AuthInfo", f"socket={layout.munge_socket}"),
            ("SlurmUser", "root"),
            ("StorageType", "accounting_storage/mysql"),
            # localhost means the socket named by MYSQL_UNIX_PORT: the database listens on no port.
            ("StorageHost", "localhost"),
            ("StorageUser", "root"),
            ("StorageLoc", ACCOUNTING_DATABASE),
            ("LogFile", layout.logs / "slurmdbd.log"),
            ("PidFile", layout.run / "slurmdbd.pid"),
        )
    )


def topology_conf(node_names: Sequence[str]) -> str:
    """A tree of two leaves, the first half of the nodes below one and the rest below the other."""
    half = (len(node_names) + 1) // 2
    leaves = [part for part in (node_names[:half], node_names[half:]) if part]
    return _lines(
        (f"SwitchName=leaf{number} Nodes={_folded('n', part)}" for number, part in enumerate(leaves)),
        ["SwitchName=spine Switches=" + _folded("leaf", [f"leaf{number}" for number in range(len(leaves))])],
    )


def gres_conf(cluster: Cluster) -> str:
    """Four GPUs per node, counted by placeholder files; a real GPU of the machine is not looked for."""
    nodes = ",".join(cluster.settings.node_names)
    files = (f"NodeName={nodes} Name=gpu File={path}" for path in cluster.layout.gpu_files)
    return _lines(["AutoDetect=off"], files)


def cgroup_conf(slurm_version: tuple[int, int]) -> str:
    """A cgroup plugin that touches nothing: on cgroup/v2 the automatic choice wants a scope from systemd for slurmd."""
    return f"CgroupPlugin={'disabled' if slurm_version >= CGROUP_CAN_BE_DISABLED else 'cgroup/v1'}\n"


def hosts(cluster: Cluster, *, machine_names: Sequence[str]) -> str:
    """/etc/hosts as every node sees it; the machine's own names lead to the controller."""
    settings = cluster.settings
    return _lines(
        ["127.0.0.1 localhost", f"{settings.controller_address} {' '.join(machine_names)}"],
        (f"{settings.address_of(node)} {node}" for node in settings.node_names),
    )


def _control_keys(cluster: Cluster, machine: str) -> tuple[tuple[str, object], ...]:
    return (
        ("ClusterName", CLUSTER_NAME),
        ("SlurmctldHost", f"{machine}({cluster.settings.controller_address})"),
        ("SlurmctldPort", cluster.settings.controller_port),
        ("SlurmdPort", SLURMD_PORT),
        ("SlurmUser", "root"),
        ("SlurmdUser", "root"),
        # Nobody wants mail from here; the default is an error in the log where no mailer is installed.
        ("MailProg", "/bin/true"),
        ("AuthType", "auth/munge"),
        ("AuthInfo", f"socket={cluster.layout.munge_socket},cred_expire={CREDENTIAL_LIFETIME_S}"),
    )


def _path_keys(cluster: Cluster) -> tuple[tuple[str, object], ...]:
    layout = cluster.layout
    return (
        ("StateSaveLocation", layout.controller_state),
        ("SlurmdSpoolDir", layout.spool_of("%n")),
        ("SlurmctldPidFile", layout.run / "slurmctld.pid"),
        ("SlurmdPidFile", layout.run / "slurmd.%n.pid"),
        ("SlurmctldLogFile", layout.logs / "slurmctld.log"),
        ("SlurmdLogFile", layout.logs / "slurmd.%n.log"),
    )


def _node_keys(mpi: str) -> tuple[tuple[str, object], ...]:
    return (
        ("ProctrackType", "proctrack/linuxproc"),
        ("TaskPlugin", "task/none"),
        ("MpiDefault", mpi),
        # The nodes are declared larger than the machine, so that several ranks fit on each.
        ("SlurmdParameters", "config_overrides"),
        ("ReturnToService", 2),
        ("SlurmdTimeout", 10),
        ("KillWait", 5),
        ("GresTypes", "gpu"),
    )


def _scheduling_keys(first_job_id: int) -> tuple[tuple[str, object], ...]:
    return (
        ("SelectType", "select/cons_tres"),
        ("SelectTypeParameters", "CR_Core_Memory"),
        # Without it a job that names no memory takes the whole node's.
        ("DefMemPerCPU", MEMORY_PER_NODE_MB // NUM_CPUS_PER_NODE),
        ("TopologyPlugin", "topology/tree"),
        ("SchedulerType", "sched/backfill"),
        # Jobs start within a second: sched_min_interval is in microseconds, the others are in seconds.
        ("SchedulerParameters", "bf_interval=1,sched_interval=1,sched_min_interval=100000,batch_sched_delay=0"),
        # A job that its queue can never run is refused when it is submitted, as on most sites.
        ("EnforcePartLimits", "ALL"),
        ("JobRequeue", 1),
        # What a preempted job becomes is its queue's; the cluster's own mode only has to allow it.
        ("PreemptType", "preempt/partition_prio"),
        ("PreemptMode", "REQUEUE"),
        ("MinJobAge", 60),
        ("FirstJobId", first_job_id),
    )


def _accounting_keys(cluster: Cluster) -> tuple[tuple[str, object], ...]:
    return (
        ("AccountingStorageType", "accounting_storage/slurmdbd"),
        # Not 127.0.0.1: sacct is also called by jobs, on their node.
        ("AccountingStorageHost", cluster.settings.controller_address),
        ("AccountingStoragePort", cluster.settings.accounting_port),
        ("AccountingStoragePass", cluster.layout.munge_socket),
        ("AccountingStorageEnforce", "associations,limits"),
        ("AccountingStorageTRES", "gres/gpu"),
        ("JobAcctGatherType", "jobacct_gather/linux"),
    )


def _node_line(cluster: Cluster, node: str) -> str:
    return (
        f"NodeName={node} NodeAddr={cluster.settings.address_of(node)} CPUs={NUM_CPUS_PER_NODE} "
        f"RealMemory={MEMORY_PER_NODE_MB} Gres=gpu:{NUM_GPUS_PER_NODE} State=UNKNOWN"
    )


def _partition_line(partition: Partition) -> str:
    default = "YES" if partition.is_default else "NO"
    further = "".join(f" {key}={value}" for key, value in partition.options)
    return f"PartitionName={partition.name} Nodes=ALL Default={default} MaxTime={partition.max_time} State=UP{further}"


def _folded(prefix: str, names: Sequence[str]) -> str:
    """Names that count up from the first, as Slurm writes them: n[1-4]."""
    first, last = (name.removeprefix(prefix) for name in (names[0], names[-1]))
    return names[0] if len(names) == 1 else f"{prefix}[{first}-{last}]"


def _assignments(*pairs: tuple[str, object]) -> Iterable[str]:
    return (f"{key}={value}" for key, value in pairs)


def _lines(*groups: Iterable[str]) -> str:
    return "".join(f"{line}\n" for group in groups for line in group)
