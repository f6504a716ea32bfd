"""ShardStream against a torch Dataset over h5py with DataLoader(shuffle=True), on the same packed data.

The peer is what a user would write for HDF5 without this library: a map-style dataset that keeps its files open and
reads row by row. Both run with their defaults at the same batch size, in one process, page cache hot; each figure is
the median of whole passes that alternate between the candidates, so that a busy machine disturbs all alike.
"""

from __future__ import annotations

import argparse
import bisect
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["main"]


def main(argv: list[str]) -> int:
    """Print a table, or JSON, of samples and bytes per second and the ratio to ShardStream."""
    parser = argparse.ArgumentParser(prog="tools/bench data", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a smaller dataset; figures are rougher")
    parser.add_argument("--json", dest="as_json", action="store_true", help="print JSON")
    parser.add_argument("--runs", type=int, default=5, help="passes per candidate, at least 5 count  [5]")
    parser.add_argument("--batch", type=int, default=256, help="samples per batch  [256]")
    arguments = parser.parse_args(argv)
    results = []
    for name, row_bytes in (("text rows of 513 bytes", 513), ("records of 16 KiB", 16384)):
        num_bytes = (16 << 20) if arguments.quick else (192 << 20)
        with tempfile.TemporaryDirectory(prefix="hpc-train-bench-") as directory:
            path = _pack(Path(directory) / "set", num_bytes // row_bytes, row_bytes)
            results.append({"data": name, **_compare(path, arguments.runs, arguments.batch, row_bytes)})
    if arguments.as_json:
        print(json.dumps({"format": "hpc-train-bench-data", "version": 1, "results": results}, indent=1))
    else:
        _print_tables(results)
    return 0


def _pack(path: Path, num_samples: int, row_bytes: int) -> Path:
    import numpy as np

    from hpc_train.data import pack_arrays

    rows = np.random.default_rng(0).integers(0, 256, (num_samples, row_bytes), dtype=np.uint8)
    pack_arrays(path, {"tokens": rows}, shard_samples=None)
    return path


def _compare(path: Path, num_runs: int, batch: int, row_bytes: int) -> dict[str, Any]:
    from hpc_train.data import ShardStream

    stream = ShardStream(path, global_batch=batch)
    candidates: dict[str, Callable[[], int]] = {
        "ShardStream": lambda: _count_stream(stream),
        "ShardStream, no checksums": _stream_pass(ShardStream(path, global_batch=batch, check_crc=False)),
        "h5py + DataLoader, 0 workers": _loader_pass(path, batch, 0),
        "h5py + DataLoader, 2 workers": _loader_pass(path, batch, 2),
    }
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    counts: dict[str, int] = {}
    for run in range(num_runs + 1):
        for name, act in candidates.items():
            began = time.perf_counter()
            counts[name] = act()
            if run:  # the first pass fills the page cache
                seconds[name].append(time.perf_counter() - began)
    rates = {name: counts[name] / statistics.median(taken) for name, taken in seconds.items()}
    order = stream.order
    return {
        "num_samples": stream.manifest.num_samples,
        "row_bytes": row_bytes,
        "batch": batch,
        "defaults": f"lanes {order.lanes}, window {order.window}, blocks of {order.block_samples} samples, prefetch 4",
        "num_runs": num_runs,
        "cores": len(os.sched_getaffinity(0)),
        "candidates": [
            {
                "name": name,
                "samples_per_s": round(rate),
                "mb_per_s": round(rate * row_bytes / 1e6, 1),
                "slowest_s": round(max(seconds[name]), 3),
                "fastest_s": round(min(seconds[name]), 3),
                "ratio": round(rates["ShardStream"] / rate, 2),
            }
            for name, rate in rates.items()
        ],
    }


def _stream_pass(stream: Any) -> Callable[[], int]:
    return lambda: _count_stream(stream)


def _count_stream(stream: Any) -> int:
    return sum(len(batch["tokens"]) for batch in stream)


def _loader_pass(path: Path, batch: int, num_workers: int) -> Callable[[], int]:
    from torch.utils.data import DataLoader

    loader: DataLoader[Any] = DataLoader(
        Rows(path),  # type: ignore[arg-type]
        batch_size=batch,
        shuffle=True,
        drop_last=True,
        num_workers=num_workers,
        persistent_workers=num_workers > 0,
    )
    return lambda: sum(len(each) for each in loader)


class Rows:
    """The peer's dataset: files are opened once in each process, rows are read one by one."""

    def __init__(self, path: Path) -> None:
        from hpc_train.data import read_manifest

        self._paths = [path / shard.name for shard in read_manifest(path).shards]
        self._ends: list[int] = []
        for shard in read_manifest(path).shards:
            self._ends.append(shard.num_samples + (self._ends[-1] if self._ends else 0))
        self._datasets: dict[int, Any] = {}

    def __len__(self) -> int:
        return self._ends[-1]

    def __getitem__(self, index: int) -> Any:
        import torch

        number = bisect.bisect_right(self._ends, index)
        if number not in self._datasets:
            import h5py

            self._datasets[number] = h5py.File(self._paths[number], "r", locking=False)["tokens"]
        first = self._ends[number - 1] if number else 0
        return torch.from_numpy(self._datasets[number][index - first])


def _print_tables(results: list[dict[str, Any]]) -> None:
    for result in results:
        print(
            f"{result['data']}: {result['num_samples']} samples, batches of {result['batch']}, {result['cores']} cores,"
        )
        print(f"  median of {result['num_runs']} passes; {result['defaults']}")
        print(f"  {'candidate':<32}{'samples/s':>12}{'MB/s':>10}{'fastest s':>11}{'slowest s':>11}{'ratio':>8}")
        for each in result["candidates"]:
            print(
                f"  {each['name']:<32}{each['samples_per_s']:>12}{each['mb_per_s']:>10}"
                f"{each['fastest_s']:>11}{each['slowest_s']:>11}{each['ratio']:>8}"
            )
    print("ratio: how many times slower than ShardStream")
