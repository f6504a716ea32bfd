"""The command line of the soak: brings the cluster, lets the lanes work for so long, writes the report."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from soaking.breaking import make_disk, return_drained
from soaking.lane import Grounds, Lane, Shape
from soaking.plan import plan
from soaking.report import find_faults_of_ours, table, to_json
from tests.e2e.conftest import pack
from tests.e2e.lab import PROGRAM, WALK, Lab
from tests.support.cluster import SlurmCluster, connect, run_tool

__all__ = ["at_once", "main"]

SHAPES = (Shape(nodes=4, ranks_per_node=2), Shape(nodes=1, ranks_per_node=4))
OVERTIME_S = 1200.0  # a lane past every limit of its own: the soak itself is broken
EXIT_FOUND = 1
MAX_MINUTES = 7 * 24 * 60.0


def main(arguments: Sequence[str]) -> int:
    """Soak; returns 1 if a promise was broken, 0 if all held."""
    options = _parse(arguments)
    started = time.time()
    load_before = os.getloadavg()[0]
    with _cluster() as (cluster, lab, data):
        grounds = Grounds(cluster, lab, data, _say, program=WALK if options.light else PROGRAM)
        disk = lab.directory / "disk"
        make_disk(cluster, disk)
        shutil.chown(disk, cluster.user)
        cluster.wait_idle()
        several, alone = SHAPES
        lanes = [
            Lane(grounds, several, plan(options.seed, 0, num_nodes=several.nodes, can_resize=not options.light)),
            Lane(
                grounds,
                alone,
                plan(options.seed, 1, num_nodes=1, has_disk=True, can_resize=not options.light),
                disk=disk,
            ),
        ]
        is_interrupted = not _soak(grounds, lanes, options.minutes * 60)
        about = {
            "interrupted": is_interrupted,
            "seed": options.seed,
            "program": grounds.program.name,
            "minutes": options.minutes,
            "took_s": round(time.time() - started),
            "cores": os.cpu_count(),
            "load": [round(load_before, 1), *(round(value, 1) for value in os.getloadavg())],
        }
        return _report(options.report, lanes, about)


def _soak(grounds: Grounds, lanes: Sequence[Lane], seconds: float) -> bool:
    """Let the lanes work; False where somebody ended it early: what there is by then is reported all the same."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        at_once([lane.prepare for lane in lanes], OVERTIME_S)
        grounds.deadline = time.monotonic() + seconds
        at_once([lane.work for lane in lanes], seconds + OVERTIME_S)
    except KeyboardInterrupt:
        return False
    return True


def _report(path: Path, lanes: Sequence[Lane], about: dict[str, Any]) -> int:
    """Write the report before anything is cleaned up, and say what was found."""
    cases = [case for lane in lanes for case in lane.cases]
    runs = [run for lane in lanes for run in lane.runs]
    found = find_faults_of_ours(cases, runs) + [f"the soak itself failed: {lane.error}" for lane in lanes if lane.error]
    about["found"] = found
    path.write_text(json.dumps(to_json(cases, runs, about), indent=1) + "\n")
    print(table(cases, runs))
    for line in found:
        _say(f"FOUND: {line}")
    _say(f"report: {path}; load {about['load'][0]} before, {about['load'][1:]} after, {about['cores']} cores")
    return EXIT_FOUND if found else 0


def at_once(parts: Sequence[Callable[[], None]], limit_s: float) -> None:
    """Run the parts beside each other; RuntimeError if one does not come to its end."""
    deadline = time.monotonic() + limit_s
    threads = [threading.Thread(target=part, daemon=True) for part in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    if any(thread.is_alive() for thread in threads):
        raise RuntimeError(f"the soak itself did not end within {limit_s:g} s")


def _say(text: str) -> None:
    print(f"soak {time.strftime('%H:%M:%S')} {text}", flush=True)


def _parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tools/soak",
        description="Train on the test cluster under random faults and hold every run against an undisturbed one.",
    )
    parser.add_argument("--minutes", type=float, default=30.0, help="how long faults come (default: 30)")
    parser.add_argument("--seed", type=int, default=1, help="plans the faults (default: 1)")
    parser.add_argument(
        "--light", action="store_true", help="a program without torch, for a busy machine; no other sizes"
    )
    parser.add_argument("--report", type=Path, default=Path("soak.json"), help="JSON to write (default: soak.json)")
    options = parser.parse_args(arguments)
    if not 0 < options.minutes <= MAX_MINUTES:
        parser.error(f"--minutes {options.minutes:g}: allowed: more than 0, up to {MAX_MINUTES:g}")
    folder = options.report.parent
    if options.report.is_dir() or not os.access(folder, os.W_OK):  # told of now, not after all those minutes
        parser.error(f"--report {options.report}: cannot write it; name a file in a directory that is there")
    return options


@contextmanager
def _cluster() -> Iterator[tuple[SlurmCluster, Lab, Path]]:
    """The cluster, a lab and a dataset on it; what was not there before is taken away again."""
    was_up = run_tool("status").returncode == 0
    cluster = connect()
    directory = Path(tempfile.mkdtemp(prefix="soak-", dir=cluster.shared))
    try:
        shutil.chown(directory, cluster.user)
        lab = Lab(cluster.run, directory, "slurm-cluster", {"XDG_STATE_HOME": str(directory / "state")})
        data = directory / "data"
        data.mkdir(mode=0o755)
        cluster.wait_idle()
        yield cluster, lab, pack(data)
    finally:
        cluster.run(["scancel", f"--user={cluster.user}"])
        cluster.repair()
        return_drained(cluster)
        if was_up:
            cluster.wait_idle(timeout=120)
        else:
            cluster.tool("down")
        subprocess.run(["umount", "--lazy", str(directory / "disk")], capture_output=True, timeout=20, check=False)
        shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
