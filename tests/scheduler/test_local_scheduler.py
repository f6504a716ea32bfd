"""The local supervisor with real processes: wall time, requeue, hold, cancel, and nothing left running."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from hpc_train.errors import SchedulerError
from hpc_train.files import process_start
from hpc_train.run.layout import RunDir, SubmissionDir
from hpc_train.scheduler.backend import JobState
from hpc_train.scheduler.local.backend import LocalBackend
from hpc_train.scheduler.local.record import hold_lock, is_locked, read_record
from tests.scheduler.making import bare_environment, is_running, make_run, recorded, wait_for

ROOT = Path(__file__).parents[2]
# $NOTES: a file that tells the test what happened; $HERE: the submission's directory, for the marks.
HEAD = 'HERE=${0%/*}; NOTES=$HERE/notes; note() { echo "$*" >>"$NOTES"; }; note start $$\n'


@dataclass
class Machine:
    """Starts jobs on this machine and ends what a failed test leaves behind."""

    directory: Path
    backend: LocalBackend = field(default_factory=LocalBackend)
    jobs: list[str] = field(default_factory=list)

    def submit(self, script: str, **launch: Any) -> str:
        """The job id of a script, started with this launch record."""
        run = make_run(self.directory / f"run {len(self.jobs)}", script=HEAD + script, launch=launch)
        environment = bare_environment(HOME=str(self.directory), PYTHONPATH=str(ROOT))
        job_id = self.backend.submit(run, run.submission(0), environment)
        self.jobs.append(job_id)
        return job_id

    def state(self, job_id: str) -> JobState:
        """What the back end says of it."""
        return self.backend.states([job_id])[job_id]

    def wait(self, job_id: str, *states: str) -> JobState:
        """Wait for one of the states, and at an end for the supervisor's too."""
        wait_for(lambda: self.state(job_id).state in states, f"state {states}; it is {self.state(job_id)}")
        state = self.state(job_id)
        if not state.is_live:
            wait_for(lambda: not is_locked(submission_of(job_id)), "the supervisor has ended")
        return state

    def run(self, script: str, **launch: Any) -> tuple[str, JobState]:
        """Submit and wait for its end."""
        job_id = self.submit(script, **launch)
        return job_id, self.wait(job_id, "completed", "failed", "timeout", "held", "cancelled")


def submission_of(job_id: str) -> SubmissionDir:
    return SubmissionDir(Path(job_id.removeprefix("local:")), 0)


def notes(job_id: str) -> list[str]:
    return recorded(submission_of(job_id).path / "notes")


def noted_pid(job_id: str, word: str) -> int:
    lines = wait_for(lambda: [line for line in notes(job_id) if line.startswith(f"{word} ")], f"a note {word!r}")
    return int(lines[-1].split()[1])


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    yield made
    for job_id in made.jobs:
        made.backend.cancel(job_id)


@pytest.mark.parametrize(("code", "state"), [(0, "completed"), (5, "failed"), (75, "failed")])
def test_a_script_that_wants_no_more_ends_the_job(machine: Machine, code: int, state: str) -> None:
    job_id, found = machine.run(f"exit {code}")
    assert (found.state, found.reason) == (state, "" if code == 0 else f"the batch script ended with code {code}")
    assert len(notes(job_id)) == 1


def test_a_script_that_asks_for_it_runs_again_after_a_pause(machine: Machine) -> None:
    script = 'date +%s.%N >>"$NOTES"; [ "$(grep -c start "$NOTES")" -ge 3 ] || echo 1.5 >"$HERE/again"'
    job_id = machine.submit(script)
    machine.wait(job_id, "requeued")
    assert machine.wait(job_id, "completed").state == "completed"
    times = [float(line) for line in notes(job_id) if line[0].isdigit()]
    assert len(times) == 3
    assert all(later - earlier >= 1.5 for earlier, later in itertools.pairwise(times))


def test_a_script_that_names_no_pause_runs_again_at_once(machine: Machine) -> None:
    script = 'date +%s.%N >>"$NOTES"; [ "$(grep -c start "$NOTES")" -ge 2 ] || : >"$HERE/again"'
    job_id, found = machine.run(script)
    assert (found.state, len(notes(job_id))) == ("completed", 4)


def test_a_mark_of_a_dead_supervisors_script_counts_no_more(machine: Machine) -> None:
    run = make_run(machine.directory / "r", script=HEAD + "exit 0")
    (run.submission(0).path / "again").touch()
    job_id = machine.backend.submit(run, run.submission(0), bare_environment(PYTHONPATH=str(ROOT)))
    machine.jobs.append(job_id)
    machine.wait(job_id, "completed")
    assert len(notes(job_id)) == 1


def test_a_script_that_asks_to_be_held_waits_for_a_person(machine: Machine) -> None:
    job_id, found = machine.run(': >"$HERE/hold"')
    assert found.state == "held"
    assert not machine.backend.requeue(job_id, found)  # it must be submitted anew


def test_the_warning_comes_before_the_wall_time_and_to_the_shell_alone(machine: Machine) -> None:
    script = "trap 'note warned; exit 0' USR2; sleep 60 & child=$!; note child $child; wait $child"
    started = time.monotonic()
    job_id, found = machine.run(script, walltime_s=62, stop_lead_s=60)
    assert found.state == "completed"
    assert 1.8 < time.monotonic() - started < 30
    assert [line.split()[0] for line in notes(job_id)] == ["start", "child", "warned"]
    assert not is_running(noted_pid(job_id, "child"))


def test_the_wall_time_ends_the_script_and_what_it_started(machine: Machine) -> None:
    script = "trap 'note ended; exit 7' TERM; trap '' USR2; sleep 30 & note child $!; wait; wait; note late"
    job_id, found = machine.run(script, walltime_s=2, stop_lead_s=0.5, kill_wait_s=30)
    assert (found.state, found.reason) == ("timeout", "the batch script ended with code 7")
    assert [line.split()[0] for line in notes(job_id)] == ["start", "child", "ended"]
    assert not is_running(noted_pid(job_id, "child"))
    assert "the wall time is over" in submission_of(job_id).batch_log.read_text()


def test_a_script_that_will_not_end_is_killed_after_the_kill_wait(machine: Machine) -> None:
    script = "trap '' TERM USR2; sleep 60 & note child $!; while :; do sleep 1; done"
    started = time.monotonic()
    job_id, found = machine.run(script, walltime_s=2, stop_lead_s=0.2, kill_wait_s=0.5)
    assert (found.state, found.reason) == ("timeout", "the batch script ended with code -9")
    assert time.monotonic() - started < 30
    assert not is_running(noted_pid(job_id, "start"))
    assert not is_running(noted_pid(job_id, "child"))


def test_an_attempt_that_saved_at_its_wall_time_goes_on(machine: Machine) -> None:
    script = (
        'trap \': >"$HERE/again"; exit 0\' TERM; trap "" USR2; [ $(grep -c start "$NOTES") -eq 2 ] || sleep 30 & wait'
    )
    job_id, found = machine.run(script, walltime_s=2, stop_lead_s=0.2, kill_wait_s=30)
    assert found.state == "completed"
    assert len(notes(job_id)) == 2


def test_what_an_ended_script_leaves_behind_is_reaped(machine: Machine) -> None:
    # a session of its own, and a grandchild: no signal to the script's group reaches them
    far = 'setsid bash -c \'echo far $$ >>"$0"; sleep 60 & wait\' "$NOTES" &'
    job_id, found = machine.run(f'{far} until grep -q far "$NOTES"; do sleep 0.02; done; exit 0')
    assert found.state == "completed"
    assert not is_running(noted_pid(job_id, "far"))


def test_cancel_leaves_no_process(machine: Machine) -> None:
    job_id = machine.submit("sleep 60 & note child $!; setsid sleep 60 & note far $!; wait")
    pids = [noted_pid(job_id, word) for word in ("start", "child", "far")]
    record = read_record(submission_of(job_id))
    assert record is not None and is_running(record.pid)
    machine.backend.cancel(job_id)
    assert machine.state(job_id).state == "cancelled"
    assert not [pid for pid in pids if is_running(pid)]
    wait_for(lambda: not is_running(record.pid), "the supervisor has ended")
    machine.backend.cancel(job_id)  # once more is no error


def test_a_job_that_is_cancelled_between_attempts_does_not_start_again(machine: Machine) -> None:
    job_id = machine.submit('echo 60 >"$HERE/again"')
    found = machine.wait(job_id, "requeued")
    starts = datetime.fromisoformat(found.reason.removeprefix("the next attempt starts at "))
    assert 0 < (starts - datetime.now()).total_seconds() <= 60
    machine.backend.cancel(job_id)
    assert machine.state(job_id).state == "cancelled"
    assert len(notes(job_id)) == 1


def test_a_killed_supervisor_is_unknown_and_its_script_ends(machine: Machine) -> None:
    job_id = machine.submit("trap 'note ended; exit 1' TERM; sleep 60 & wait")
    pid = noted_pid(job_id, "start")
    record = read_record(submission_of(job_id))
    assert record is not None
    os.kill(record.pid, signal.SIGKILL)
    wait_for(lambda: not is_running(pid), "the script has ended")
    found = machine.state(job_id)
    assert (found.state, found.raw) == ("unknown", "running")
    assert found.reason == "its supervisor is gone: it was killed, or the machine was restarted"
    assert "ended" in notes(job_id)
    assert not machine.backend.requeue(job_id, found)
    machine.backend.cancel(job_id)  # nothing to end, no error


def test_a_second_supervisor_refuses(machine: Machine) -> None:
    job_id = machine.submit("sleep 60 & wait")
    run = submission_of(job_id).path.parent
    argv = [sys.executable, "-m", "hpc_train", "supervise", str(run), "--submission", "0"]
    second = subprocess.run(argv, capture_output=True, text=True, timeout=60, cwd=ROOT)
    assert (second.returncode, second.stderr) == (69, "hpc-train: this submission has a supervisor already\n")
    assert machine.state(job_id).state == "running"
    assert len(notes(job_id)) == 1


def test_who_only_asks_for_the_lock_is_not_taken_for_a_supervisor(tmp_path: Path) -> None:
    submission = make_run(tmp_path / "r").submission(0)
    assert not is_locked(submission)
    with hold_lock(submission) as is_mine:
        assert is_mine and is_locked(submission)
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            assert not is_locked(submission)

    asker = threading.Thread(target=ask)
    asker.start()
    try:
        for _ in range(200):
            assert not is_locked(submission)  # two askers do not see each other
    finally:
        stop.set()
        asker.join()
    with hold_lock(submission) as is_mine:
        assert is_mine


def write_record_of(submission: SubmissionDir, **changes: Any) -> None:
    record = {
        "pid": os.getpid(),
        "started": process_start(os.getpid()),
        "host": socket.gethostname(),
        "state": "running",
    }
    (submission.path / "supervisor.json").write_text(json.dumps({**record, **changes}))


@pytest.fixture
def bystander() -> Iterator[subprocess.Popen[bytes]]:
    """A process that nobody may signal."""
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait(timeout=10)


def test_a_recycled_pid_is_never_signalled(machine: Machine, bystander: subprocess.Popen[bytes]) -> None:
    submission = make_run(machine.directory / "r").submission(0)
    write_record_of(submission, pid=bystander.pid, started=1)
    with hold_lock(submission) as is_mine:
        assert is_mine
        with pytest.raises(SchedulerError, match="no longer the run's supervisor"):
            machine.backend.cancel(f"local:{submission.path}")
    assert machine.state(f"local:{submission.path}").state == "unknown"
    machine.backend.cancel(f"local:{submission.path}")  # the lock is free: nothing is there to be ended
    assert bystander.poll() is None


def test_a_supervisor_of_another_host_is_asked_there(machine: Machine) -> None:
    submission = make_run(machine.directory / "r").submission(0)
    write_record_of(submission, host="elsewhere")
    assert machine.state(f"local:{submission.path}").reason == "its supervisor is on elsewhere; ask there"
    with hold_lock(submission), pytest.raises(SchedulerError, match="is on elsewhere; cancel it there"):
        machine.backend.cancel(f"local:{submission.path}")


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"pid": "1"}', '{"pid": 1, "started": 1, "host": 2, "state": "running"}']
)
def test_a_damaged_record_is_unknown(machine: Machine, text: str) -> None:
    submission = make_run(machine.directory / "r").submission(0)
    (submission.path / "supervisor.json").write_text(text)
    assert machine.state(f"local:{submission.path}").state == "unknown"


@pytest.mark.parametrize("job_id", ["local:relative/submission-00", "local:/x/y", "4711", "local:"])
def test_an_id_that_is_none_of_ours_is_unknown_and_cannot_be_cancelled(machine: Machine, job_id: str) -> None:
    with pytest.raises(SchedulerError, match="not the id of a local job"):
        machine.backend.cancel(job_id)
    assert machine.state(job_id).state == "unknown"  # and hides no other run's


def test_a_supervisor_that_cannot_start_says_why_and_is_gone(machine: Machine) -> None:
    run: RunDir = make_run(machine.directory / "r")
    run.submission(0).launch.write_text("{}")
    with pytest.raises(SchedulerError, match=r"did not start: .*KeyError: 'walltime_s'"):
        machine.backend.submit(run, run.submission(0), bare_environment(PYTHONPATH=str(ROOT)))


def test_process_start_tells_two_processes_of_one_pid_apart(bystander: subprocess.Popen[bytes]) -> None:
    assert process_start(os.getpid()) == process_start(os.getpid())
    assert (process_start(bystander.pid) or 0) > (process_start(1) or 0)
    assert process_start(2**22 + 1) is None


@pytest.mark.parametrize("is_asked", [True, False])
def test_only_a_run_that_nobody_cancelled_is_said_to_have_lost_its_supervisor(machine: Machine, is_asked: bool) -> None:
    job_id = machine.submit("sleep 60")
    submission = submission_of(job_id)
    noted_pid(job_id, "start")
    if is_asked:
        RunDir(submission.path.parent).cancelled.touch()
    record = read_record(submission)
    assert record is not None
    os.kill(record.pid, signal.SIGTERM)
    state = machine.wait(job_id, "cancelled")
    assert state.reason == ("" if is_asked else "its supervisor was told to end, as when the machine shuts down")


@pytest.mark.timeout(20)
def test_a_pipe_in_place_of_a_supervisors_lock_keeps_nobody_waiting(tmp_path: Path) -> None:
    submission = make_run(tmp_path / "r").submission(0)
    os.mkfifo(submission.path / "supervisor.lock")
    assert not is_locked(submission)
