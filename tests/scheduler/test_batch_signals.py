"""Warnings and orders to end, as they reach the batch script under real bash at every moment."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
from collections.abc import Callable

import pytest

from tests.scheduler.batch_stage import SAVES, Stage
from tests.scheduler.making import (
    wait_for,
)


def warn(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGUSR2)


def terminate(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGTERM)


def terminate_all(process: subprocess.Popen[str]) -> None:
    os.killpg(process.pid, signal.SIGTERM)  # as the local supervisor does, and Slurm to a whole job


def stop_record(stage: Stage) -> str:
    return (stage.run.attempt(0).path / "stop.json").read_text()


def test_a_warning_while_ranks_run_becomes_a_record_and_a_signal(stage: Stage) -> None:
    stage.render(walltime="1:30")  # 45 s before it, and Slurm may send it a minute early
    stage.answers(rank=SAVES, decide='cat "$4/attempt-000/stop.json" >&2; echo "${*: -1}" >&2; echo done 0 -')
    process = stage.start()
    wait_for((stage.run.attempt(0).ready / "0").exists, "the rank is up")
    warn(process)
    code, said = stage.finish(process)
    assert code == 0
    first, record, heard = said.splitlines()
    assert first == "hpc-train: attempt 0: asked to stop"
    assert record.startswith('{"reason": "wall time", "deadline": 1')
    assert heard == "75"
    assert stage.calls[1:] == ["warned"]


def test_a_warning_before_begin_has_finished_reaches_the_ranks_once_they_are_up(stage: Stage) -> None:
    stage.answers(begin='until [ -e "$here/go" ]; do sleep 0.02; done; echo go 0 t', rank=SAVES)
    process = stage.start()
    wait_for((stage.bin / "begun").exists, "begin runs")
    warn(process)
    (stage.bin / "go").touch()
    assert stage.finish(process)[0] == 0
    assert stage.calls[1:] == ["warned"]
    assert json.loads(stop_record(stage)) == {"reason": "a request from outside", "deadline": None}


def test_a_warning_waits_until_every_rank_can_take_it(stage: Stage) -> None:
    # Until it is ready this rank would die of the signal, as one that imports does.
    stage.answers(rank=f'touch "$here/starts"; sleep 0.6\n{SAVES}', decide='echo "${*: -1}" >&2; echo done 0 -')
    process = stage.start()
    wait_for((stage.bin / "starts").exists, "the rank starts")
    warn(process)
    code, said = stage.finish(process)
    assert (code, said.splitlines()[-1]) == (0, "75")
    assert stage.calls[1:] == ["warned"]


def test_a_warning_to_ranks_that_have_gone_ends_the_wait(stage: Stage) -> None:
    stage.answers(rank='touch "$here/starts"; sleep 0.5; exit 4', decide='echo "${*: -1}" >&2; echo stop 4 -')
    process = stage.start()
    wait_for((stage.bin / "starts").exists, "the rank starts")
    warn(process)
    code, said = stage.finish(process)
    assert (code, said.splitlines()[-1]) == (4, "4")


def test_two_warnings_are_one(stage: Stage) -> None:
    stage.answers(rank=SAVES)
    process = stage.start()
    wait_for((stage.run.attempt(0).ready / "0").exists, "the rank is up")
    warn(process)
    warn(process)
    assert stage.finish(process)[0] == 0


@pytest.mark.parametrize("is_warned_first", [False, True])
def test_the_end_goes_to_the_launcher_and_the_decision_hears_of_it(stage: Stage, is_warned_first: bool) -> None:
    never_ready = SAVES.replace("touch", ": ")
    up = stage.bin / "up"
    stage.answers(
        rank=never_ready.replace("for ((", 'touch "$here/up"; for (('), decide='echo "${*:4}" >&2; echo stop 1 -'
    )
    process = stage.start()
    wait_for(up.exists, "the rank is up")
    if is_warned_first:
        warn(process)  # waits for a rank that never gets ready
        wait_for((stage.run.attempt(0).path / "stop.json").exists, "the warning is written")
    terminate(process)
    code, said = stage.finish(process)
    assert code == 1
    assert said.splitlines()[-1].endswith("--code 143 --terminated")
    assert stage.calls[1:] == ["ended"]


def test_an_end_before_the_launch_starts_no_rank(stage: Stage) -> None:
    stage.answers(begin='until [ -e "$here/go" ]; do sleep 0.02; done; echo go 0 t', rank=SAVES)
    process = stage.start()
    wait_for((stage.bin / "begun").exists, "begin runs")
    terminate(process)
    (stage.bin / "go").touch()
    assert stage.finish(process) == (143, "")
    assert stage.calls == []


@pytest.mark.parametrize("send", [warn, terminate, terminate_all])
def test_a_signal_while_the_decision_is_taken_does_not_lose_it(
    stage: Stage, send: Callable[[subprocess.Popen[str]], None]
) -> None:
    wait = ': >"$here/decides"; until [ -e "$here/go" ]; do sleep 0.02; done; echo again 75 -'
    stage.answers(decide=wait)
    process = stage.start()
    wait_for((stage.bin / "decides").exists, "decide runs")
    send(process)
    (stage.bin / "go").touch()
    assert stage.finish(process)[0] == 0
    assert stage.calls[1:] == ["scontrol requeue 77"]


def test_the_record_of_a_warning_survives_a_full_disk_as_a_signal(stage: Stage) -> None:
    stage.answers(rank=SAVES)
    process = stage.start()
    wait_for((stage.run.attempt(0).ready / "0").exists, "the rank is up")
    (stage.run.attempt(0).path / ".stop").mkdir()  # cannot be written
    warn(process)
    stage.finish(process)
    assert stage.calls[1:] == ["warned"]


def test_the_token_reaches_the_ranks_and_no_file(stage: Stage) -> None:
    stage.answers(begin="echo go 0 t0k3n", rank='echo "$HPC_TRAIN_TOKEN" >"$here/token"')
    assert stage.finish()[0] == 0
    assert (stage.bin / "token").read_text() == "t0k3n\n"
    shutil.rmtree(stage.run.attempt(0).path)
    assert not [path for path in stage.run.path.rglob("*") if path.is_file() and b"t0k3n" in path.read_bytes()]


@pytest.mark.parametrize("word", ["date", "exit", "grep", "kill", "ls", "mv", "printf", "read", "sleep", "wait"])
def test_a_function_of_a_setup_line_does_not_take_the_place_of_a_word_of_the_script(stage: Stage, word: str) -> None:
    stage.render(f"setup = {json.dumps([f'{word}() {{ echo not this; }}'])}")
    stage.answers(rank=SAVES, decide='echo "${*:4}" >"$here/decided"; echo again 75 -')
    process = stage.start()
    wait_for((stage.run.attempt(0).ready / "0").exists, "the rank is ready")
    process.send_signal(signal.SIGUSR2)
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 0, said
    assert (stage.bin / "decided").read_text().endswith("--code 75\n")
    assert stage.calls[-1] == "scontrol requeue 77"
