"""Saving and loading a checkpoint, against torch.distributed.checkpoint (gloo) and torch.save.

    tools/bench checkpoint [--quick] [--json] [--mib N] [--tensors N] [--repeat N] [--ranks 1,2] [--dir DIR]

Apart from the tests because it asserts nothing. All methods of one rank count run in the same processes, taking turns,
each save into a fresh directory; medians, and ratios to DCP (below 1: ours is faster). Loads come from the page cache
for all. What each save is worth differs: see DURABILITY, printed with the figures.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["main"]

DURABILITY = {
    "hpc-train": "fsync of every file and directory, CRC-32 of every byte, read back and compared, atomic rename",
    "dcp": "fsync of data files (sync_files=True, its default), .metadata renamed; no checksum, no read back",
    "torch.save": "no fsync, no checksum of its own (zip CRC-32 is not checked on load), written in place",
}
Method = tuple[Callable[[Path, dict[str, Any]], object], Callable[[Path, dict[str, Any]], object]]


def main(argv: list[str]) -> int:
    """Run the benchmark; prints a table, or JSON with --json. Exit code 0."""
    arguments = _parse(argv)
    if arguments.worker:
        return _worker(arguments)
    results = []
    shapes = [("large", arguments.mib, 16), ("small", 0, arguments.tensors)]
    for num_ranks in map(int, arguments.ranks.split(",")):
        for kind, mib, tensors in shapes:
            results += _launch(arguments, num_ranks, kind, mib, tensors)
    if arguments.json:
        print(json.dumps({"durability": DURABILITY, "results": results}, indent=1))
        return 0
    print(f"{'state':<28} {'ranks':>5}  {'method':<18} {'save s':>8} {'/ dcp':>6} {'load s':>8} {'/ dcp':>6}")
    for item in results:
        print(
            f"{item['state']:<28} {item['ranks']:>5}  {item['method']:<18} {item['save_s']:>8.3f}"
            f" {item['save_ratio']:>6.2f} {item['load_s']:>8.3f} {item['load_ratio']:>6.2f}"
        )
    for name, text in DURABILITY.items():
        print(f"{name}: {text}")
    return 0


def _parse(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="tools/bench checkpoint", description=__doc__.splitlines()[0] if __doc__ else ""
    )
    parser.add_argument("--quick", action="store_true", help="small sizes and 3 repeats: to see that it runs")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--mib", type=int, default=256, help="MiB of the large state, 16 tensors")
    parser.add_argument("--tensors", type=int, default=5000, help="tensors of 1 KiB in the small state")
    parser.add_argument("--repeat", type=int, default=5, help="runs of each method")
    parser.add_argument("--ranks", default="1,2", help="rank counts, comma-separated")
    parser.add_argument("--dir", default=None, help="file system to measure; default: the temporary directory")
    parser.add_argument("--worker", nargs=3, default=None, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    if arguments.quick:
        arguments.mib, arguments.tensors, arguments.repeat = 16, 200, 3
    return arguments


def _launch(arguments: argparse.Namespace, num_ranks: int, kind: str, mib: int, tensors: int) -> list[dict[str, Any]]:
    """One mpirun that measures all methods on one state."""
    mpirun = Path(sys.executable).with_name("mpirun")
    with tempfile.TemporaryDirectory(dir=arguments.dir) as folder:
        argv = [str(mpirun), "-n", str(num_ranks), "--bind-to", "none", "--map-by", ":OVERSUBSCRIBE"]
        argv += [sys.executable, "-m", "benchmarks.checkpoint", "--repeat", str(arguments.repeat)]
        argv += ["--worker", folder, str(mib), str(tensors)]
        here = Path(__file__).resolve().parents[2]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{here}{os.pathsep}{here / 'tools'}"}
        environment |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=540, check=False)
        if done.returncode != 0:
            raise SystemExit(f"checkpoint benchmark at {num_ranks} ranks failed:\n{done.stderr[-3000:]}")
        record: dict[str, dict[str, list[float]]] = json.loads((Path(folder) / "result.json").read_text())
    label = f"{mib} MiB in {tensors} tensors" if kind == "large" else f"{tensors} tensors of 1 KiB"
    median = {name: {key: statistics.median(times) for key, times in item.items()} for name, item in record.items()}
    return [
        {
            "state": label,
            "ranks": num_ranks,
            "method": name,
            "save_s": item["save"],
            "load_s": item["load"],
            "save_ratio": item["save"] / median["dcp"]["save"],
            "load_ratio": item["load"] / median["dcp"]["load"],
            "runs": record[name],
        }
        for name, item in median.items()
    ]


def _state(mib: int, tensors: int, fill: bool) -> dict[str, Any]:
    import torch

    size = (mib << 20) // 4 // tensors if mib else 256
    make = torch.randn if fill else torch.zeros
    torch.manual_seed(0)
    return {"model": {f"layer.{i}.weight": make(size) for i in range(tensors)}}


def _methods(world: Any) -> dict[str, Method]:
    import torch
    from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
    from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

    from hpc_train.checkpoint import Checkpointer

    def ours(writer: str) -> Method:
        return (
            lambda path, state: Checkpointer(path, world=world, writer=writer).save(1, state),
            lambda path, state: Checkpointer(path, world=world, writer=writer).load(state),
        )

    methods: dict[str, Method] = {
        "dcp": (
            lambda path, state: dcp_save(state, checkpoint_id=path),
            lambda path, state: dcp_load(state, checkpoint_id=path),
        ),
        "hpc-train mpiio": ours("mpiio"),
        "hpc-train posix": ours("posix"),
    }
    if world.size == 1:

        def load(path: Path, state: dict[str, Any]) -> None:
            saved = torch.load(path, weights_only=True)
            for key, tensor in state["model"].items():
                tensor.copy_(saved["model"][key])

        methods["torch.save"] = (lambda path, state: torch.save(state, path), load)
    return methods


def _worker(arguments: argparse.Namespace) -> int:
    """One rank: take turns through the methods, rank 0 writes the times (of the slowest rank)."""
    import warnings

    import torch
    import torch.distributed as dist
    from mpi4py import MPI

    from hpc_train.bootstrap.mpi import MpiWorld

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    folder, mib, tensors = Path(arguments.worker[0]), int(arguments.worker[1]), int(arguments.worker[2])
    world = MpiWorld(MPI.COMM_WORLD)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=world.rank, world_size=world.size)
    saved = _state(mib, tensors, fill=True)
    times: dict[str, dict[str, list[float]]] = {}
    for turn in range(-1, arguments.repeat):  # turn -1 warms up and checks
        for name, (save, load) in _methods(world).items():
            path = folder / f"{name.replace(' ', '-')}-{turn}"
            live = _state(mib, tensors, fill=False)
            took = {"save": _timed(world, save, path, saved), "load": _timed(world, load, path, live)}
            assert all(torch.equal(live["model"][key], value) for key, value in saved["model"].items()), name
            if turn >= 0:
                for key, seconds in took.items():
                    times.setdefault(name, {}).setdefault(key, []).append(seconds)
            world.barrier()
            if world.rank == 0:
                _remove(path)
    if world.rank == 0:
        (folder / "result.json").write_text(json.dumps(times))
    dist.destroy_process_group()
    return 0


def _timed(world: Any, act: Callable[[Path, dict[str, Any]], object], path: Path, state: dict[str, Any]) -> float:
    os.sync()  # what an earlier method left in the page cache must not be written at the expense of this one
    world.barrier()
    begin = time.perf_counter()
    act(path, state)
    return float(world.allreduce(time.perf_counter() - begin, "max"))


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    with contextlib.suppress(FileNotFoundError):
        path.unlink()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
