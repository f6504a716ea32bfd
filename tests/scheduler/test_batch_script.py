"""The batch script under real bash: srun, scontrol, squeue and the interpreter are small programs that stand in."""

from __future__ import annotations

import shutil
import sys

import pytest

from tests.scheduler.batch_stage import ROOT, Stage
from tests.scheduler.making import (
    log_call,
    write_program,
)


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
        ("leave 143 n2", 0, []),  # Slurm has requeued it already
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


def test_the_decision_hears_what_slurm_says_of_the_job(stage: Stage) -> None:
    write_program(stage.bin, "squeue", 'echo "COMPLETING 0 None"; echo "$*" >"${0%/*}/asked"')
    stage.answers(decide='echo "$HPC_TRAIN_QUEUE_SAYS" >"$here/heard"; echo stop 3 -')
    assert stage.finish()[0] == 3
    assert (stage.bin / "heard").read_text() == "COMPLETING 0 None\n"
    assert "--jobs=77 --Format=State:20,RestartCnt:12,Reason:60" in (stage.bin / "asked").read_text()


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


@pytest.mark.parametrize(("num_up", "is_excluded"), [(3, True), (2, False)])
def test_no_node_is_excluded_that_the_job_cannot_do_without(stage: Stage, num_up: int, is_excluded: bool) -> None:
    nodes = "".join(f"echo n{number} mixed; " for number in range(1, num_up + 1))
    write_program(stage.bin, "sinfo", f'case "$*" in *--nodes=n2*) echo n2 mixed ;; *) {nodes} echo "n9 down*" ;; esac')
    stage.answers(decide="echo again-elsewhere 76 n2")
    code, said = stage.finish()
    assert code == 0
    assert ("scontrol update jobid=77 ExcNodeList=n2" in stage.calls) == is_excluded
    assert ("n2 is not excluded: the queue would have 1 nodes left and the job needs 2" in said) != is_excluded


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
