"""What must be true before anything is started, each with the remedy in its message."""

import os
import shutil
import stat
from ipaddress import IPv4Network

from slurm_cluster.errors import EXIT_NOT_PERMITTED, EXIT_WRONG_USE, ClusterError
from slurm_cluster.layout import Layout
from slurm_cluster.nodes import UNSHARE
from slurm_cluster.processes import SYSTEM_PATH, command

# A program of every package that is needed: Debian's and Ubuntu's names.
PACKAGE_OF = {
    "sbatch": "slurm-wlm",
    "slurmctld": "slurm-wlm",
    "slurmd": "slurm-wlm",
    "slurmdbd": "slurmdbd",
    "munged": "munge",
    "munge": "munge",
    "mariadbd": "mariadb-server",
    "mariadb": "mariadb-server",
    "mariadb-install-db": "mariadb-server",
    "ip": "iproute2",
    "unshare": "util-linux",
    "useradd": "passwd",
}
# A node more costs a slurmd of some 10 MB; the limit keeps interface names within 15 characters.
MAX_NODES = 99


def require_root(verb: str) -> None:
    if os.geteuid() != 0:
        raise ClusterError(
            f"'{verb}' makes namespaces and runs daemons, so it needs root; run it with sudo",
            exit_code=EXIT_NOT_PERMITTED,
        )


def require_trusted(layout: Layout) -> None:
    """ClusterError if somebody else could have written what root is about to read, or it is not a cluster's directory.

    /var/tmp is open to all, and `up` empties some folders in its directory: in /usr/local that would be a disaster.
    """
    root = layout.root
    if not root.exists():
        return
    status = root.stat()
    if status.st_uid != 0 or status.st_mode & 0o022:
        raise ClusterError(
            f"{root} belongs to another user or others may write in it; remove it, or choose another --dir",
            exit_code=EXIT_NOT_PERMITTED,
        )
    if not layout.settings.exists() and {path.name for path in root.iterdir()} - {layout.lock.name}:
        raise ClusterError(f"{root} holds other files and no cluster; choose another --dir", exit_code=EXIT_WRONG_USE)


def require_reachable(layout: Layout) -> None:
    """ClusterError if the unprivileged user cannot come to the cluster's directory."""
    for parent in layout.root.parents:
        if parent.exists() and not parent.stat().st_mode & stat.S_IXOTH:
            raise ClusterError(
                f"--dir {layout.root}: users other than root cannot enter {parent}, but jobs run as one; "
                "choose another --dir",
                exit_code=EXIT_WRONG_USE,
            )


def require_packages() -> None:
    missing = [program for program in PACKAGE_OF if shutil.which(program, path=SYSTEM_PATH) is None]
    if missing:
        packages = " ".join(dict.fromkeys(PACKAGE_OF[program] for program in missing))
        raise ClusterError(f"not installed: {', '.join(missing)}; run: apt-get install --yes {packages}")


def require_namespaces() -> None:
    result = command([*UNSHARE, "true"])
    if result.returncode != 0:
        raise ClusterError(
            f"this machine does not permit new namespaces ({result.stderr.strip()}); "
            "use a virtual machine, or a container started with --privileged"
        )


def require_room(num_nodes: int, subnet: IPv4Network) -> None:
    """One address per node, one for the machine, and a range that is private."""
    if not 1 <= num_nodes <= MAX_NODES:
        raise ClusterError(f"--nodes {num_nodes}: give 1 to {MAX_NODES}", exit_code=EXIT_WRONG_USE)
    if not subnet.is_private or subnet.num_addresses < num_nodes + 3:
        raise ClusterError(
            f"--subnet {subnet}: give a private range with at least {num_nodes + 3} addresses, like 10.77.0.0/24",
            exit_code=EXIT_WRONG_USE,
        )


def slurm_version() -> tuple[int, int]:
    """Major and minor version of the installed Slurm: `slurmd -V` says 'slurm-wlm 22.05.8' or 'slurm 24.11.5'."""
    said = command(["slurmd", "-V"]).stdout.split()
    try:
        major, minor = said[-1].split(".")[:2]
        return int(major), int(minor)
    except (IndexError, ValueError) as error:
        raise ClusterError(f"'slurmd -V' said {' '.join(said)!r}, which is not a version of Slurm") from error
