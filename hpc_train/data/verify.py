"""Verifying a dataset: every byte against its checksum, every shard against the manifest and the HDF5 library.

Apart from the reader because it goes on after damage: it names everything that is wrong, once.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from hpc_train.data import hdf5_check
from hpc_train.data.checksum import file_problem
from hpc_train.data.manifest import FILE_NAME, Manifest, Shard, read_manifest
from hpc_train.errors import DataError

__all__ = ["Problem", "VerifyReport", "verify_dataset"]

MAX_PROBLEMS_PER_SHARD = 1000
MAX_FOREIGN = 100
CHILD_SILENCE_S = 120.0  # one shard's metadata takes milliseconds


@dataclass(frozen=True)
class Problem:
    """One damaged thing. Numbers are -1 where they do not apply; samples are counted over the whole dataset."""

    kind: str
    message: str
    shard: str = ""
    field: str = ""
    block: int = -1
    first_sample: int = -1
    last_sample: int = -1


@dataclass
class VerifyReport:
    """What verify found: the dataset is good if there are no problems; warnings do not count."""

    path: str
    problems: list[Problem] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    num_samples: int = 0
    num_shards: int = 0
    num_blocks: int = 0
    num_bytes: int = 0

    @property
    def is_good(self) -> bool:
        """Nothing is damaged."""
        return not self.problems

    def to_json(self) -> dict[str, Any]:
        """The report as JSON values, with format and version."""
        return {"format": "hpc-train-data-verify", "version": 1, "is_good": self.is_good, **asdict(self)}


def verify_dataset(
    path: str | os.PathLike[str], *, on_progress: Callable[[int, int], None] | None = None
) -> VerifyReport:
    """Read a whole dataset and report all damage.

    Args:  on_progress: called with bytes read and all bytes.
    Returns: the report; damage never raises, whatever the files hold.
    Raises: PermissionDeniedError if the manifest cannot be read. Not collective. Memory: a few MiB and the manifest.
    """
    directory = Path(path)
    report = VerifyReport(path=str(directory))
    try:
        manifest = read_manifest(directory)
    except DataError as error:
        report.problems.append(Problem(kind="manifest", message=str(error)))
        return report
    report.num_samples, report.num_shards = manifest.num_samples, len(manifest.shards)
    report.num_blocks, report.num_bytes = manifest.num_blocks, manifest.num_samples * manifest.sample_bytes
    report.warnings.extend(_foreign_files(directory, manifest))
    uncovered = [shard.name for shard in manifest.shards if shard.other_crc32 is None]
    if uncovered:
        report.warnings.append(
            f"packed by an older hpc-train: in {len(uncovered)} shards only the samples have checksums, not the HDF5"
            " structures around them; pack again to have all bytes covered"
        )
    first_block = done = 0
    readable: list[Shard] = []
    for shard in manifest.shards:
        problems = list(_check_bytes(directory, manifest, shard, first_block))
        if not any(problem.kind in ("missing", "unreadable") for problem in problems):
            readable.append(shard)
        _extend_bounded(report.problems, problems, shard)
        first_block += -(-shard.num_samples // manifest.block_samples)
        done += shard.num_samples * manifest.sample_bytes
        if on_progress is not None:
            on_progress(done, report.num_bytes)
    report.problems.extend(_check_hdf5(directory, manifest, readable, report.warnings))
    return report


def _extend_bounded(problems: list[Problem], more: list[Problem], shard: Shard) -> None:
    problems.extend(more[:MAX_PROBLEMS_PER_SHARD])
    if len(more) > MAX_PROBLEMS_PER_SHARD:
        text = f"{shard.name}: and {len(more) - MAX_PROBLEMS_PER_SHARD} more damaged blocks"
        problems.append(Problem(kind="more", shard=shard.name, message=text))


def _foreign_files(directory: Path, manifest: Manifest) -> list[str]:
    known = {FILE_NAME, *(shard.name for shard in manifest.shards)}
    with os.scandir(directory) as listing:
        extra = sorted(entry.name for entry in listing if entry.name not in known)
    more = [f"{len(extra) - MAX_FOREIGN} more files are not part of it"] if len(extra) > MAX_FOREIGN else []
    return [f"{name!r} is not part of the dataset" for name in extra[:MAX_FOREIGN]] + more


def _check_bytes(directory: Path, manifest: Manifest, shard: Shard, first_block: int) -> Iterator[Problem]:
    """Size and checksums of one shard, read as plain bytes."""
    path = directory / shard.name
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        yield Problem(kind="missing", shard=shard.name, message=f"{shard.name}: missing")
        return
    except OSError as error:
        yield Problem(kind="unreadable", shard=shard.name, message=f"{shard.name}: cannot be opened: {error.strerror}")
        return
    try:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode):
            yield Problem(kind="unreadable", shard=shard.name, message=f"{shard.name}: not a regular file")
            return
        if status.st_size != shard.size_bytes:
            text = f"{shard.name}: {status.st_size} bytes, the manifest says {shard.size_bytes}"
            yield Problem(kind="size", shard=shard.name, message=text)
        for name in shard.fields:
            yield from _check_field(fd, manifest, shard, name=name, first_block=first_block)
        if status.st_size == shard.size_bytes and shard.other_crc32 is not None:
            reason = file_problem(fd, shard.gaps(manifest.row_bytes), shard.other_crc32)
            if reason:
                text = f"{shard.name}: what lies around the samples (the HDF5 structures): {reason}"
                yield Problem(kind="structure", shard=shard.name, message=text)
    finally:
        os.close(fd)


def _check_field(fd: int, manifest: Manifest, shard: Shard, *, name: str, first_block: int) -> Iterator[Problem]:
    extent = shard.fields[name]
    row_bytes = manifest.fields[name].row_bytes
    for local, expected in enumerate(extent.crc32):
        first_row = local * manifest.block_samples
        num_rows = min(manifest.block_samples, shard.num_samples - first_row)
        offset = extent.offset + first_row * row_bytes
        reason = file_problem(fd, [(offset, offset + num_rows * row_bytes)], expected)
        if reason:
            first = first_block * manifest.block_samples + first_row
            block, last = first_block + local, first + num_rows - 1
            yield Problem(
                kind="block",
                shard=shard.name,
                field=name,
                block=block,
                first_sample=first,
                last_sample=last,
                message=f"{shard.name}: field {name}, block {block} (samples {first} to {last}): {reason}",
            )


def _check_hdf5(directory: Path, manifest: Manifest, shards: list[Shard], warnings: list[str]) -> Iterator[Problem]:
    """Ask the HDF5 library, in children. One that dies takes the blame for its shard with it, and a new one goes on."""
    while shards:
        with _Child() as child:
            if not child.is_ready:
                warnings.append(
                    "what the HDF5 library sees was not checked: h5py is not installed (pip install 'hpc-train[node]')"
                )
                return
            for index, shard in enumerate(shards):
                answer = child.ask(_question(directory, manifest, shard))
                if answer is None:
                    text = f"{shard.name}: the HDF5 library crashed or hung while opening it"
                    yield Problem(kind="hdf5", shard=shard.name, message=text)
                    shards = shards[index + 1 :]
                    break
                for name, problem in answer:
                    where = f"{shard.name}: field {name}" if name else shard.name
                    yield Problem(kind="hdf5", shard=shard.name, field=name, message=f"{where}: {problem}")
            else:
                return


def _question(directory: Path, manifest: Manifest, shard: Shard) -> dict[str, Any]:
    fields = {
        name: {"dtype": spec.dtype, "shape": spec.shape, "offset": shard.fields[name].offset}
        for name, spec in manifest.fields.items()
    }
    return {"path": str((directory / shard.name).absolute()), "num_samples": shard.num_samples, "fields": fields}


class _Child:
    """One process of `hdf5_check`. It is ended with this object."""

    def __init__(self) -> None:
        # The file's path: with -m, an h5py.py in the current directory would run. -P: nor one beside this file.
        environment = {key: value for key, value in os.environ.items() if not key.startswith("HDF5_")}
        environment |= {"HDF5_PLUGIN_PRELOAD": "::", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-P", str(hdf5_check.__file__)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
        )
        self.is_ready = self._answer() == b"ready\n"

    def __enter__(self) -> _Child:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def ask(self, question: dict[str, Any]) -> list[tuple[str, str]] | None:
        """The child's answer, or None if it died or kept silent."""
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):
            self._process.stdin.write(json.dumps(question).encode() + b"\n")
            self._process.stdin.flush()
        line = self._answer()
        return [(str(name), str(text)) for name, text in json.loads(line)] if line.endswith(b"\n") else None

    def _answer(self) -> bytes:
        """One line, or what came before the child ended or its time was over."""
        import selectors

        assert self._process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            if not selector.select(CHILD_SILENCE_S):
                return b""
        return self._process.stdout.readline()
