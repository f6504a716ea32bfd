"""`clean` removes what has ended, and nothing else, whatever interrupts it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from hpc_train.run.index import read_index
from hpc_train.run.layout import RunDir
from hpc_train.run.turn import hold_turn
from tests.cli.conftest import Shell
from tests.cli.terminal import Terminal
from tests.scheduler.making import make_attempt, note_submitted, recorded, write_program

DONE = {"word": "done", "failure": "done", "reason": "all ranks ended cleanly"}


def finish(shell: Shell, name: str, job_id: str, **decision: Any) -> RunDir:
    """An ended run with a log, a journal and a checkpoint."""
    run = shell.make_run(name, job_id)
    attempt = make_attempt(run, **(decision or DONE))
    (attempt.logs / "n1.log").write_bytes(b"x" * 20_000)
    (run.journal / "rank0-000.jsonl").write_bytes(b"x" * 30_000)
    (run.checkpoints / "step-000000001").mkdir(parents=True)
    (run.checkpoints / "step-000000001" / "data-00000").write_bytes(b"x" * 100_000)
    run.submission(0).batch_log.write_text("batch\n")
    return run


def make_old(run: RunDir, days: float) -> None:
    moment = time.time() - days * 86400
    for path in [*run.path.rglob("*"), run.path]:
        os.utime(path, (moment, moment), follow_symlinks=False)


@pytest.fixture
def ended(shell: Shell) -> RunDir:
    """The run r, which has completed."""
    return finish(shell, "r", "7")


def test_an_ended_run_is_removed_with_its_entry_in_the_index(shell: Shell, ended: RunDir) -> None:
    finish(shell, "other", "8")
    out = shell.ok("clean", "r", "--yes")
    assert out.splitlines()[-1] == "r removed"
    assert os.listdir(ended.path.parent) == ["other"]
    assert [entry.name for entry in read_index(shell.environ)] == ["other"]


def test_what_goes_is_shown_first_and_a_dry_run_shows_only(shell: Shell, ended: RunDir) -> None:
    before = shell.contents()
    header, row = shell.ok("clean", "r", "--dry-run").splitlines()
    shown = dict(zip(header.split("\t"), row.split("\t"), strict=True))
    assert (shown["run"], shown["state"]) == ("r", "completed")
    assert shown["checkpoints"].endswith("KiB") and float(shown["checkpoints"].split()[0]) >= 100
    assert float(shown["logs"].split()[0]) >= 20 and int(shown["files"]) >= 10
    assert shell.contents() == before


@pytest.mark.parametrize(("answer", "is_gone"), [("y\n", True), ("n\n", False), ("\n", False), ("\x03", False)])
def test_a_person_is_asked(shell: Shell, ended: RunDir, answer: str, is_gone: bool) -> None:
    terminal = Terminal(shell.argv("clean", "r"), cwd=shell.directory, environ=shell.environ)
    terminal.wait_for(lambda text: "[y/N]" in text)
    assert "KiB" in terminal.plain
    terminal.type(answer)
    assert terminal.end() == (0 if is_gone else 130)
    assert ended.path.exists() != is_gone


def test_where_nobody_can_be_asked_nothing_is_removed(shell: Shell, ended: RunDir) -> None:
    done = shell.run("clean", "r")
    assert done.returncode == 2 and "give --yes" in done.stderr
    assert ended.path.exists()


@pytest.mark.parametrize(
    ("queued", "decision", "said"),
    [
        ("7|RUNNING|n1|None", {}, "its job 7 is running"),
        ("7|PENDING||BeginTime", {"word": "again"}, "its job 7 is pending"),
        ("7|COMPLETING|n1|None", DONE, "its job 7 is completing"),
        ("7|PENDING||JobHeldUser", {"word": "hold"}, "it is held and can go on"),
        ("", {"word": "hold"}, "it is held and can go on"),
        ("", {"word": "again"}, "nobody knows whether it has ended"),
        ("", {}, "nobody knows whether it has ended"),
    ],
)
@pytest.mark.parametrize("words", [["r"], ["--older", "0s"]], ids=" ".join)
def test_a_run_that_may_go_on_stays(
    shell: Shell, queued: str, decision: dict[str, Any], said: str, words: list[str]
) -> None:
    run = shell.make_run("r", "7")
    make_attempt(run, **decision)
    shell.queue(*[queued] if queued else [])
    done = shell.run("clean", *words, "--yes")
    assert run.path.exists()
    assert done.returncode == (78 if words == ["r"] else 0)
    assert (said in done.stderr) == (words == ["r"])


def test_a_run_whose_scheduler_does_not_answer_stays(shell: Shell, ended: RunDir) -> None:
    ended.cancelled.touch()
    write_program(shell.bin, "squeue", "echo 'Socket timed out' >&2; exit 1")
    done = shell.run("clean", "r", "--yes")
    assert done.returncode == 78 and "does not answer" in done.stderr
    assert ended.path.exists()


def test_a_local_run_of_another_machine_stays(shell: Shell) -> None:
    run = shell.make_run("r")
    note_submitted(run.submission(0), f"local:{run.submission(0).path}", scheduler="local", site="local")
    record = {"pid": 1, "started": 1, "host": "elsewhere", "state": "running", "reason": ""}
    (run.submission(0).path / "supervisor.json").write_text(json.dumps(record))
    run.cancelled.touch()  # `cancel` had marked it before it learned that it cannot reach it
    done = shell.run("clean", "r", "--yes")
    assert "it ran on elsewhere" in done.stderr
    assert run.path.exists()


def test_a_live_job_of_an_earlier_submission_keeps_the_run(shell: Shell, ended: RunDir) -> None:
    ended.submission(1).path.mkdir()
    note_submitted(ended.submission(1), "8")
    ended.cancelled.touch()
    shell.queue("7|RUNNING|n1|None", "8|COMPLETED|n1|None")
    done = shell.run("clean", "r", "--yes")
    assert done.returncode == 78 and "its earlier job 7 is running" in done.stderr
    assert ended.path.exists()


def test_a_job_that_is_in_no_record_keeps_the_run(shell: Shell, ended: RunDir) -> None:
    # As of a successor whose registration was cut short.
    write_program(
        shell.bin, "squeue", 'case "$*" in *%k*) echo "9|hpc-train:r/00+001" ;; *) cat "${0%/*}/queue" ;; esac'
    )
    done = shell.run("clean", "r", "--yes")
    assert done.returncode == 78 and "its job 9, which is in no record, is in the queue" in done.stderr
    assert ended.path.exists()


def test_a_run_that_another_command_works_on_stays(shell: Shell, ended: RunDir) -> None:
    with hold_turn(ended) as is_held:
        assert is_held
        done = shell.run("clean", "r", "--yes")
    assert done.returncode == 78 and "another command is at work on it" in done.stderr
    assert ended.path.exists()


def test_only_old_runs_are_old(shell: Shell) -> None:
    for name, job_id, days in (("old", "1", 40), ("young", "2", 2), ("alive", "3", 40)):
        make_old(finish(shell, name, job_id), days)
    shell.queue("3|RUNNING|n1|None")
    assert shell.ok("clean", "--older", "30d", "--yes").splitlines()[-1] == "old removed"
    assert sorted(os.listdir(shell.directory / "runs")) == ["alive", "young"]


def test_checkpoints_and_what_is_known_of_the_run_can_stay(shell: Shell, ended: RunDir) -> None:
    (ended.checkpoints / "step-000000001" / "COMMIT").touch()
    assert shell.ok("clean", "r", "--keep-checkpoints", "--yes").endswith("r has its checkpoints and records only\n")
    left = {str(path.relative_to(ended.path)) for path in ended.path.rglob("*") if path.is_file()}
    assert "checkpoints/step-000000001/data-00000" in left and "attempt-000/decision.json" in left
    assert not [name for name in left if name.endswith(".log") or name.startswith("journal/")]
    (status,) = shell.json("status", "r")
    assert (status["state"], status["last_commit"]) == ("completed", 1)
    assert "last commit: step 1;" in shell.ok("why", "r")
    shell.ok("clean", "r", "--keep-checkpoints", "--yes")  # twice is no error


def test_of_a_run_without_checkpoints_only_records_stay(shell: Shell) -> None:
    make_attempt(shell.make_run("r", "7"), word="done", failure="done")
    shell.queue("7|COMPLETED|n1|None")
    assert shell.ok("clean", "r", "--keep-checkpoints", "--yes").endswith("r has its records only\n")


def test_links_are_removed_and_never_followed(shell: Shell, ended: RunDir, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "file").write_text("mine")
    (ended.path / "link").symlink_to(precious)
    (ended.attempt(0).logs / "data").symlink_to(precious)
    (ended.attempt(0).path / "ready").rmdir()
    (ended.attempt(0).path / "ready").symlink_to(precious)
    shell.ok("clean", "r", "--keep-checkpoints", "--yes")
    assert (precious / "file").read_text() == "mine"
    shell.ok("clean", "r", "--yes")
    assert not ended.path.exists() and (precious / "file").read_text() == "mine"


def test_a_run_directory_that_is_a_link_stays(shell: Shell, ended: RunDir, tmp_path: Path) -> None:
    ended.path.rename(tmp_path / "real")
    ended.path.symlink_to(tmp_path / "real")
    for words in (["r"], [str(ended.path)], [str(ended.path), "--keep-checkpoints"]):
        done = shell.run("clean", *words, "--yes")
        assert done.returncode != 0 and "it is a link" in done.stderr
    assert (tmp_path / "real" / "checkpoints" / "step-000000001" / "data-00000").exists()


def test_an_interrupted_removal_is_finished_by_the_next(shell: Shell, ended: RunDir) -> None:
    for number in range(20_000):  # a second's work, seen by a poll that never sleeps long
        (ended.attempt(0).logs / f"n{number}.log").touch()
    # Nice to who looks: of a busy machine it gets no more than the test.
    argv = ["nice", "-n", "5", *shell.argv("clean", "r", "--yes")]
    process = subprocess.Popen(argv, cwd=shell.directory, env=shell.environ)
    half = ended.path.with_name(".deleting-r.hpc-train")
    while not half.exists():
        assert process.poll() is None, "it was over before it was seen"
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    process.wait(30)
    assert half.exists(), "it was too fast to be interrupted"
    assert not ended.path.exists()
    assert shell.json("status") == []
    foreign = ended.path.parent / ".deleting-mine"
    foreign.mkdir()
    assert "removal interrupted" in shell.ok("clean", "--yes")
    assert os.listdir(ended.path.parent) == [".deleting-mine"]


def test_entries_of_vanished_runs_go_and_those_of_a_lost_file_system_stay(shell: Shell, ended: RunDir) -> None:
    gone = shell.make_run("gone", "8")
    gone.path.rename(gone.path.with_name("moved"))
    away = shell.directory / "scratch"
    (shell.directory / "runs").rename(away)
    assert shell.ok("clean") == "nothing to remove\n"
    assert len(read_index(shell.environ)) == 2  # nothing is mounted at runs/
    away.rename(shell.directory / "runs")
    shell.ok("clean")
    assert [entry.name for entry in read_index(shell.environ)] == ["r"]


def test_the_list_is_by_size(shell: Shell) -> None:
    finish(shell, "small", "1")
    big = finish(shell, "big", "2")
    (big.checkpoints / "step-000000001" / "data-00001").write_bytes(b"x" * 3_000_000)
    done = shell.run("clean", "--list")
    assert [line.split("\t")[0] for line in done.stdout.splitlines()] == ["run", "big", "small"]
    assert "2 runs, 3." in done.stderr
    assert "scancel" not in " ".join(recorded(shell.bin / "calls"))


@pytest.mark.parametrize("text", ["30", "x", "-1d"])
def test_an_age_that_is_none_is_refused(shell: Shell, ended: RunDir, text: str) -> None:
    assert shell.run("clean", f"--older={text}", "--yes").returncode == 78
    assert ended.path.exists()
