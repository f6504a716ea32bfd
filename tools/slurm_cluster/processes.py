"""Processes that outlive the command: started with a record on disk, found again and ended only through it.

A record is the process's own /proc/PID/stat line and the machine's boot id. A PID alone may belong to another process
by now; PID, start time and boot id together may not.
"""

import os
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from slurm_cluster.errors import ClusterError

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
NUM_LOG_LINES_SHOWN = 12
POLL_S = 0.05

# Written by the process itself before it becomes the daemon: at no instant is there a daemon without a record.
RECORD_THEN_EXEC = 'cat /proc/$$/stat /proc/sys/kernel/random/boot_id >"$0.new" && mv "$0.new" "$0" && exec "$@"'


@dataclass(frozen=True)
class Record:
    """Identity of one process: `start_ticks` is its start time in clock ticks since boot (field 22 of stat)."""

    pid: int
    start_ticks: int
    boot_id: str


@dataclass(frozen=True)
class Stat:
    """The fields of /proc/PID/stat that are used here."""

    pid: int
    state: str
    parent_pid: int
    start_ticks: int

    @classmethod
    def parse(cls, line: str) -> "Stat":
        # The name in parentheses may itself hold blanks and parentheses: count from the last one.
        pid, _, rest = line.partition(" ")
        fields = rest.rpartition(")")[2].split()
        return cls(int(pid), fields[0], int(fields[1]), int(fields[19]))


def read_stat(pid: int) -> Stat | None:
    """None when there is no such process."""
    try:
        return Stat.parse(Path(f"/proc/{pid}/stat").read_text())
    except (FileNotFoundError, ProcessLookupError):
        return None


def record_of(stat: Stat) -> Record:
    return Record(stat.pid, stat.start_ticks, BOOT_ID.read_text().strip())


def read_record(path: Path) -> Record | None:
    """The process recorded in `path`; None when there is no record or only a broken one."""
    try:
        stat_line, boot_id = path.read_text().splitlines()
        stat = Stat.parse(stat_line)
    except (FileNotFoundError, ValueError, IndexError):
        return None
    return Record(stat.pid, stat.start_ticks, boot_id)


def write_record(path: Path, pid: int) -> None:
    """Record a process that was started by another one than this command."""
    replacement = path.with_name(path.name + ".new")
    replacement.write_text(Path(f"/proc/{pid}/stat").read_text() + BOOT_ID.read_text())
    replacement.replace(path)


def is_running(record: Record | None) -> bool:
    """Whether exactly this process still runs; a zombie does not."""
    stat = read_stat(record.pid) if record else None
    return stat is not None and stat.state not in "ZX" and record_of(stat) == record


def children_of(pid: int) -> list[int]:
    """PIDs of the direct children, found by a walk over /proc: not every kernel has task/TID/children."""
    stats = (read_stat(int(entry.name)) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return [stat.pid for stat in stats if stat and stat.parent_pid == pid]


def children_in_own_namespace(pid: int) -> list[int]:
    """PIDs of those direct children that live in another PID namespace than this process."""

    def namespace(of: int | str) -> str:
        try:
            return os.readlink(f"/proc/{of}/ns/pid")
        except OSError:
            return ""  # it has ended

    return [child for child in children_of(pid) if namespace(child) not in ("", namespace("self"))]


def spawn(argv: Sequence[str], *, record: Path, log: Path, environment: Mapping[str, str] | None = None) -> None:
    """Start a daemon in a session of its own, its output in `log`; returns when its record is written."""
    record.unlink(missing_ok=True)
    with log.open("ab") as output:
        process = subprocess.Popen(
            ["/bin/sh", "-c", RECORD_THEN_EXEC, str(record), *argv],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            cwd="/",
            env={"PATH": SYSTEM_PATH, "LANG": "C.UTF-8", **(environment or {})},
            start_new_session=True,
        )
    wait_until(lambda: record.exists() or process.poll() is not None, timeout_s=30)
    # The daemon is not this command's to wait for; without this Python warns that it still runs.
    process.returncode = process.returncode or 0


def end(records: Iterable[Record | None], signal_number: signal.Signals, *, timeout_s: float) -> bool:
    """Signal all of these processes that still run and wait for their end; whether all have ended in time.

    A pidfd is taken first and the record compared after: from then on the kernel cannot give the PID to another one.
    """
    deadline = time.monotonic() + timeout_s
    descriptors: list[int] = []
    try:
        for record in records:
            try:
                descriptor = os.pidfd_open(record.pid) if record else None
            except ProcessLookupError:
                continue
            if descriptor is None:
                continue
            descriptors.append(descriptor)
            if is_running(record):
                signal.pidfd_send_signal(descriptor, signal_number)
            else:
                os.close(descriptors.pop())
        return all(
            select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))[0] for descriptor in descriptors
        )
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def wait_until(is_true: Callable[[], bool], *, timeout_s: float) -> bool:
    """Poll until the condition holds; False when the time is over."""
    deadline = time.monotonic() + timeout_s
    while not is_true():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True


def command(
    argv: Sequence[str], *, timeout_s: float = 30, environment: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a short command and return its result, whatever its exit code; ClusterError when it takes too long."""
    try:
        return subprocess.run(
            argv,
            check=False,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=timeout_s,
            env={"PATH": SYSTEM_PATH, "LANG": "C.UTF-8", **(environment or {})},
        )
    except subprocess.TimeoutExpired as error:
        raise ClusterError(f"'{' '.join(argv)}' gave no answer within {timeout_s:g} s") from error


def checked_command(argv: Sequence[str], *, timeout_s: float = 30, environment: Mapping[str, str] | None = None) -> str:
    """Standard output of a command that must succeed."""
    result = command(argv, timeout_s=timeout_s, environment=environment)
    if result.returncode != 0:
        said = " ".join((result.stderr or result.stdout).split())
        raise ClusterError(f"'{' '.join(argv)}' failed with exit code {result.returncode}: {said}")
    return result.stdout


def last_lines(log: Path) -> str:
    """The end of a log, indented, to stand below an error message."""
    try:
        lines = log.read_text(errors="replace").splitlines()[-NUM_LOG_LINES_SHOWN:]
    except FileNotFoundError:
        return "  (no log)"
    return "\n".join(f"  {line}" for line in lines) or "  (empty log)"
