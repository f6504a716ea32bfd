"""The command line: verbs, options, and the one place where an error becomes a line and an exit code."""

import argparse
import json
import os
import shlex
import signal
import sys
from collections.abc import Sequence
from ipaddress import IPv4Network
from pathlib import Path
from typing import NoReturn

from slurm_cluster import accounts, lifecycle, nodes
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
            say(f"{node} runs already")
            return 0
        lifecycle.start_node(cluster, node)
        say(f"{node} is back")
    return 0


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
            print(f"{node:6}{'alive' if is_alive else 'dead':8}{now.states.get(node, 'unknown')}")
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
    for name, summary in (("kill", "crash a node: all its processes die at once"), ("start", "bring a dead node back")):
        verb = add(name, summary)
        verb.add_argument("node", help="name of the node: n1, n2, ...")
        if name == "kill":
            verb.add_argument("--noticed", action="store_true", help="tell the controller at once (alone: 15 to 30 s)")
    add("env", 'print the environment of a user, for: eval "$(slurm-cluster env)"')
    execute = add("run", "run a command as the unprivileged user: slurm-cluster run -- srun hostname")
    execute.add_argument("command", nargs=argparse.REMAINDER, metavar="-- COMMAND")
    return parser


def _subnet(text: str) -> IPv4Network:
    try:
        return IPv4Network(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{error}; give a range like {DEFAULT_SUBNET}") from error
