"""`status` for people: what the columns say, on any terminal, once or again and again."""

from __future__ import annotations

import json
import signal
import subprocess
import time
from pathlib import Path

import pytest

from hpc_train.cli.text import align, human_duration
from hpc_train.run.journal import Journal
from hpc_train.run.layout import RunDir
from tests.cli.conftest import Shell
from tests.cli.terminal import Terminal
from tests.scheduler.making import launch_of, make_attempt, recorded, wait_for, write_program


def train(shell: Shell, name: str = "r", job_id: str = "7") -> RunDir:
    """A run in its second attempt: 60 of 100 steps done, ten a second, a checkpoint, half an hour of wall time."""
    run = shell.make_run(name, job_id)
    run.submission(0).launch.write_text(json.dumps(launch_of(walltime_s=1800)))
    make_attempt(run, 0, word="again", failure="stopped", reason="saved")
    make_attempt(run, 1)
    Journal(run, "batch", 1).append("attempt_started", submission=0)
    journal = Journal(run, "rank0", 1)
    journal.append("progress", total_steps=100)
    for step in range(41, 61):
        seconds = 50.0 if step == 41 else 0.1  # the first waits for data and compiles
        journal.append("step", step=step, loss=100 / step, samples=64, seconds=seconds)
        if step == 50:
            journal.append("commit", step=50, path="x")
    shell.queue(f"{job_id}|RUNNING|n1|None")
    return run


def row_of(shell: Shell, *words: str) -> dict[str, str]:
    header, row = shell.ok("status", *words).splitlines()
    return dict(zip(header.split("\t"), row.split("\t"), strict=True))


def test_the_table_says_how_far_how_fast_and_how_long(shell: Shell) -> None:
    train(shell)
    row = row_of(shell)
    assert (row["step"], row["done"], row["speed"], row["loss"]) == ("60/100", "60%", "640 samples/s", "1.6667")
    assert (row["saved"], row["eta"], row["attempts"]) == ("50", "4s", "2")
    assert row["ago"] in [f"{n}s" for n in range(30)]
    assert row["left"] == "30m" or row["left"].startswith("29m")


def test_json_says_the_same_in_numbers(shell: Shell) -> None:
    train(shell)
    (status,) = shell.json("status")
    assert (status["progress"], status["steps_per_s"], status["samples_per_s"]) == (0.6, 10.0, 640.0)
    assert (status["eta_s"], status["walltime_s"]) == (4.0, 1800.0)
    assert 1700 < status["walltime_left_s"] <= 1800
    assert 0 <= status["last_step_age_s"] < 60 and 0 <= status["last_commit_age_s"] < 60
    assert abs(status["started"] - time.time()) < 60


def test_a_run_that_has_ended_has_no_time_left(shell: Shell) -> None:
    make_attempt(train(shell), 2, word="done", failure="done", reason="all ranks ended cleanly")
    shell.queue("7|COMPLETED|n1|None")
    row = row_of(shell)
    assert (row["state"], row["left"], row["eta"]) == ("completed", "-", "-")
    assert shell.json("status")[0]["walltime_left_s"] is None


def test_steps_a_second_where_no_samples_were_told(shell: Shell) -> None:
    run = shell.make_run("r", "7")
    make_attempt(run)
    for step in range(1, 4):
        Journal(run, "rank0", 0).append("step", step=step, samples=0, seconds=4.0)
    shell.queue("7|RUNNING|n1|None")
    row = row_of(shell)
    assert (row["speed"], row["step"], row["done"], row["eta"], row["loss"]) == ("0.25 steps/s", "3", "-", "-", "-")


@pytest.mark.parametrize("width", [40, 60, 80, 100, 140, 200])
def test_narrow_terminals_lose_columns_in_their_order(shell: Shell, width: int) -> None:
    train(shell, "train-20260101-120000-abcdef")
    terminal = Terminal(shell.argv("status"), cwd=shell.directory, environ=shell.environ, columns=width)
    assert terminal.end() == 0
    header, row = terminal.plain.splitlines()
    shown = header.split()
    assert row.startswith("train-20260101-120000-abcdef  ") and {"run", "state", "step"} <= set(shown)
    assert max(len(header), len(row)) <= width or width == 40
    order = ["site", "job", "attempts", "speed", "loss", "left", "ago", "saved", "done", "eta"]
    kept = [name in shown for name in order]
    assert kept == sorted(kept), f"{header}: a column of less worth is shown"
    assert all(kept) == (width >= 140)


def test_no_color_means_no_escape_sequences(shell: Shell) -> None:
    train(shell)
    environ = {**shell.environ, "NO_COLOR": "1", "TERM": "dumb"}
    terminal = Terminal(shell.argv("status"), cwd=shell.directory, environ=environ)
    assert terminal.end() == 0
    assert "\x1b" not in terminal.text and "running" in terminal.text


@pytest.mark.parametrize(
    "locale",
    [
        {"LC_ALL": "C"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"PYTHONIOENCODING": "ascii:strict"},
        {"PYTHONIOENCODING": "latin-1"},
        {"LC_ALL": "nosuch_XX.UTF-8"},
    ],
    ids=str,
)
def test_no_locale_makes_it_crash(shell: Shell, locale: dict[str, str]) -> None:
    run = train(shell)
    make_attempt(run, 2, reason="Zürich ✗ 😀 \udcff " * 9)
    environ = {**shell.environ, **locale}
    for words in (["status"], ["why", "r"], ["status", "--json"], ["status", "Zürich"]):
        done = subprocess.run(shell.argv(*words), cwd=shell.directory, env=environ, capture_output=True, timeout=60)
        assert done.returncode == (78 if words[-1] == "Zürich" else 0), done.stderr
        assert b"Traceback" not in done.stderr
        terminal = Terminal(shell.argv(*words), cwd=shell.directory, environ=environ, columns=70)
        assert terminal.end() == done.returncode, terminal.text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (44.7, "45s"), (432, "7m12s"), (7509, "2h5m"), (7199.9, "2h"), (273_700, "3d4h"), (8_640_000, "100d")],
)
def test_durations_have_two_units(seconds: float, text: str) -> None:
    assert human_duration(seconds) == text


def test_aligned_rows() -> None:
    assert align([["a", "bb"], ["ccc", "d"]]) == ["a    bb", "ccc  d"]


# ---- --watch


def watch(shell: Shell, *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        shell.argv("status", "--watch", "0.5", *words),
        cwd=shell.directory, env=shell.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def test_watching_ends_by_itself_once_all_have_ended(shell: Shell) -> None:
    run = train(shell)
    process = watch(shell, "--fresh")
    assert process.stdout is not None
    for expected in ("20", "run\t", "r\t7\tslurm\trunning"):
        assert process.stdout.readline().startswith(expected)
    shell.queue("7|PENDING||BeginTime")  # between two attempts nothing has ended
    wait_for(lambda: "\tpending\t" in process.stdout.readline(), "it is seen to wait")  # type: ignore[union-attr]
    make_attempt(run, 2, word="done", failure="done", reason="all ranks ended cleanly")
    shell.queue("7|COMPLETED|n1|None")
    out, said = process.communicate(timeout=30)
    assert (process.returncode, said) == (0, "")
    assert out.splitlines()[-1].startswith("r\t7\tslurm\tcompleted")


def test_watching_does_not_take_silence_for_the_end(shell: Shell) -> None:
    train(shell)
    write_program(shell.bin, "squeue", "echo 'Socket timed out' >&2; exit 1")
    process = watch(shell, "--json")
    assert process.stdout is not None
    (status,) = json.loads(process.stdout.readline())  # one line a look
    assert status["state"] == "unknown"
    json.loads(process.stdout.readline())
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 130


def test_on_a_terminal_the_table_changes_in_its_place_and_ctrl_c_ends_no_run(shell: Shell) -> None:
    run = train(shell)
    argv = shell.argv("status", "--watch", "r")  # no seconds, so r is the run
    terminal = Terminal(argv, cwd=shell.directory, environ=shell.environ, columns=150)
    terminal.wait_for(lambda text: "60/100" in text)
    Journal(run, "rank0", 1).append("step", step=61, loss=1.0, samples=64, seconds=0.1)
    terminal.wait_for(lambda text: "61/100" in text)
    assert "\x1b[1A" in terminal.text  # the cursor went up
    terminal.type("\x03")
    assert terminal.end() == 130
    assert "no longer watching; the runs go on" in terminal.plain
    assert not any("scancel" in call for call in recorded(shell.bin / "calls"))
    assert not run.cancelled.exists()


@pytest.mark.parametrize("seconds", ["0", "4711"])
def test_a_time_that_may_be_a_job_id_is_refused(shell: Shell, seconds: str) -> None:
    line = shell.fails(2, "status", "--watch", seconds)
    assert f"hpc-train status {seconds} --watch" in line


@pytest.mark.parametrize("seconds", ["nan", "inf", "1e400", "1e-9"])
def test_a_time_to_watch_that_is_no_plain_number_is_refused_and_not_taken_for_a_run(shell: Shell, seconds: str) -> None:
    train(shell)
    said = f"--watch {seconds}: neither 0.5 to 3600 seconds, as 5 or 0.5, nor a run"
    assert shell.fails(2, "status", "r", "--watch", seconds) == said


def test_a_run_to_watch_that_is_not_there_is_said_to_be_so(shell: Shell) -> None:
    shell.make_run("r", "7")
    shell.queue("7|FAILED|n1|None")
    assert shell.fails(78, "status", "r", "--watch", "nobody").startswith("no run 'nobody': ")
    done = shell.run("status", "r", "nobody", "--watch", "0.5")
    assert (done.returncode, done.stderr.count("\n")) == (0, 1)
    assert done.stderr.startswith("hpc-train: left out: no run 'nobody': ")


def test_looks_in_a_row_are_one_question(shell: Shell) -> None:
    train(shell)
    # `why` also asks for all details of its one job: squeue --jobs.
    write_program(
        shell.bin, "squeue", 'case "$*" in *--user=*) echo asked >>"${0%/*}/asked" ;; esac; cat "${0%/*}/queue"'
    )
    for words in (["status"], ["status", "r"], ["why", "r"], ["status", "--json"]):
        shell.ok(*words)
    assert recorded(shell.bin / "asked") == ["asked"]
    shell.ok("status", "--fresh")
    assert len(recorded(shell.bin / "asked")) == 2
    assert list(Path(shell.environ["HOME"], ".cache", "hpc-train").glob("slurm-*.json"))
