"""What Slurm answered a moment ago serves every command of the user, and nothing but sound answers do."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hpc_train.errors import SchedulerError
from hpc_train.scheduler.slurm.answers import answers_path
from hpc_train.scheduler.slurm.commands import SlurmBackend
from tests.scheduler.making import bare_environment, log_call, recorded, write_program


@dataclass
class Slurm:
    """A Slurm of stand-ins, and a user's cache."""

    bin: Path
    cache: Path

    @property
    def calls(self) -> list[str]:
        """The programs that were called, oldest first."""
        return [line.split(" ", 1)[0] for line in recorded(self.bin / "calls")]

    @property
    def file(self) -> Path:
        """Where the answers are kept."""
        path = answers_path(os.environ)
        assert path is not None
        return path

    def queue(self, *lines: str) -> None:
        """What squeue lists from now on."""
        (self.bin / "queue").write_text("".join(f"{line}\n" for line in lines))

    def ask(self, *job_ids: str, max_age_s: float = 60.0) -> list[str]:
        """The states, as another process of the user gets them."""
        states = SlurmBackend().states(job_ids, max_age_s=max_age_s)
        return [states[job_id].state for job_id in job_ids]


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    made = Slurm(tmp_path / "bin", tmp_path / "cache")
    write_program(made.bin, "squeue", f'{log_call(made.bin / "calls")}\ncat "${{0%/*}}/queue"')
    write_program(made.bin, "sacct", f'{log_call(made.bin / "calls")}\necho "5|TIMEOUT|n2|None"')
    for name in ("scancel", "scontrol"):
        write_program(made.bin, name, "exit 0")
    made.queue("1|RUNNING|n1|None", "2|PENDING||Priority")
    for name, value in bare_environment(made.bin, XDG_CACHE_HOME=str(made.cache)).items():
        monkeypatch.setenv(name, value)
    return made


def test_several_looks_are_one_question(slurm: Slurm) -> None:
    assert slurm.ask("1") == ["running"]
    slurm.queue()
    assert slurm.ask("1", "2") == ["running", "pending"]
    assert slurm.calls == ["squeue"]


def test_a_job_that_left_the_queue_is_looked_up_once(slurm: Slurm) -> None:
    assert slurm.ask("1", "5", "6") == ["running", "timeout", "unknown"]
    assert slurm.ask("6", "5") == ["unknown", "timeout"]
    assert slurm.calls == ["squeue", "sacct"]


def test_an_old_answer_does_not_make_a_young_job_unknown(slurm: Slurm) -> None:
    slurm.ask("1")
    slurm.queue("1|RUNNING|n1|None", "3|PENDING||Priority")
    assert slurm.ask("3") == ["pending"]
    assert slurm.calls == ["squeue", "squeue"]


def test_who_acts_asks_anew(slurm: Slurm) -> None:
    slurm.ask("1")
    slurm.queue("1|COMPLETING|n1|None")
    assert slurm.ask("1", max_age_s=0) == ["completing"]
    assert slurm.ask("1") == ["completing"]  # and whoever looks next sees nothing older
    assert slurm.calls == ["squeue", "squeue"]


def test_an_answer_gets_old(slurm: Slurm) -> None:
    slurm.ask("1")
    slurm.queue("1|COMPLETED|n1|None")
    time.sleep(0.3)
    assert slurm.ask("1", max_age_s=0.2) == ["completed"]


def test_what_was_known_is_forgotten_once_something_was_done(slurm: Slurm) -> None:
    slurm.ask("1")
    slurm.queue("1|CANCELLED by 0|n1|None")
    SlurmBackend().cancel("1")
    assert slurm.ask("1") == ["cancelled"]


def test_a_controller_that_is_down_is_asked_once(slurm: Slurm) -> None:
    text = "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1"
    write_program(slurm.bin, "squeue", f"{log_call(slurm.bin / 'calls')}\n{text}")
    for _ in range(3):
        with pytest.raises(SchedulerError, match="Unable to contact") as caught:
            slurm.ask("1")
        assert caught.value.transient
    assert slurm.calls == ["squeue"]


def test_another_clusters_answers_are_not_ours(slurm: Slurm, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm.ask("1")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm-two/slurm.conf")
    slurm.queue("1|FAILED|n1|None")
    assert slurm.ask("1") == ["failed"]


def rewritten(**changes: Any) -> Callable[[Path], object]:
    return lambda path: path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def as_link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to(path.with_name("elsewhere"))


def as_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def as_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(path.read_bytes()[:-20]),
        lambda path: path.write_bytes(b"\xff\xfe{}"),
        lambda path: path.write_text("[" * 100_000),
        lambda path: path.write_text("[]"),
        rewritten(version=9),
        rewritten(queue={"1": ["sunny", "RUNNING", "", ""]}),
        rewritten(queue={"1": ["running", 3, "", ""]}),
        rewritten(queue=[]),
        rewritten(asked="yesterday"),
        rewritten(asked=4e9),  # of a clock that was set back since
        lambda path: path.chmod(0o666),
        as_link,
        as_directory,
        as_fifo,
    ],
)
def test_an_answer_that_is_damaged_or_not_ours_is_asked_for_again(
    slurm: Slurm, damage: Callable[[Path], object]
) -> None:
    slurm.ask("1")
    damage(slurm.file)
    slurm.queue("1|COMPLETING|n1|None")
    assert slurm.ask("1") == ["completing"]
    assert slurm.calls == ["squeue", "squeue"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_another_users_file_is_not_believed(slurm: Slurm) -> None:
    slurm.ask("1")
    os.chown(slurm.file, 12345, -1)
    slurm.queue("1|COMPLETING|n1|None")
    assert slurm.ask("1") == ["completing"]


@pytest.mark.parametrize("cache", ["/proc/self", "/dev/full", "relative", "/dev/null/x"])
def test_a_home_that_takes_no_file_costs_a_question_each(
    slurm: Slurm, monkeypatch: pytest.MonkeyPatch, cache: str
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", cache)
    monkeypatch.delenv("HOME", raising=False)
    assert [slurm.ask("1"), slurm.ask("2")] == [["running"], ["pending"]]
    assert slurm.calls == ["squeue", "squeue"]


def test_the_answers_are_for_their_user_alone(slurm: Slurm) -> None:
    slurm.ask("1")
    assert slurm.file.stat().st_mode & 0o777 == 0o600
    assert slurm.file.parent.stat().st_mode & 0o777 == 0o700
