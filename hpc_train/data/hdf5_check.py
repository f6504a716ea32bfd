"""Does the HDF5 library see in a shard what the manifest says? Runs as a program of its own, for `verify`.

Apart because the file may be hostile: crafted HDF5 files can crash or exhaust the library (HDFGroup/hdf5#6618,
h5py#2891), so it only opens them in a process with limits that nobody minds losing. It reads one JSON line per shard
on standard input ({"path", "num_samples", "fields": {name: {"dtype", "shape", "offset"}}}) and answers each with one
JSON line, a list of [field, problem]. No bytes of samples are read here.
"""

from __future__ import annotations

import json
import resource
import sys
from typing import Any

__all__ = ["main"]

MAX_MEMORY_BYTES = 4 << 30
MAX_CPU_S = 600


def main() -> int:
    """Answer each line of standard input with one line."""
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CPU, (MAX_CPU_S, MAX_CPU_S))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    try:
        import h5py
    except ImportError:
        return 3
    print("ready", flush=True)
    for line in sys.stdin:
        print(json.dumps(_check_shard(h5py, json.loads(line))), flush=True)
    return 0


def _check_shard(h5py: Any, shard: dict[str, Any]) -> list[tuple[str, str]]:
    try:
        with h5py.File(shard["path"], "r", locking=False) as file:
            return [
                (name, problem)
                for name, field in shard["fields"].items()
                if (problem := _field_problem(h5py, file, name, {**field, "num_samples": shard["num_samples"]}))
            ]
    except Exception as error:  # noqa: BLE001 - the library raises any type on a damaged file; all mean "damaged"
        return [("", f"the HDF5 library cannot read it: {' '.join(str(error).split())[:300]}")]


def _field_problem(h5py: Any, file: Any, name: str, field: dict[str, Any]) -> str:
    """What is wrong with one dataset, or nothing. Links are looked at, never followed."""
    link = file.get(name, getlink=True)
    if link is None:
        return "the file has no dataset of this name"
    if not isinstance(link, h5py.HardLink):
        return f"a {type(link).__name__} that leads elsewhere; only datasets of the file itself are allowed"
    dataset = file[name]
    if not isinstance(dataset, h5py.Dataset):
        return "not a dataset"
    if dataset.is_virtual or dataset.external:
        return "its data lie in other files (virtual or external storage), which is not allowed"
    if dataset.chunks is not None:
        return "chunked storage, which this version does not read; pack the data again"
    shape = (field["num_samples"], *field["shape"])
    if dataset.shape != shape:
        return f"shape {dataset.shape}, the manifest says {shape}"
    little = "<" if dataset.dtype.itemsize > 1 else "|"
    if dataset.dtype.name != field["dtype"] or (dataset.dtype.str[0] != little):
        return f"dtype {dataset.dtype.str}, the manifest says little-endian {field['dtype']}"
    offset = dataset.id.get_offset()
    if field["num_samples"] and offset != field["offset"]:
        return f"data at byte {offset}, the manifest says {field['offset']}"
    return ""


if __name__ == "__main__":
    sys.exit(main())
