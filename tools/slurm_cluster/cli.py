"""The command line: verbs, options, and the one place where an error becomes a line and an exit code."""

import argparse
import contextlib
import json
import os
import shlex
import signal
import sys
from collections.abc import Iterator, Sequence
from ipaddress import IPv4Network
from pathlib import Path
from typing import NoReturn

from slurm_cluster import accounts, freezing, lifecycle, network, nodes
from slurm_cluster.errors import EXIT_UNAVAILABLE, EXIT_WRONG_USE, ClusterError, tool
from slurm_cluster.layout import Layout
from slurm_cluster.preflight import require_root, require_trusted

DIRECTORY_VARIABLE = "HPC_TRAIN_CLUSTER_DIR"
DEFAULT_DIRECTORY = "/var/tmp/slurm-cluster"
DEFAULT_SUBNET = "10.77.0.0/24"
ALL_MAY_READ = 0o022  # umask: the user reads what root writes, whatever root's own is.
EXIT_INPUT_OUTPUT = 74
EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141
EXIT_TERMINATED = 143

NODE_VERBS = {
    "kill": "crash a node: all its processes die at once",
    "start": "bring a dead node back",
    "cut": "cut a node off the network: its processes live on",
    "join": "bring a node that was cut off back to the network",
    "freeze": "stop all processes of a node where they are, slurmd included",
    "thaw": "let the processes of a frozen node go on",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; returns the exit code."""
    options = _parser().parse_args(arguments)
    # So that `up` takes away what it has started when it is told to stop.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_TERMINATED))
    try:
        layout = Layout.at(options.dir)
        require_trusted(layout)
        code: int = options.verb(options, layout)
        return code
    except ClusterError as error:
        print(f"slurm-cluster: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        # The reader (head, less) has seen enough; Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    except OSError as error:
        print(f"slurm-cluster: {error}", file=sys.stderr)
        return EXIT_INPUT_OUTPUT
    except KeyboardInterrupt:
        print("slurm-cluster: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED


def say(line: str) -> None:
    print(f"slurm-cluster: {line}", flush=True)


def up(options: argparse.Namespace, layout: Layout) -> int:
    require_root("up")
    os.umask(ALL_MAY_READ)
    lifecycle.up(layout, num_nodes=options.nodes, subnet=options.subnet, say=say)
    return 0


def down(options: argparse.Namespace, layout: Layout) -> int:
    require_root("down")
    lifecycle.down(layout, say)
    return 0


def kill(options: argparse.Namespace, layout: Layout) -> int:
    require_root("kill")
    with lifecycle.locked(layout, say):
        cluster = lifecycle.require_up(layout)
        node = cluster.settings.require_node(options.node)
        was_alive = nodes.is_alive(layout, node)
        lifecycle.kill_node(cluster, node, is_noticed=options.noticed)
        say(f"{node} is dead" if was_alive else f"{node} was dead already")
    return 0


def start(options: argparse.Namespace, layout: Layout) -> int:
    require_root("start")
    os.umask(ALL_MAY_READ)
    with lifecycle.locked(layout, say):
        cluster = lifecycle.require_up(layout)
        node = cluster.settings.require_node(options.node)
        if nodes.is_alive(layout, node):
            trouble = lifecycle.trouble_of(layout, node)
            say(f"{node} runs already" + (f", but is {trouble}" if trouble else ""))
            return 0
        lifecycle.start_node(cluster, node)
        say(f"{node} is back")
    return 0


def cut(options: argparse.Namespace, layout: Layout) -> int:
    with _living_node("cut", options, layout) as node:
        was_cut = node in network.cut_nodes(layout)
        network.cut(layout, node)
        say(f"{node} was cut off already" if was_cut else f"{node} is cut off; its processes live on")
    return 0


def join(options: argparse.Namespace, layout: Layout) -> int:
    with _living_node("join", options, layout) as node:
        was_cut = node in network.cut_nodes(layout)
        network.join(layout, node)
        say(f"{node} is on the network again" if was_cut else f"{node} was not cut off")
    return 0


def freeze(options: argparse.Namespace, layout: Layout) -> int:
    with _living_node("freeze", options, layout) as node:
        number = freezing.freeze(layout, node, only_ranks=options.ranks)
        say(f"{node}: {number} processes stand still{'' if options.ranks else ', slurmd among them'}")
    return 0


def thaw(options: argparse.Namespace, layout: Layout) -> int:
    with _living_node("thaw", options, layout) as node:
        number = freezing.thaw(layout, node)
        say(f"{node}: {number} processes go on" if number else f"{node} was not frozen")
    return 0


@contextlib.contextmanager
def _living_node(verb: str, options: argparse.Namespace, layout: Layout) -> Iterator[str]:
    """The node that is meant, under the cluster's lock; ClusterError if there is none or it is dead."""
    require_root(verb)
    with lifecycle.locked(layout, say):
        cluster = lifecycle.require_up(layout)
        node = cluster.settings.require_node(options.node)
        if not nodes.is_alive(layout, node):
            raise ClusterError(f"{verb}: {node} is dead; bring it back with: {tool()} start {node} --dir {layout.root}")
        yield node


def status(options: argparse.Namespace, layout: Layout) -> int:
    """Exit code 0 when the cluster is up, 69 when it is not."""
    now = lifecycle.status(layout)
    if options.json:
        print(json.dumps(_status_document(layout, now), indent=2))
    elif not now.is_up:
        dead = [name for name, runs in now.daemons.items() if not runs]
        print(f"no cluster is up in {layout.root} (not running: {', '.join(dead)})")
    else:
        print(f"up in {layout.root}")
        for node, is_alive in now.nodes.items():
            life = " and ".join(filter(None, ("alive" if is_alive else "dead", now.troubles.get(node))))
            print(f"{node:6}{life:22}{now.states.get(node, 'unknown')}")
    return 0 if now.is_up else EXIT_UNAVAILABLE


def _status_document(layout: Layout, now: lifecycle.Status) -> dict[str, object]:
    return {
        "format": 1,
        "dir": str(layout.root),
        "up": now.is_up,
        "daemons": now.daemons,
        "nodes": [
            {
                "name": node,
                "address": now.cluster.settings.address_of(node) if now.cluster else None,
                "alive": is_alive,
                "cut": "cut off" in now.troubles.get(node, ""),
                "frozen": "frozen" in now.troubles.get(node, ""),
                "state": now.states.get(node, "unknown"),
            }
            for node, is_alive in now.nodes.items()
        ],
        "environment": accounts.environment(layout),
    }


def env(options: argparse.Namespace, layout: Layout) -> int:
    lifecycle.require_up(layout)
    for name, value in accounts.environment(layout).items():
        print(f"export {name}={shlex.quote(value)}")
    return 0


def run(options: argparse.Namespace, layout: Layout) -> NoReturn:
    argv = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not argv:
        raise ClusterError(f"run: give a command, like: {tool()} run -- srun hostname", exit_code=EXIT_WRONG_USE)
    lifecycle.require_up(layout)
    accounts.become_and_execute(layout, argv)


def _parser() -> argparse.ArgumentParser:
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument(
        "--dir",
        type=Path,
        default=Path(os.environ.get(DIRECTORY_VARIABLE) or DEFAULT_DIRECTORY),
        help=f"where the cluster lives (default: ${DIRECTORY_VARIABLE}, else {DEFAULT_DIRECTORY})",
    )
    parser = argparse.ArgumentParser(
        prog="slurm-cluster", description="A real Slurm cluster of several nodes on this one machine."
    )
    verbs = parser.add_subparsers(required=True, metavar="VERB")

    def add(name: str, summary: str) -> argparse.ArgumentParser:
        verb = verbs.add_parser(name, parents=[common], help=summary, description=summary)
        verb.set_defaults(verb=globals()[name])
        return verb

    bring_up = add("up", "start the cluster and wait until all nodes are idle")
    bring_up.add_argument("--nodes", type=int, default=8, help="number of nodes (default: 8)")
    bring_up.add_argument(
        "--subnet", type=_subnet, default=DEFAULT_SUBNET, help=f"addresses of the nodes (default: {DEFAULT_SUBNET})"
    )
    add("down", "cancel all jobs and end everything the cluster runs; files stay")
    show = add("status", "say whether it is up and what its nodes do (exit code 69: not up)")
    show.add_argument("--json", action="store_true", help="the same as one JSON object")
    for name, summary in NODE_VERBS.items():
        verb = add(name, summary)
        verb.add_argument("node", help="name of the node: n1, n2, ...")
        if name == "kill":
            verb.add_argument("--noticed", action="store_true", help="tell the controller at once (alone: 15 to 30 s)")
        if name == "freeze":
            verb.add_argument("--ranks", action="store_true", help="only what srun started there; slurmd lives on")
    add("env", 'print the environment of a user, for: eval "$(slurm-cluster env)"')
    execute = add("run", "run a command as the unprivileged user: slurm-cluster run -- srun hostname")
    execute.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND")
    return parser


def _subnet(text: str) -> IPv4Network:
    try:
        return IPv4Network(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{error}; give a range like {DEFAULT_SUBNET}") from error
