"""`logs --follow`, `--tail`, `--node` and `--rank`: what is shown, and when it ends."""

from __future__ import annotations

import errno
import json
import os
import random
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from hpc_train.cli.follow import Follower, start_of_tail
from hpc_train.files import write_json
from hpc_train.run.layout import AttemptDir, RunDir
from tests.cli.conftest import Shell
from tests.cli.terminal import Terminal
from tests.scheduler.making import make_attempt, recorded, wait_for

DONE: dict[str, Any] = {"word": "done", "failure": "done", "reason": "all ranks ended cleanly"}


@dataclass
class Following:
    """`logs -f` at work, and the lines it has shown."""

    process: subprocess.Popen[bytes]
    shown: list[bytes] = field(default_factory=list)
    told: list[bytes] = field(default_factory=list)

    @property
    def text(self) -> str:
        """All that it has shown."""
        return b"".join(self.shown).decode()

    @property
    def lines(self) -> list[str]:
        """The same by lines, the last as far as it has come."""
        return self.text.removesuffix("\n").split("\n") if self.shown else []

    @property
    def said(self) -> list[str]:
        """What it says itself."""
        return b"".join(self.told).decode().splitlines()

    def wait(self, text: str) -> None:
        """Wait for a line."""
        wait_for(lambda: text in self.lines, f"{text!r} among {self.lines[-20:]}")


@contextmanager
def follow(shell: Shell, *words: str) -> Iterator[Following]:
    process = subprocess.Popen(
        shell.argv("logs", "r", "--follow", *words),
        cwd=shell.directory, env=shell.environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    found = Following(process)

    def collect(stream: Any, into: list[bytes]) -> None:
        while data := stream.read1(1 << 16):
            into.append(data)

    readers = [
        threading.Thread(target=collect, args=pair)
        for pair in ((process.stdout, found.shown), (process.stderr, found.told))
    ]
    for reader in readers:
        reader.start()
    try:
        yield found
    finally:
        process.kill()
        process.wait(30)
        for reader in readers:
            reader.join(30)
        for stream in (process.stdout, process.stderr):
            assert stream is not None
            stream.close()


def write(attempt: AttemptDir, node: str, text: str) -> None:
    with open(attempt.logs / f"{node}.log", "a") as file:
        file.write(text)


def decide(attempt: AttemptDir, **decision: Any) -> None:
    record = {"word": "stop", "failure": "program", "reason": "it failed", "exclude": [], **decision}
    write_json(attempt.decision, record, durable=False)  # in one piece, as it is followed


@pytest.fixture
def run(shell: Shell) -> RunDir:
    made = shell.make_run("r", "7")
    shell.queue("7|RUNNING|n1|None")
    return made


def test_following_goes_on_over_attempts_and_ends_with_the_run(shell: Shell, run: RunDir) -> None:
    with follow(shell) as shown:
        wait_for(lambda: shown.said, "it says that it waits")
        first = make_attempt(run, 0)
        write(first, "n1", "first on n1\n")
        shown.wait("first on n1")
        write(first, "n2", "first on n2\n")
        shown.wait("first on n2")
        decide(first, word="again", failure="stopped")
        run.submission(0).batch_log.write_text("hpc-train: attempt 0: stopped\n")
        shell.queue("7|PENDING||BeginTime")
        shown.wait("hpc-train: attempt 0: stopped")
        second = make_attempt(run, 1)
        write(second, "n1", "second on n1\n")
        shown.wait("second on n1")
        write(first, "n2", "last words\n")  # of a node that was slow
        shown.wait("last words")
        assert shown.process.poll() is None
        write(second, "n1", "and the end, without a newline")
        shell.queue("7|COMPLETED|n1|None")
        decide(second, **DONE)
        assert shown.process.wait(30) == 0
    assert shown.lines.count("==> attempt-000/logs/n1.log <==") == 1
    assert shown.lines[-1] == "and the end, without a newline"
    assert shown.said == ["hpc-train: run r has no logs yet; waiting for them"]


def test_following_a_run_that_has_ended_is_printing_it(shell: Shell, run: RunDir) -> None:
    write(make_attempt(run, **DONE), "n1", "all\n")
    shell.queue("7|COMPLETED|n1|None")
    with follow(shell) as shown:
        assert shown.process.wait(30) == 0
    assert shown.lines == ["==> attempt-000/logs/n1.log <==", "all"]


def test_one_attempt_is_followed_to_its_own_end(shell: Shell, run: RunDir) -> None:
    first = make_attempt(run, 0)
    write(first, "n1", "one\n")
    with follow(shell, "--attempt", "0") as shown:
        shown.wait("one")
        write(make_attempt(run, 1), "n1", "another\n")
        decide(first, word="again")
        assert shown.process.wait(30) == 0  # though the run goes on
    assert "another" not in shown.lines


def test_a_truncated_and_a_replaced_file_are_shown_from_their_start(shell: Shell, run: RunDir) -> None:
    attempt = make_attempt(run)
    path = attempt.logs / "n1.log"
    write(attempt, "n1", "one\ntwo\n")
    with follow(shell) as shown:
        shown.wait("two")
        path.write_text("cut\n")
        shown.wait("cut")
        path.rename(attempt.path / "rotated")
        path.write_text("fresh, and longer than before\n")
        shown.wait("fresh, and longer than before")
    assert [line.split()[3] for line in shown.said] == ["truncated;", "replaced;"]


def test_a_progress_bar_is_shown_though_its_line_never_ends(shell: Shell, run: RunDir) -> None:
    attempt = make_attempt(run)
    write(attempt, "n1", "10%\r20%\r")
    write(attempt, "n2", "whole\n")
    with follow(shell) as shown:
        shown.wait("whole")
        wait_for(lambda: "10%\r20%\r" in shown.text, "the bar")
        write(attempt, "n2", "more\n")
        shown.wait("more")
    assert "10%\r20%\r\n==> attempt-000/logs/n2.log <==\nmore" in shown.text  # another file, on a line of its own


def test_a_hundred_nodes_need_few_descriptors(shell: Shell, run: RunDir) -> None:
    attempt = make_attempt(run)
    for number in range(100):
        write(attempt, f"n{number}", f"from {number}\n")
    most = 0
    with follow(shell) as shown:
        while shown.text.count("\n") < 200 and shown.process.poll() is None:
            most = max(most, len(os.listdir(f"/proc/{shown.process.pid}/fd")))
        write(attempt, "n77", "more\n")
        shown.wait("more")
    assert 0 < most < 20
    assert sorted(line for line in shown.lines if line.startswith("from")) == sorted(f"from {n}" for n in range(100))


def test_ctrl_c_ends_the_following_and_no_run(shell: Shell, run: RunDir) -> None:
    write(make_attempt(run), "n1", "one\n")
    terminal = Terminal(shell.argv("logs", "r", "-f"), cwd=shell.directory, environ=shell.environ)
    terminal.wait_for(lambda text: "one" in text)
    terminal.type("\x03")
    assert terminal.end() == 130
    assert "no longer following; the run goes on" in terminal.plain
    assert not run.cancelled.exists()
    assert not any("scancel" in call for call in recorded(shell.bin / "calls"))


@pytest.fixture
def logged(shell: Shell, run: RunDir) -> Shell:
    """Two nodes with two ranks each, and a batch log."""
    launch = json.loads(run.submission(0).launch.read_text())
    run.submission(0).launch.write_text(json.dumps({**launch, "num_ranks": 4}))
    attempt = make_attempt(run)
    for rank, node in enumerate(("n1", "n1", "n2.site.org", "n2.site.org")):
        (attempt.ready / str(rank)).write_text(node)
        write(attempt, node.partition(".")[0], f"rank {rank}\n")
    run.submission(0).batch_log.write_text("batch 1\nbatch 2\n")
    return shell


@pytest.mark.parametrize(
    ("words", "lines"),
    [
        (["--tail", "1"], ["rank 1", "rank 3", "batch 2"]),
        (["-n", "0"], []),
        (["--tail", "9", "--batch"], ["batch 1", "batch 2"]),
        (["--node", "n2"], ["rank 2", "rank 3"]),
        (["--node", "n2.site.org", "--tail", "1"], ["rank 3"]),
        (["--rank", "3"], ["rank 2", "rank 3"]),
        (["--rank", "0", "--node", "n1"], ["rank 0", "rank 1"]),
        (["--rank", "0", "--node", "n2"], []),
    ],
)
def test_logs_of_a_node_or_a_rank_and_their_ends(logged: Shell, words: list[str], lines: list[str]) -> None:
    done = logged.run("logs", "r", *words)
    assert done.returncode == 0
    assert [line for line in done.stdout.splitlines() if not line.startswith("==> ")] == lines


@pytest.mark.parametrize(
    "words",
    [["--paths", "-f"], ["--batch", "--rank", "0"], ["--attempt", "0", "--all"], ["--tail", "-1"], ["--rank", "x"]],
    ids=" ".join,
)
def test_what_makes_no_sense_together_is_refused(logged: Shell, words: list[str]) -> None:
    done = logged.run("logs", "r", *words)
    assert (done.returncode, done.stdout) == (2, "")


@pytest.mark.parametrize("text", [b"", b"\n", b"a", b"a\n", b"a\nb", b"a\n\nb\n", b"x" * 3_000_000 + b"\ny\n" * 9])
@pytest.mark.parametrize("num_lines", [0, 1, 2, 10_000])
def test_a_tail_is_the_last_lines(text: bytes, num_lines: int) -> None:
    lines = text.splitlines(keepends=True)
    expected = b"".join(lines[-num_lines:] if num_lines else [])
    assert text[start_of_tail(BytesIO(text), num_lines) :] == expected


def test_whatever_the_order_of_writing_each_files_bytes_come_whole_and_in_order(tmp_path: Path) -> None:
    random.seed(7)
    paths = [tmp_path / f"n{number}" for number in range(3)]
    out = BytesIO()
    follower = Follower(
        lambda: [(path.name, path) for path in paths if path.exists()], out, tail=None, say=lambda text: None
    )
    written = {path.name: b"" for path in paths}
    for number in range(300):
        path = random.choice(paths)
        data = random.choice([b"%d\n", b"%d", b"%d " * 3, b"%d\n%d", b""]).replace(b"%d", b"%d" % number)
        with open(path, "ab") as file:
            file.write(data)
        written[path.name] += data
        if random.random() < 0.5:
            follower.pump()
    follower.pump(is_last=True)
    shown = dict.fromkeys(written, b"")
    name = ""
    for line in out.getvalue().splitlines(keepends=True):
        if line.startswith(b"==> "):
            name = line.split()[1].decode()
        else:
            shown[name] += line
    for name, data in written.items():
        assert shown[name].rstrip(b"\n") == data.rstrip(b"\n")


@pytest.mark.parametrize("is_broken_by", [BrokenPipeError(errno.EPIPE, "x"), OSError(errno.ENOSPC, "x")])
def test_an_output_that_nobody_takes_ends_the_following(tmp_path: Path, is_broken_by: OSError) -> None:
    """It was taken for a log that is gone: `logs -f RUN | head` went on until the run ended."""

    class Broken(BytesIO):
        def write(self, data: object) -> int:
            raise is_broken_by

    log = tmp_path / "n1.log"
    log.write_bytes(b"x\n" * 100_000)
    follower = Follower(lambda: [("n1.log", log)], Broken(), tail=None, say=print)
    with pytest.raises(type(is_broken_by)):
        follower.pump()
