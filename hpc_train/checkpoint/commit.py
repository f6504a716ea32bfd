"""COMMIT: the small record that makes a directory a checkpoint, and proves that the rest is what was saved.

Apart because the catalogue reads nothing else. Two lines: a JSON object, then the CRC-32 of the first line (without
its newline) in eight hex digits. Standard library only.
"""

from __future__ import annotations

import time
import zlib
from dataclasses import dataclass
from typing import Any

from hpc_train.checkpoint import strict_json
from hpc_train.errors import CheckpointError

__all__ = ["MAX_COMMIT_BYTES", "Commit"]

FORMAT = "hpc-train checkpoint"
VERSION = 1
MAX_COMMIT_BYTES = 1 << 20


@dataclass(frozen=True)
class Commit:
    """What COMMIT says.

    Attributes:  step; save_id: 16 hex digits, new for every save.   world_size: ranks that saved.   created: seconds
    since 1970, for people only (clocks of nodes differ).   index_nbytes, index_sha256: of index.json.
    file_nbytes: length of every data file, by ordinal.   writer: "mpiio" or "posix".   run, attempt: who saved it,
    for people; "" and None outside a run.
    """

    step: int
    save_id: str
    world_size: int
    created: int
    index_nbytes: int
    index_sha256: str
    file_nbytes: tuple[int, ...]
    writer: str
    run: str = ""
    attempt: int | None = None

    @property
    def num_bytes(self) -> int:
        """Bytes of the data files and the index."""
        return sum(self.file_nbytes) + self.index_nbytes

    def encode(self) -> bytes:
        """The content of the file."""
        record = {
            "format": FORMAT,
            "version": VERSION,
            "step": self.step,
            "save_id": self.save_id,
            "world_size": self.world_size,
            "created": self.created,
            "created_utc": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(self.created)),
            "index": {"nbytes": self.index_nbytes, "sha256": self.index_sha256},
            "files": list(self.file_nbytes),
            "writer": self.writer,
            "run": self.run,
            "attempt": self.attempt,
        }
        line = strict_json.write(record)
        return line + b"\n" + f"{zlib.crc32(line):08x}\n".encode()

    @classmethod
    def parse(cls, data: bytes, where: str) -> Commit:
        """Read the content of the file.

        Raises: CheckpointError if its own CRC, its form or its version is wrong.
        """
        line, _, rest = data.partition(b"\n")
        if rest != f"{zlib.crc32(line):08x}\n".encode():
            raise CheckpointError(f"{where}: its own CRC-32 does not match: the file is damaged or cut short")
        record = strict_json.parse(line, where)
        strict_json.require_format(record, FORMAT, VERSION, where)
        index = strict_json.field(record, "index", dict, where)
        files: list[Any] = strict_json.field(record, "files", list, where)
        if not files or any(type(n) is not int or not 0 <= n <= strict_json.MAX_NUMBER for n in files):
            raise CheckpointError(f"{where}: field 'files' must list the length of every data file")
        return cls(
            step=strict_json.field(record, "step", int, where),
            save_id=strict_json.field(record, "save_id", str, where),
            world_size=strict_json.field(record, "world_size", int, where),
            created=strict_json.field(record, "created", int, where),
            index_nbytes=strict_json.field(index, "nbytes", int, where),
            index_sha256=strict_json.field(index, "sha256", str, where),
            file_nbytes=tuple(files),
            writer=strict_json.field(record, "writer", str, where),
            run=strict_json.field(record, "run", str, where) if "run" in record else "",
            attempt=None if record.get("attempt") is None else strict_json.field(record, "attempt", int, where),
        )
