"""`cancel` and `requeue` against a Slurm of stand-ins: in which order things happen, and what stays."""

from __future__ import annotations

import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from hpc_train.errors import Superseded
from hpc_train.files import read_json, write_json
from hpc_train.run.jobs import record_job
from hpc_train.run.journal import Journal, read_journal
from hpc_train.run.layout import RunDir
from hpc_train.run.ownership import check_ownership, take_ownership
from tests.cli.conftest import Shell
from tests.scheduler.making import make_attempt, recorded, wait_for, write_program


@pytest.fixture
def run(shell: Shell) -> RunDir:
    """A run that Slurm runs as job 7."""
    shell.queue("7|RUNNING|n1|None")
    return shell.make_run("r", "7")


def calls(shell: Shell) -> list[str]:
    return [call for call in recorded(shell.bin / "calls") if call != "scontrol ping"]


def events(run: RunDir) -> list[str]:
    return [event.event for event in read_journal(run)]


def test_cancel_marks_the_run_before_it_asks_the_scheduler(shell: Shell, run: RunDir) -> None:
    # A job that asks for its requeue at this very instant finds the mark when it starts.
    write_program(
        shell.bin, "squeue", f'[ -e "{run.cancelled}" ] && echo marked >>"{shell.bin}/calls"; cat "${{0%/*}}/queue"'
    )
    assert shell.ok("cancel", "r") == f"r cancelled; it has no checkpoint; its logs stay in {run.path}\n"
    assert calls(shell) == ["marked", "scancel 7", "marked", "marked"]  # looked at before and after, and for others
    assert events(run) == ["cancelled"]


def test_a_full_disk_does_not_keep_a_job_alive(shell: Shell, run: RunDir) -> None:
    limited = ["bash", "-c", 'ulimit -f 0; exec "$@"', "bash", *shell.argv("cancel", "r")]  # every write fails
    (shell.bin / "after").write_text("7|CANCELLED by 0|n1|None\n")
    ends = f'ls >"{shell.bin}/called-$1" 2>/dev/null; mv "{shell.bin}/after" "{shell.bin}/queue"'
    write_program(shell.bin, "scancel", ends)
    done = subprocess.run(limited, cwd=shell.directory, env=shell.environ, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert run.cancelled.exists()
    assert (shell.bin / "called-7").exists()


def test_cancel_ends_the_job_that_waits_for_this_one_too(shell: Shell, run: RunDir) -> None:
    record_job(run.submission(0), "9", attempt=0)
    shell.queue("7|RUNNING|n1|None", "9|PENDING||Dependency")
    shell.ok("cancel", "r")
    assert sorted(calls(shell)) == ["scancel 7", "scancel 9"]


def test_cancel_ends_what_the_queue_holds_of_the_run_though_nobody_noted_it(shell: Shell, run: RunDir) -> None:
    tokens = '*%k*) printf "%s\n" "9|hpc-train:r/00+000" "10|hpc-train:r-2/00" "11|r/00" "12|hpc-train:r/01" ;;'
    write_program(shell.bin, "squeue", f'case "$*" in {tokens} *) cat "${{0%/*}}/queue" ;; esac')
    shell.ok("cancel", "r")
    assert calls(shell) == ["scancel 7", "scancel 9", "scancel 12"]


def test_cancel_finds_the_job_of_a_command_that_was_killed_before_it_could_note_it(shell: Shell) -> None:
    out = shell.ok("submit", "--site", "slurm-cluster", "--", "python", "train.py")
    run = RunDir(Path(out.splitlines()[2].split(maxsplit=1)[1]))
    run.submission(0).submit.unlink()
    write_program(shell.bin, "squeue", f'case "$*" in *%k*) echo "4711|hpc-train:{run.name}/00" ;; esac')
    shell.ok("cancel", str(run.path))
    assert calls(shell)[:1] == ["scancel 4711"]


def test_a_cancel_takes_the_run_away_also_where_the_scheduler_does_not_answer(shell: Shell, run: RunDir) -> None:
    owner = take_ownership(run)
    write_program(shell.bin, "squeue", "echo 'Unable to contact slurm controller' >&2; exit 1")
    shell.fails(69, "cancel", "r")
    with pytest.raises(Superseded, match="was cancelled"):
        check_ownership(run, owner.token)


def test_a_cancel_of_a_completed_run_takes_nothing_away(shell: Shell, run: RunDir) -> None:
    make_attempt(run, word="done", failure="done")
    owner = take_ownership(run)
    write_json(run.attempt(owner.attempt).decision, {**read_json(run.attempt(0).decision)})
    shell.queue("7|COMPLETED|n1|None")
    assert "had completed" in shell.ok("cancel", "r")
    check_ownership(run, owner.token)


def test_a_run_whose_next_job_waits_is_not_requeued(shell: Shell, run: RunDir) -> None:
    record_job(run.submission(0), "9", attempt=0)
    for listed in (("7|RUNNING|n1|None", "9|PENDING||Dependency"), ("7|FAILED|n1|None", "9|PENDING||Priority")):
        shell.queue(*listed)
        assert "it goes on by itself" in shell.fails(78, "requeue", "r")
    assert calls(shell) == []


def test_cancel_twice_is_said_to_be_so(shell: Shell, run: RunDir) -> None:
    shell.ok("cancel", "r")
    shell.queue("7|CANCELLED by 0|n1|None")
    assert shell.ok("cancel", "r") == "r was cancelled already\n"
    assert events(run) == ["cancelled"]


def test_cancel_of_a_completed_run_says_so_and_leaves_it_completed(shell: Shell, run: RunDir) -> None:
    make_attempt(run, word="done", failure="done")
    shell.queue("7|COMPLETED|n1|None")
    assert shell.ok("cancel", "r") == "r had completed; nothing to cancel\n"
    assert shell.json("status", "r")[0]["state"] == "completed"
    assert calls(shell) == []


def test_cancel_of_a_held_run_takes_it_out_of_the_queue(shell: Shell, run: RunDir) -> None:
    make_attempt(run, word="hold", failure="no_space")
    shell.queue("7|PENDING||JobHeldUser")
    shell.ok("cancel", "r")
    assert calls(shell) == ["scancel 7"]
    assert shell.json("status", "r")[0]["state"] == "cancelled"


def test_cancel_of_a_run_that_was_never_submitted_marks_it(shell: Shell) -> None:
    run = shell.make_run("r")
    shell.ok("cancel", "r")
    assert run.cancelled.exists()


def test_a_cancel_that_cannot_reach_the_scheduler_says_what_holds_all_the_same(shell: Shell, run: RunDir) -> None:
    for name in ("squeue", "scancel"):
        write_program(shell.bin, name, "echo 'Unable to contact slurm controller' >&2; exit 1")
    line = shell.fails(69, "cancel", "r")
    assert line.startswith("r does not start again, but its job 7 may still run: squeue failed")
    assert run.cancelled.exists()


def test_a_cancel_that_fails_does_not_stop_the_next(shell: Shell, run: RunDir) -> None:
    shell.make_run("s", "8")
    write_program(shell.bin, "scancel", f'echo "scancel $1" >>"{shell.bin}/calls"; [ "$1" = 8 ]')  # and 7 goes on
    done = shell.run("cancel", "r", "s")
    assert done.returncode == 69
    assert done.stdout.startswith("s cancelled")
    assert [call for call in calls(shell) if call.startswith("scancel")] == ["scancel 7", "scancel 8"]


@pytest.mark.parametrize(
    ("queued", "call"),
    [
        ("7|PENDING||JobHeldUser", "scontrol release 7"),
        ("7|FAILED|n1|NonZeroExitCode", "scontrol requeue 7"),
        ("7|CANCELLED by 0|n1|None", "scontrol requeue 7"),
    ],
)
def test_requeue_takes_the_job_that_slurm_still_has(shell: Shell, run: RunDir, queued: str, call: str) -> None:
    make_attempt(run, word="stop")
    run.cancelled.touch()
    shell.queue(queued)
    assert shell.ok("requeue", "r") == "r goes on as job 7\n"
    assert calls(shell) == [call]
    assert not run.cancelled.exists()
    asked = read_journal(run)[-1]
    assert (asked.event, asked.fields["after_attempt"]) == ("requeue_asked", 0)


@pytest.mark.parametrize(
    ("is_seen_here", "was_refused", "knew"), [(True, False, False), (True, True, True), (False, False, True)]
)
def test_requeue_notes_whether_its_person_knew_that_the_checkpoints_are_gone(
    shell: Shell, run: RunDir, *, is_seen_here: bool, was_refused: bool, knew: bool
) -> None:
    attempt = make_attempt(run, word="hold")
    Journal(run, "rank0", 0).append("commit", step=30, path=str(run.checkpoints / "step-000000030"))
    if is_seen_here:
        (run.checkpoints / "step-000000030").mkdir(parents=True)
    if was_refused:
        attempt.not_continued.write_text("not started again: they are gone on n1")
    shell.queue("7|PENDING||JobHeldUser")
    assert shell.run("requeue", "r").returncode == 0
    asked = [event.fields["knew_gone"] for event in read_journal(run) if event.event == "requeue_asked"]
    assert asked == [knew]


def test_requeue_of_a_run_that_slurm_forgot_is_a_new_job(shell: Shell) -> None:
    out = shell.ok("submit", "--site", "slurm-cluster", "--", "python", "train.py")
    run = RunDir(Path(out.splitlines()[2].split(maxsplit=1)[1]))
    make_attempt(run, word="stop")
    write_program(shell.bin, "scontrol", "echo 'Invalid job id specified' >&2; exit 1")
    write_program(shell.bin, "sbatch", "echo 4712")
    assert shell.ok("requeue", run.name) == f"{run.name} goes on as job 4712\n"
    shell.queue("4712|PENDING||Priority")
    (status,) = shell.json("status", "4712")
    assert (status["run"], status["state"], status["job_id"]) == (run.name, "pending", "4712")


@pytest.mark.parametrize(
    ("queued", "said"),
    [
        ("7|RUNNING|n1|None", "its job 7 is running; it goes on by itself"),
        ("7|PENDING||Priority", "its job 7 is pending; it goes on by itself"),
        ("7|COMPLETING|n1|None", "its job 7 is completing; ask again once it has ended"),
    ],
)
def test_requeue_of_a_live_run_is_refused(shell: Shell, run: RunDir, queued: str, said: str) -> None:
    shell.queue(queued)
    assert said in shell.fails(78, "requeue", "r")
    assert calls(shell) == [] and events(run) == []


def test_requeue_of_a_completed_run_is_refused(shell: Shell, run: RunDir) -> None:
    make_attempt(run, word="done", failure="done")
    shell.queue("7|COMPLETED|n1|None")
    assert "has completed; there is nothing left to do" in shell.fails(78, "requeue", "r")


def test_requeue_of_a_run_that_may_be_running_is_refused(shell: Shell, run: RunDir) -> None:
    write_program(shell.bin, "squeue", "echo 'Socket timed out on send/recv operation' >&2; exit 1")
    assert "Socket timed out" in shell.fails(69, "requeue", "r")
    assert calls(shell) == []


def test_a_cancelled_run_whose_requeue_fails_stays_cancelled(shell: Shell, run: RunDir) -> None:
    run.cancelled.touch()
    shell.queue("7|CANCELLED by 0|n1|None")
    write_program(shell.bin, "scontrol", "echo 'Unable to contact slurm controller' >&2; exit 1")
    shell.fails(69, "requeue", "r")
    assert run.cancelled.exists()


def test_an_interrupt_is_one_line_and_130(shell: Shell, run: RunDir) -> None:
    write_program(shell.bin, "squeue", f': >"{shell.bin}/asked"; exec sleep 60')
    process = subprocess.Popen(
        shell.argv("status"),
        cwd=shell.directory,
        env=shell.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for((shell.bin / "asked").exists, "squeue is asked")
    process.send_signal(signal.SIGINT)
    out, said = process.communicate(timeout=30)
    assert (process.returncode, out, said) == (130, "", "hpc-train: interrupted\n")


def test_an_interrupted_submit_leaves_nothing(shell: Shell) -> None:
    write_program(shell.bin, "sbatch", f': >"{shell.bin}/asked"; exec sleep 60')
    before = shell.contents()
    process = subprocess.Popen(
        shell.argv("submit", "--site", "slurm-cluster", "--", "python", "train.py"),
        cwd=shell.directory,
        env=shell.environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    wait_for((shell.bin / "asked").exists, "sbatch is asked")
    process.send_signal(signal.SIGINT)
    out, said = process.communicate(timeout=30)
    assert (process.returncode, out, said) == (130, "", "hpc-train: interrupted\n")
    assert shell.contents() == before


@pytest.mark.parametrize("words", [("requeue", "r"), ("resume", "r", "--nodes", "2")])
def test_a_job_that_the_site_holds_is_not_got_round_by_a_new_one(
    shell: Shell, run: RunDir, words: tuple[str, ...]
) -> None:
    shell.queue("7|PENDING||JobHeldAdmin")
    line = shell.fails(78, *words)
    assert "ask the site" in line and "job 7" in line
    assert not [call for call in calls(shell) if call.startswith(("sbatch", "scontrol release", "scancel"))]
    assert run.submissions()[-1].number == 0


def test_a_cancel_of_a_run_that_had_failed_keeps_the_failure_in_sight(shell: Shell) -> None:
    run = shell.make_run("r", "7")
    make_attempt(run, reason="KeyError: 'x'")
    shell.queue("7|FAILED|n1|None")
    Journal(run, "rank0", 0).append("commit", step=10, path="x", bytes=1)
    assert shell.ok("cancel", "r") == (
        f"r had ended already (failed), and is cancelled; its checkpoints stay in {run.path}\n"
    )
    (status,) = shell.json("status", "r")
    assert (status["state"], status["reason"]) == ("cancelled", "failed, then cancelled: KeyError: 'x'")
    out = shell.ok("why", "r").splitlines()
    assert any(line.startswith("state     failed, then cancelled") for line in out)
    assert out[-1].startswith("next      nothing, since it was cancelled after its end; to go on after a repair: ")


@pytest.mark.parametrize("state", ["RUNNING|n1|None", "PENDING||JobHeldUser"])
def test_a_copy_of_a_run_leaves_the_job_of_its_original_alone(shell: Shell, state: str) -> None:
    out = shell.ok("submit", "--site", "slurm-cluster", "--", "python", "train.py")
    run = RunDir(Path(out.splitlines()[2].split(maxsplit=1)[1]))
    job_id = read_json(run.submission(0).submit)["job_id"]
    copy = run.path.with_name("copy")
    shutil.copytree(run.path, copy)
    shell.queue(f"{job_id}|{state}")
    before = calls(shell)
    for words in (["cancel"], ["requeue"], ["resume"]):
        assert (
            f"{copy} is a copy, and " in (said := shell.fails(78, *words, copy)) and f" is that of {run.path}" in said
        )
    assert calls(shell) == before and not (copy / "cancelled").exists()
    moved = run.path.with_name("moved")
    copy.rename(moved)
    shutil.rmtree(run.path)
    assert shell.ok("cancel", moved).startswith("moved cancelled; ")  # it is the run now
    assert calls(shell)[len(before) :] == [f"scancel {job_id}"]
