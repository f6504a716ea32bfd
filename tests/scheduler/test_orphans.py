"""What a killed supervisor leaves running ends with a cancel, and before the run goes on."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from hpc_train.run.layout import RunDir
from hpc_train.scheduler.local.backend import LocalBackend
from hpc_train.scheduler.local.orphans import end_orphans
from hpc_train.scheduler.local.record import is_locked, read_record
from tests.scheduler.making import bare_environment, is_running, make_run, recorded, wait_for

ROOT = Path(__file__).parents[2]
ENVIRONMENT = bare_environment(PYTHONPATH=str(ROOT))
# A process with the command line of a rank, that takes no orders from a shell.
SCRIPT = """
RUN=${0%/*/*}
python3 -c 'import time; time.sleep(300)' -m hpc_train run "$RUN" --submission 0 --attempt 0 &
echo $$ >>"$RUN/shell"; echo $! >>"$RUN/rank"
wait
"""


def start_and_orphan(tmp_path: Path, backend: LocalBackend) -> tuple[str, int]:
    """A run whose supervisor and shell were killed; its job id, and the rank that lives on."""
    run = make_run(tmp_path / "run", script=SCRIPT)
    job_id = backend.submit(run, run.submission(0), ENVIRONMENT)
    rank = int(wait_for(lambda: recorded(run.path / "rank"), "a rank")[-1])
    record = read_record(run.submission(0))
    assert record is not None
    for pid in (record.pid, int(recorded(run.path / "shell")[-1])):
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not is_locked(run.submission(0)), "the supervisor has ended")
    # not the shell any more that was to become it
    wait_for(lambda: b"hpc_train" in Path(f"/proc/{rank}/cmdline").read_bytes().split(b"\0"), "the rank's command line")
    assert is_running(rank)
    return job_id, rank


def test_a_cancel_ends_what_a_killed_supervisor_left(tmp_path: Path) -> None:
    backend = LocalBackend()
    job_id, rank = start_and_orphan(tmp_path, backend)
    backend.cancel(job_id)
    assert not is_running(rank)


def test_the_next_submission_ends_them_before_its_script_starts(tmp_path: Path) -> None:
    backend = LocalBackend()
    job_id, rank = start_and_orphan(tmp_path, backend)
    path = Path(job_id.removeprefix("local:"))
    run = RunDir(path.parent)
    seen = path / "seen"  # a zombie has no command line
    script = f"grep -qs . /proc/{rank}/cmdline && echo alive >>{seen} || echo gone >>{seen}"
    run.submission(0).script.write_text(script)
    assert end_orphans(make_run(tmp_path / "elsewhere", script=""))  # another run's processes are nobody's business
    assert is_running(rank)
    backend.submit(run, run.submission(0), ENVIRONMENT)
    assert wait_for(lambda: recorded(seen), "the script has run") == ["gone"]
