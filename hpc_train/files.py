"""Writing files so that a reader sees the old content or the new one, never a part; and reading with limits.

Apart from the rooms because every one of them writes small records on a shared file system, and the order
(write, fsync, rename, fsync of the directory) must be the same everywhere. Standard library only.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import secrets
import shlex
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from hpc_train.errors import HpcTrainError, SpecError

__all__ = [
    "answer",
    "append_line",
    "flush_file_system",
    "fsync_dir",
    "has_control_characters",
    "open_regular",
    "parse_record",
    "process_start",
    "read_json",
    "read_lines",
    "read_text",
    "readable_lines",
    "record_text",
    "refuse_control_characters",
    "slug",
    "tell",
    "why_unreadable",
    "write_atomic",
    "write_json",
]

MAX_RECORD_BYTES = 4 << 20  # our own small JSON records; bulk formats bring their own limits

_CONTROL = re.compile(r"[\x00-\x1f\x7f\x80-\x9f\u2028\u2029]")


def fsync_dir(path: str | os.PathLike[str]) -> None:
    """Make the names in a directory durable. Without it a rename can be lost with the node."""
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def flush_file_system(path: str | os.PathLike[str]) -> None:
    """Make durable what this node has written to the file system that holds `path`. Raises: OSError.

    One call a node instead of one a file: rank 0 cannot flush what other nodes hold in their caches.
    """
    import ctypes  # here: commands of a login node need it not

    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.syncfs(fd) != 0:
            number = ctypes.get_errno()
            raise OSError(number, os.strerror(number), os.fspath(path))
    finally:
        os.close(fd)


def write_atomic(
    path: str | os.PathLike[str], data: bytes | str, *, mode: int | None = None, durable: bool = True
) -> None:
    """Replace a file in one step: temporary name, fsync, rename, fsync of the directory.

    Args:  mode: permission bits; None leaves them to the umask.   durable: False leaves both fsyncs out: for a record
    that others must see at once, and that says nothing once its node has crashed.
    Raises: OSError as the system gives it; the temporary file is removed then and the old file is untouched.
    """
    target = Path(path)
    payload = data.encode() if isinstance(data, str) else data
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    fd = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    try:
        with os.fdopen(fd, "wb") as file:
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            file.write(payload)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        fsync_dir(target.parent)


def write_json(path: str | os.PathLike[str], value: Any, *, mode: int | None = None, durable: bool = True) -> None:
    """`write_atomic` of a JSON record: sorted keys, no NaN, a newline at the end."""
    text = json.dumps(value, indent=1, sort_keys=True, allow_nan=False) + "\n"
    write_atomic(path, text, mode=mode, durable=durable)


def read_text(path: str | os.PathLike[str], *, limit: int = MAX_RECORD_BYTES) -> str:
    """Text of a regular file that is not larger than `limit` bytes.

    Raises: OSError as the system gives it; ValueError if it is larger, not a regular file, or not UTF-8.
    """
    return _read_bytes(path, limit).decode()


def read_lines(path: str | os.PathLike[str], *, limit: int) -> list[str]:
    """Lines of a regular file that is not larger than `limit` bytes; those that are no UTF-8 are passed over.

    For records of one object a line: one damaged byte must not hide all the others.
    Raises: OSError as the system gives it; ValueError if it is larger, or not a regular file.
    """
    return readable_lines(_read_bytes(path, limit))


def readable_lines(data: bytes) -> list[str]:
    """The lines that are UTF-8."""
    lines = []
    for line in data.splitlines():
        with contextlib.suppress(UnicodeDecodeError):
            lines.append(line.decode())
    return lines


def _read_bytes(path: str | os.PathLike[str], limit: int) -> bytes:
    # O_NONBLOCK: opening a FIFO somebody put there must not hang.
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise ValueError(f"{path}: not a regular file")
        data = b""
        while len(data) <= limit and (part := os.read(fd, limit + 1 - len(data))):
            data += part
    finally:
        os.close(fd)
    if len(data) > limit:
        raise ValueError(f"{path}: larger than {limit} bytes")
    return data


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """A regular file, open for reading. A FIFO in its place would keep its reader waiting, a device for ever.

    Raises: OSError as the system gives it; of what is no regular file, ENXIO or EISDIR.
    """
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    mode = os.fstat(fd).st_mode
    if stat.S_ISREG(mode):
        return open(fd, "rb")
    os.close(fd)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), os.fspath(path))
    raise OSError(errno.ENXIO, "not a regular file", os.fspath(path))


def read_json(path: str | os.PathLike[str], *, limit: int = MAX_RECORD_BYTES) -> Any:
    """A JSON value from a bounded file; duplicate keys and NaN are refused.

    Raises: OSError; ValueError (json.JSONDecodeError is one) for anything that is not strict JSON.
    """
    try:
        return json.loads(read_text(path, limit=limit), object_pairs_hook=_no_duplicates, parse_constant=_no_constant)
    except RecursionError as error:
        raise ValueError(f"{path}: nested too deeply") from error


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) != len(pairs):
        raise ValueError("a key appears twice in one JSON object")
    return record


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not allowed in JSON here")


def why_unreadable(path: str | os.PathLike[str], error: OSError | ValueError) -> str:
    """One line on a file or directory of ours that cannot be read: which, what is wrong, and who acts."""
    if not isinstance(error, OSError):
        said = str(error).removeprefix(f"{path}: ")
        return f"{path} is damaged ({said}); put it back from a copy, if there is one"
    said = f"{path} cannot be read ({error.strerror or error})"
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"{said}; who owns it must give you the right: {_owned(path)}"
    if error.errno in (errno.EISDIR, errno.ENOTDIR, errno.ELOOP, errno.ENXIO):
        return f"{said}; something else lies in its place: put it back from a copy, or move that away"
    if error.errno == errno.ENOENT:
        return f"{said}; it was moved or removed"
    return f"{said}; the file system does not do its work: ask the site, with this path"


def _owned(path: str | os.PathLike[str]) -> str:
    try:
        owner = os.stat(path).st_uid
    except OSError:  # it lies in a directory that may not be searched
        return f"ls -ld {shlex.quote(os.path.dirname(os.fspath(path)) or '.')}"
    return f"chmod u+r {shlex.quote(os.fspath(path))}" if owner == os.geteuid() else f"user id {owner}"


def record_text(kind: str, version: int, values: Mapping[str, Any]) -> str:
    """A JSON record that says what it is: `format` and `version` before its values, in their order."""
    record = {"format": kind, "version": version, **values}
    return json.dumps(record, indent=1, ensure_ascii=False) + "\n"


def parse_record(text: str, where: str, *, kind: str, version: int, error: type[HpcTrainError]) -> dict[str, Any]:
    """The values of a record that `record_text` wrote, without `format` and `version`.

    Raises: `error` for text that is not JSON, not a record of this kind, or one of another version.
    """
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as cause:
        raise error(f"{where}: not JSON: {cause}") from cause
    if not isinstance(record, dict) or record.pop("format", None) != kind:
        raise error(f"{where}: not a record of format {kind!r}")
    if record.pop("version", None) != version:
        raise error(f"{where}: another version than {version}; read it with the hpc-train that wrote it")
    return record


def append_line(path: str | os.PathLike[str], line: str) -> None:
    """Append one line with a single write(2), then fsync, so that one writer's lines never interleave."""
    # O_NONBLOCK: a FIFO that nobody reads is an error, not a wait.
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
    fd = os.open(path, flags, 0o666)
    try:
        data = line.encode() + b"\n"
        written = os.write(fd, data)
        if written != len(data):
            raise OSError(28, "short write", str(path))  # ENOSPC: the only cause for a regular file
        os.fsync(fd)
    finally:
        os.close(fd)


def tell(line: str) -> None:
    """One line on standard error, whether or not anybody takes it: a log on a full disk must not stop its writer."""
    with contextlib.suppress(OSError):
        os.write(2, line.encode(errors="replace") + b"\n")


def answer(argv: Sequence[str], line: str) -> None:
    """What a command of the batch shell answers: to the descriptor after `--answer-fd`, else to standard output.

    A descriptor of its own, as a site's `sitecustomize` may print there, before the answer and after it. Raises:
    OSError, ValueError.
    """
    fd = int(argv[argv.index("--answer-fd") + 1]) if "--answer-fd" in argv else 1
    os.write(fd, line.encode() + b"\n")


def process_start(pid: int) -> int | None:
    """Start time of a process in clock ticks since boot (/proc/PID/stat, field 22); None if there is none.

    A PID alone is not a name: it is recycled.
    """
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    return int(text.rpartition(")")[2].split()[19])  # the name before ')' may hold blanks and parentheses


def has_control_characters(text: str) -> bool:
    """True where a text holds a control character or a Unicode line break: those start new lines in scripts."""
    return _CONTROL.search(text) is not None


def refuse_control_characters(text: str, where: str) -> str:
    """The text itself, or SpecError naming the field.

    Raises: SpecError. A newline inside a value would become a line of its own in the batch script.
    """
    if _CONTROL.search(text):
        raise SpecError(
            f"{where} = {text!r}: control characters (newline, tab, escape, …) are not allowed; remove them"
        )
    return text


def slug(text: str, *, limit: int = 40) -> str:
    """A directory name made of a free text: ASCII letters, digits, '.', '_' and '-'; never empty, '.' or '..'."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-.")[:limit].rstrip("-.")
    return name or "run"
