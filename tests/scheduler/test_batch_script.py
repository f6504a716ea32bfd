"""The batch script under real bash: srun, scontrol, squeue and the interpreter are small programs that stand in."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from hpc_train.run.layout import RunDir
from hpc_train.scheduler.script import render_script
from tests.scheduler.making import (
    bare_environment,
    load,
    log_call,
    make_run,
    plan_of,
    recorded,
    wait_for,
    write_program,
)

ROOT = Path(__file__).parents[2]
# begin makes the attempt as the real one does; what it and decide answer stands in files beside it.
INTERPRETER = """
here=${0%/*}
[ "$1 $2" = "-m hpc_train" ] || exit 99
case $3 in
  begin) : >"$here/begun"; [ -e "$4/cancelled" ] || mkdir -p "$4/attempt-000/ready"; . "$here/begin" ;;
  decide) . "$here/decide" ;;
  run) . "$here/rank" ;;
esac
"""
# A rank that takes the warning and leaves as one does that has saved.
SAVES = """
trap 'echo warned >>"$here/calls"; exit 75' USR2
trap 'echo ended >>"$here/calls"; exit 143' TERM
touch "$4/attempt-000/ready/0"
for ((i = 0; i < 200; i++)); do sleep 0.05; done
"""


@dataclass
class Stage:
    """A rendered script with everything that it calls, and what was called."""

    run: RunDir
    bin: Path
    script: Path
    running: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def calls(self) -> list[str]:
        """What the stand-ins noted, in order, without the log path and the run's own."""
        return [line.replace(str(self.run.path), "RUN") for line in recorded(self.bin / "calls")]

    def render(self, program: str = "") -> None:
        """Write the script of a job whose [program] says this besides its command."""
        text = f'[job]\nwalltime = "10"\n[program]\ncommand = ["true"]\n{program}\n'
        loaded = load(self.run.path.parent / "job", text, flags={"job.site": "slurm"})
        self.script.write_text(render_script(plan_of(loaded, self.run, python=str(self.bin / "python"))))

    def answers(self, *, begin: str = "echo go 0 t0k3n", decide: str = "echo done 0 -", rank: str = "exit 0") -> None:
        """What begin, decide and the ranks do, as lines of bash."""
        for name, text in {"begin": begin, "decide": decide, "rank": rank}.items():
            (self.bin / name).write_text(f"{text}\n")

    def start(self, **variables: str) -> subprocess.Popen[str]:
        """Start the script as Slurm does: a session of its own."""
        environment = {**bare_environment(self.bin, SLURM_JOB_ID="77"), **variables}
        process = subprocess.Popen(
            ["bash", str(self.script)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self.running.append(process)
        return process

    def finish(self, process: subprocess.Popen[str] | None = None) -> tuple[int, str]:
        """Exit code and the script's own words."""
        process = process or self.start()
        out, said = process.communicate(timeout=30)
        assert out == ""
        return process.returncode, said


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """A job of one rank on a Slurm site that warns; its run directory has an odd name."""
    run = make_run(tmp_path / "runs 50%" / "r-1")
    bin_dir = tmp_path / "bin"
    for name in ("scontrol", "squeue"):
        write_program(bin_dir, name, f'{log_call(bin_dir / "calls")}\n[ ! -e "${{0%/*}}/$1.refused" ] || exit 1')
    write_program(
        bin_dir, "srun", log_call(bin_dir / "calls") + '\nwhile [ "${1:0:2}" = -- ]; do shift; done\nexec "$@"'
    )
    write_program(bin_dir, "python", INTERPRETER)
    made = Stage(run, bin_dir, run.submission(0).script)
    made.render()
    made.answers()
    yield made
    for process in made.running:
        if process.poll() is None:
            process.kill()
            process.communicate(timeout=10)


def test_a_finished_attempt_ends_the_job_with_0(stage: Stage) -> None:
    stage.answers(decide=f"{log_call(stage.bin / 'calls')}; echo done 0 -")
    assert stage.finish() == (0, "")
    launch, decide = stage.calls
    assert launch.startswith("srun --kill-on-bad-exit=1 --wait=0 --mpi=pmix --nodes=1 --ntasks=1")
    assert "/runs 50%%/r-1/attempt-000/logs/%N.log " in launch  # only %N is a pattern
    assert launch.endswith(" -m hpc_train run RUN --submission 0 --attempt 0")
    assert decide == "python -m hpc_train decide RUN --submission 0 --attempt 0 --code 0"


@pytest.mark.parametrize("code", [0, 1, 75, 127, 143, 255])
def test_the_decision_hears_the_launchers_code(stage: Stage, code: int) -> None:
    stage.answers(rank=f"exit {code}", decide='echo "${*:4}" >"$here/decided"; echo stop 3 -')
    assert stage.finish() == (3, "")
    assert (stage.bin / "decided").read_text().endswith(f"--code {code}\n")


@pytest.mark.parametrize(
    ("answer", "code", "calls"),
    [
        ("done 0 -", 0, []),
        ("stop 65 -", 65, []),
        ("stop 0 -", 1, []),  # code 0 is for a run that is done
        ("again 75 -", 0, ["scontrol requeue 77"]),
        ("hold 73 -", 0, ["scontrol requeuehold 77"]),
        (
            "again-elsewhere 76 n2,n5",
            0,
            [
                "scontrol requeue 77",
                "squeue --noheader --jobs=77 --format=%x",
                "scontrol update jobid=77 ExcNodeList=n2,n5",
            ],
        ),
        ("perhaps 1 -", 70, []),
        ("", 70, []),
    ],
)
def test_each_word_of_the_decision_has_its_act(stage: Stage, answer: str, code: int, calls: list[str]) -> None:
    stage.answers(decide=f"echo A greeting of the site; echo {answer}")
    assert stage.finish()[0] == code
    assert stage.calls[1:] == calls


def test_the_launchers_own_words_are_kept_for_the_decision_and_shown(stage: Stage) -> None:
    stage.answers(
        rank="echo 'srun: error: n1: task 0: Killed' >&2", decide='cat "$4/attempt-000/launcher.log" >&2; echo done'
    )
    assert stage.finish() == (0, "srun: error: n1: task 0: Killed\n" * 2)


def test_a_restarted_job_uses_up_the_step_numbers_of_its_earlier_starts(stage: Stage) -> None:
    assert stage.finish(stage.start(SLURM_RESTART_COUNT="2"))[0] == 0
    assert stage.calls[:2] == ["srun --mpi=none --nodes=1 --ntasks=1 true"] * 2
    assert " -m hpc_train run " in stage.calls[2]


def test_a_cancelled_run_stops_with_0(stage: Stage) -> None:
    stage.answers(rank=': >"$4/cancelled"', decide="echo stop 0 -")
    assert stage.finish()[0] == 0


def test_nodes_excluded_before_stay_excluded(stage: Stage) -> None:
    write_program(stage.bin, "squeue", "echo 'n[7-8]'")
    stage.answers(decide="echo again-elsewhere 76 n2")
    assert stage.finish()[0] == 0
    assert stage.calls[-1] == "scontrol update jobid=77 ExcNodeList=n[7-8],n2"


@pytest.mark.parametrize(
    ("answer", "verb", "word"), [("again 75 -", "requeue", "requeue"), ("hold 73 -", "requeuehold", "hold")]
)
def test_a_refused_requeue_ends_with_75_and_says_what_to_do(stage: Stage, answer: str, verb: str, word: str) -> None:
    (stage.bin / f"{verb}.refused").touch()
    stage.answers(decide=f"echo {answer}")
    assert stage.finish() == (75, f"hpc-train: Slurm does not {word} this job; go on with: hpc-train requeue r-1\n")


def test_a_node_that_cannot_be_excluded_does_not_stop_the_requeue(stage: Stage) -> None:
    (stage.bin / "update.refused").touch()
    stage.answers(decide="echo again-elsewhere 76 n2")
    assert stage.finish() == (0, "hpc-train: could not exclude n2\n")


@pytest.mark.parametrize(
    ("begin", "code", "calls"),
    [
        ("echo stop 0", 0, []),
        ("echo stop 65", 65, []),
        ("echo hold 73", 0, ["scontrol requeuehold 77"]),
        ("exit 74", 74, []),
        ("echo what", 70, []),
    ],
)
def test_a_run_that_begin_does_not_start_launches_nothing(
    stage: Stage, begin: str, code: int, calls: list[str]
) -> None:
    stage.answers(begin=begin)
    assert stage.finish()[0] == code
    assert stage.calls == calls


def test_a_run_that_was_cancelled_before_its_job_starts_launches_nothing(stage: Stage) -> None:
    stage.run.cancelled.touch()
    stage.answers(begin=f'exec {sys.executable} -m hpc_train begin "${{@:4}}"')  # the real one
    assert stage.finish(stage.start(PYTHONPATH=str(ROOT)))[0] == 0
    assert stage.calls == [] and stage.run.attempts() == []


def test_a_decision_that_fails_is_said_and_leaves_it_to_the_next_attempt(stage: Stage) -> None:
    stage.answers(decide="echo no space >&2; exit 74")
    code, said = stage.finish()
    assert code == 74
    assert said.splitlines()[-1] == "hpc-train: no decision was taken; the next attempt takes it: hpc-train requeue r-1"


def test_a_setup_line_that_changes_the_shells_rules_loses_no_decision(stage: Stage) -> None:
    stage.render('setup = ["set -eu", "trap - USR2 TERM", "IFS=123"]')
    stage.answers(rank="exit 3", decide='echo "${*:4}" >"$here/decided"; echo stop 3 -')
    assert stage.finish()[0] == 3
    assert (stage.bin / "decided").read_text().endswith("--code 3\n")


def test_an_interpreter_that_is_not_there_is_named(stage: Stage) -> None:
    (stage.bin / "python").unlink()
    code, said = stage.finish()
    assert code == 78
    assert f"{stage.bin}/python cannot be run on" in said


def test_a_missing_launcher_is_an_end_like_any_other(stage: Stage) -> None:
    (stage.bin / "srun").unlink()
    for name in ("bash", "date", "mkdir", "uname"):  # and nothing else: this machine may have a srun
        (stage.bin / name).symlink_to(shutil.which(name) or "")
    stage.answers(decide='echo "${*:4}" >"$here/decided"; echo stop 1 -')
    assert stage.finish(stage.start(PATH=str(stage.bin)))[0] == 1
    assert (stage.bin / "decided").read_text().endswith("--code 127\n")


def test_a_withdrawn_submission_does_not_start(stage: Stage) -> None:
    stage.run.submission(0).launch.unlink()
    code, said = stage.finish()
    assert (code, stage.calls) == (73, [])
    assert "was withdrawn" in said


def test_a_run_directory_that_vanishes_meanwhile_ends_with_an_error(stage: Stage) -> None:
    real = f'exec {sys.executable} -m hpc_train decide "${{@:4}}"'
    stage.answers(rank='rm -r "$4"', decide=real)
    code, said = stage.finish(stage.start(PYTHONPATH=str(ROOT)))
    assert code not in (0, 75)
    assert "no decision was taken" in said
    assert not stage.run.path.exists()


def warn(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGUSR2)


def terminate(process: subprocess.Popen[str]) -> None:
    process.send_signal(signal.SIGTERM)


def terminate_all(process: subprocess.Popen[str]) -> None:
    os.killpg(process.pid, signal.SIGTERM)  # as the local supervisor does, and Slurm to a whole job


def stop_record(stage: Stage) -> str:
    return (stage.run.attempt(0).path / "stop.json").read_text()


def test_a_warning_while_ranks_run_becomes_a_record_and_a_signal(stage: Stage) -> None:
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
    assert "wall time" in stop_record(stage)


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
