"""The daemons of the machine itself: munged, mariadbd, slurmdbd, slurmctld, started in this order and ended in reverse.

All run in the foreground of their recorded process, with sockets, ports and files of this cluster only: a packaged
munge, MariaDB or Slurm on the same machine neither helps nor disturbs them.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from slurm_cluster.config_files import ACCOUNTING_DATABASE, CLUSTER_NAME
from slurm_cluster.errors import ClusterError
from slurm_cluster.layout import Cluster, Layout
from slurm_cluster.processes import (
    checked_command,
    command,
    end,
    is_running,
    last_lines,
    read_record,
    spawn,
    wait_until,
)

START_TIMEOUT_S = 60
STOP_TIMEOUT_S = 8
MUNGE_KEY_BYTES = 128
DATABASE_USER = "mysql"  # mariadbd refuses to serve as root.
# Small: this database holds some hundred jobs. The same for the creation and the daemon, or the log would be rebuilt.
DATABASE_OPTIONS = ("--innodb-buffer-pool-size=64M", "--innodb-log-file-size=16M", "--performance-schema=OFF")


@dataclass(frozen=True)
class Daemon:
    """How one daemon is started, and how one sees that it serves."""

    name: str
    argv: tuple[str, ...]
    log: Path
    is_ready: Callable[[], bool]
    environment: Mapping[str, str] = field(default_factory=dict)


NAMES = ("munged", "mariadbd", "slurmdbd", "slurmctld")


def munged(layout: Layout) -> Daemon:
    def is_ready() -> bool:
        return command(["munge", "--no-input", f"--socket={layout.munge_socket}"]).returncode == 0

    argv = (
        "munged",
        "--foreground",
        f"--socket={layout.munge_socket}",
        f"--key-file={layout.munge_key}",
        f"--pid-file={layout.munge / 'munged.pid'}",
        f"--log-file={layout.munge / 'munged.log'}",
        f"--seed-file={layout.munge / 'munged.seed'}",
    )
    return Daemon("munged", argv, layout.logs / "munged.out", is_ready)


def mariadbd(layout: Layout) -> Daemon:
    argv = (
        "mariadbd",
        "--no-defaults",
        f"--user={DATABASE_USER}",
        f"--datadir={layout.database_files}",
        f"--tmpdir={layout.database}",
        f"--socket={layout.database_socket}",
        f"--pid-file={layout.database / 'mariadbd.pid'}",
        "--skip-networking",
        # Slurm's advice; slurmdbd logs a warning below it.
        "--innodb-lock-wait-timeout=900",
        *DATABASE_OPTIONS,
    )
    return Daemon("mariadbd", argv, layout.logs / "mariadbd.out", lambda: accepts(str(layout.database_socket)))


def slurmdbd(cluster: Cluster) -> Daemon:
    layout = cluster.layout
    environment = {"SLURM_CONF": str(layout.slurm_conf), "MYSQL_UNIX_PORT": str(layout.database_socket)}

    def is_ready() -> bool:
        # Asked only when it listens: sacctmgr would wait for it much longer than our polling does.
        address = ("127.0.0.1", cluster.settings.accounting_port)
        return accepts(address) and slurm_command(cluster, "sacctmgr", "--noheader", "show", "cluster").returncode == 0

    return Daemon("slurmdbd", ("slurmdbd", "-D"), layout.logs / "slurmdbd.out", is_ready, environment)


def slurmctld(cluster: Cluster) -> Daemon:
    environment = {"SLURM_CONF": str(cluster.layout.slurm_conf)}
    address = (cluster.settings.controller_address, cluster.settings.controller_port)
    # -c: start with an empty queue, and tell the accounting that the jobs of an earlier life are over.
    argv = ("slurmctld", "-D", "-c")
    return Daemon("slurmctld", argv, cluster.layout.logs / "slurmctld.out", lambda: accepts(address), environment)


def start(layout: Layout, daemon: Daemon) -> None:
    """Start a daemon and wait until it serves; ClusterError with the end of its log when it does not."""
    record = layout.record_of(daemon.name)
    spawn(daemon.argv, record=record, log=daemon.log, environment=daemon.environment)
    alive = True

    def is_settled() -> bool:
        nonlocal alive
        alive = is_running(read_record(record))
        return not alive or daemon.is_ready()

    if not wait_until(is_settled, timeout_s=START_TIMEOUT_S) or not alive:
        what = f"gave no service within {START_TIMEOUT_S} s" if alive else "ended at once"
        raise ClusterError(f"{daemon.name} {what}; the end of {daemon.log}:\n{last_lines(daemon.log)}")


def stop(layout: Layout, name: str) -> None:
    """End a daemon: by request, then by force."""
    record = layout.record_of(name)
    process = read_record(record)
    if not end([process], signal.SIGTERM, timeout_s=STOP_TIMEOUT_S):
        end([process], signal.SIGKILL, timeout_s=STOP_TIMEOUT_S)
    if is_running(process):
        raise ClusterError(f"{name} (PID {process.pid if process else '?'}) does not end, not even by SIGKILL")
    record.unlink(missing_ok=True)


def are_running(layout: Layout) -> dict[str, bool]:
    """Which of the machine's daemons run."""
    return {name: is_running(read_record(layout.record_of(name))) for name in NAMES}


def create_munge_key(layout: Layout) -> None:
    if not layout.munge_key.exists():
        replacement = layout.munge_key.with_suffix(".new")
        replacement.touch(mode=0o600)
        replacement.write_bytes(os.urandom(MUNGE_KEY_BYTES))
        replacement.replace(layout.munge_key)


def create_database(layout: Layout) -> None:
    """Create the data directory of MariaDB unless there is one; a creation that was cut short leaves none."""
    if layout.database_files.exists():
        return
    replacement = layout.database_files.with_suffix(".new")
    shutil.rmtree(replacement, ignore_errors=True)
    create = ["mariadb-install-db", "--no-defaults", f"--user={DATABASE_USER}", f"--datadir={replacement}"]
    # socket: root is known by the credentials of its connection, so no password exists that could leak.
    authentication = ["--auth-root-authentication-method=socket", "--auth-root-socket-user=root"]
    checked_command([*create, *authentication, "--skip-test-db", "--skip-name-resolve", *DATABASE_OPTIONS])
    replacement.replace(layout.database_files)


def first_free_job_id(layout: Layout) -> int:
    """One more than the last job in the accounting, so that sacct never shows two jobs under one number."""
    query = f"SELECT MAX(id_job) FROM {ACCOUNTING_DATABASE}.{CLUSTER_NAME}_job_table"
    client = ["mariadb", "--no-defaults", f"--socket={layout.database_socket}", "--batch", "--skip-column-names"]
    answer = command([*client, f"--execute={query}"])
    # The table does not exist before the first start: then no job does either.
    return int(answer.stdout) + 1 if answer.returncode == 0 and answer.stdout.strip().isdigit() else 1


def slurm_command(cluster: Cluster, *argv: str, timeout_s: float = 10) -> subprocess.CompletedProcess[str]:
    """Run a command of Slurm against this cluster, as root."""
    return command(argv, timeout_s=timeout_s, environment={"SLURM_CONF": str(cluster.layout.slurm_conf)})


def loads_pmix(cluster: Cluster) -> bool:
    """Whether `srun --mpi=pmix` can work. Debian's plugin wants a file that only the package libpmix-dev brings."""
    # Whether the nodes could run it does not matter here, only whether srun knows this kind of MPI.
    return "MPI type" not in slurm_command(cluster, "srun", "--mpi=pmix", "--test-only", "true").stderr


def set_default_mpi(cluster: Cluster, mpi: str) -> None:
    """Change MpiDefault of a controller that is up."""
    file = cluster.layout.slurm_conf
    file.write_text(re.sub("^MpiDefault=.*", f"MpiDefault={mpi}", file.read_text(), flags=re.MULTILINE))
    slurm_command(cluster, "scontrol", "reconfigure")


def accepts(address: str | tuple[str, int]) -> bool:
    """Whether somebody accepts connections there: a socket's path, or host and port."""
    with socket.socket(socket.AF_UNIX if isinstance(address, str) else socket.AF_INET) as probe:
        probe.settimeout(1)
        return probe.connect_ex(address) == 0


def free_port() -> int:
    """A TCP port that is free now, chosen by the kernel."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port
