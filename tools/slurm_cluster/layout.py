"""Where the files of one cluster lie, what its nodes are called, and which addresses and ports they have.

The only module that joins paths or makes names: two clusters in two directories differ in every name they put on the
machine, because the names derive from the directory.
"""

import hashlib
import json
import re
from dataclasses import dataclass
from ipaddress import IPv4Network
from pathlib import Path

from slurm_cluster.errors import EXIT_WRONG_USE, ClusterError

USER = "hpctrain"
NUM_GPUS_PER_NODE = 4
SETTINGS_FORMAT = 1

# sockaddr_un holds 108 bytes with the closing NUL; the longest socket path of ours is root + "/mariadb/mariadb.sock".
MAX_ROOT_LENGTH = 107 - len("/mariadb/mariadb.sock")
# slurm.conf knows no quoting: blanks, commas, '%' and '#' in a path would be read as something else.
PLAIN_PATH = re.compile(r"/[A-Za-z0-9._+/-]+")
# Each node mounts its own over these, so nothing shared can lie below them.
PRIVATE_TO_NODES = (Path("/tmp"), Path("/dev"), Path("/proc"), Path("/sys"))


@dataclass(frozen=True)
class Layout:
    """The paths of the cluster that lives in `root`."""

    root: Path

    @classmethod
    def at(cls, directory: Path) -> "Layout":
        """The layout of the cluster in `directory`, links resolved; ClusterError if no cluster can live there."""
        root = directory.resolve()
        if not PLAIN_PATH.fullmatch(str(root)) or len(str(root)) > MAX_ROOT_LENGTH:
            raise ClusterError(
                f"--dir {str(root)!r}: slurm.conf and socket names need a path of letters, digits and ._+- "
                f"of at most {MAX_ROOT_LENGTH} characters; choose another --dir",
                exit_code=EXIT_WRONG_USE,
            )
        if any(root.is_relative_to(private) for private in PRIVATE_TO_NODES):
            raise ClusterError(
                f"--dir {root}: every node has its own /tmp and /dev/shm and could not see it; "
                "choose a directory elsewhere, like /var/tmp/slurm-cluster",
                exit_code=EXIT_WRONG_USE,
            )
        return cls(root)

    @property
    def identity(self) -> str:
        """Prefix of every network interface of this cluster: 9 characters, interface names may have 15."""
        return "htc" + hashlib.sha256(str(self.root).encode()).hexdigest()[:6]

    @property
    def bridge(self) -> str:
        return self.identity

    def link_of(self, node: str) -> str:
        """The machine's end of the cable to `node`."""
        return f"{self.identity}-{node}"

    @property
    def lock(self) -> Path:
        return self.root / "lock"

    @property
    def settings(self) -> Path:
        return self.root / "cluster.json"

    @property
    def etc(self) -> Path:
        return self.root / "etc"

    @property
    def slurm_conf(self) -> Path:
        return self.etc / "slurm.conf"

    @property
    def slurmdbd_conf(self) -> Path:
        return self.etc / "slurmdbd.conf"

    @property
    def hosts(self) -> Path:
        return self.etc / "hosts"

    @property
    def logs(self) -> Path:
        return self.root / "log"

    @property
    def run(self) -> Path:
        """Records of our processes, and the PID files that the daemons write themselves."""
        return self.root / "run"

    def record_of(self, process: str) -> Path:
        return self.run / f"{process}.record"

    @property
    def munge(self) -> Path:
        return self.root / "munge"

    @property
    def munge_key(self) -> Path:
        return self.munge / "munge.key"

    @property
    def munge_socket(self) -> Path:
        return self.munge / "munge.sock"

    @property
    def database(self) -> Path:
        return self.root / "mariadb"

    @property
    def database_files(self) -> Path:
        return self.database / "data"

    @property
    def database_socket(self) -> Path:
        return self.database / "mariadb.sock"

    @property
    def controller_state(self) -> Path:
        return self.root / "state"

    @property
    def nodes(self) -> Path:
        return self.root / "nodes"

    def tmp_of(self, node: str) -> Path:
        """What `node` sees as /tmp."""
        return self.nodes / node / "tmp"

    def spool_of(self, node: str) -> Path:
        return self.nodes / node / "spool"

    @property
    def gpu_files(self) -> tuple[Path, ...]:
        """What File= of a GPU names. Own device nodes, so that the machine need not have any particular device."""
        return tuple(self.root / "gpu" / f"gpu{number}" for number in range(NUM_GPUS_PER_NODE))

    @property
    def shared(self) -> Path:
        return self.root / "shared"

    @property
    def home(self) -> Path:
        return self.root / "home"


@dataclass(frozen=True)
class Settings:
    """What `up` decided once and every later command has to know: kept in cluster.json.

    Node K of 1..num_nodes has address K of the subnet; the machine itself has the last usable one.
    """

    num_nodes: int
    subnet: IPv4Network
    controller_port: int
    accounting_port: int

    @property
    def node_names(self) -> tuple[str, ...]:
        return tuple(f"n{number}" for number in range(1, self.num_nodes + 1))

    def address_of(self, node: str) -> str:
        return str(self.subnet.network_address + self.node_names.index(node) + 1)

    @property
    def controller_address(self) -> str:
        return str(self.subnet.broadcast_address - 1)

    def require_node(self, name: str) -> str:
        """`name` if it is a node here, else ClusterError with the names that are."""
        if name not in self.node_names:
            raise ClusterError(
                f"unknown node {name!r}: the nodes here are n1 to n{self.num_nodes}", exit_code=EXIT_WRONG_USE
            )
        return name

    def save(self, path: Path) -> None:
        document = {
            "format": SETTINGS_FORMAT,
            "num_nodes": self.num_nodes,
            "subnet": str(self.subnet),
            "controller_port": self.controller_port,
            "accounting_port": self.accounting_port,
        }
        replacement = path.with_suffix(".new")
        replacement.write_text(json.dumps(document, indent=2) + "\n")
        replacement.replace(path)

    @classmethod
    def load(cls, path: Path) -> "Settings | None":
        """The saved settings; None where no cluster was ever started."""
        try:
            document = json.loads(path.read_text())
        except FileNotFoundError:
            return None
        try:
            if document.pop("format") != SETTINGS_FORMAT:
                raise ValueError("another format")
            return cls(**{**document, "subnet": IPv4Network(document["subnet"])})
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise ClusterError(
                f"{path} was not written by this version ({error!r}); stop that cluster with the tool that started it"
            ) from error


@dataclass(frozen=True)
class Cluster:
    """One cluster that has been configured, running or not."""

    layout: Layout
    settings: Settings
