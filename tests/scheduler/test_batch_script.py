"""The batch script under real bash: srun, scontrol, squeue and the interpreter are small programs that stand in."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import sys
from pathlib import Path

import pytest

from tests.scheduler.batch_stage import ROOT, SAVES, Stage
from tests.scheduler.making import log_call, wait_for, write_program


def test_a_finished_attempt_ends_the_job_with_0(stage: Stage) -> None:
    stage.answers(decide=f"{log_call(stage.bin / 'calls')}; echo done 0 -")
    assert stage.finish() == (0, "")
    launch, decide = stage.calls
    assert launch.startswith("srun --kill-on-bad-exit=1 --wait=0 --mpi=pmix --nodes=1 --ntasks=1")
    assert " --chdir=RUN/attempt-000 --output=logs/%N.log " in launch  # the relative part alone is a pattern
    assert launch.endswith(" -u -m hpc_train run RUN --submission 0 --attempt 0")
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
        ("hold 73 ExcNodeList=n2", 0, ["scontrol requeuehold 77", "scontrol update jobid=77 ExcNodeList=n2"]),
        (
            "again-elsewhere 76 ExcNodeList=n2,n5",
            0,
            ["scontrol requeue 77", "scontrol update jobid=77 ExcNodeList=n2,n5"],
        ),
        ("again 75 ExcNodeList=", 0, ["scontrol requeue 77", "scontrol update jobid=77 ExcNodeList="]),  # all let go
        # a back-off that is longer than Slurm's own wait, 120 s where it says nothing else
        ("again 76 - 120", 0, ["scontrol show config", "scontrol requeue 77"]),
        (
            "again-elsewhere 76 ExcNodeList=n2 121",
            0,
            [
                "scontrol show config",
                "scontrol requeue 77",
                "scontrol update jobid=77 ExcNodeList=n2",
                "scontrol update jobid=77 StartTime=now+121",
            ],
        ),
        ("leave 143 -", 0, []),  # Slurm has requeued it already
        ("leave 143 ExcNodeList=n2", 0, ["scontrol update jobid=77 ExcNodeList=n2"]),  # and may still hear of a list
        ("perhaps 1 -", 70, []),
        ("", 70, []),
    ],
)
def test_each_word_of_the_decision_has_its_act(stage: Stage, answer: str, code: int, calls: list[str]) -> None:
    greets = "echo A greeting of the site >&4"
    stage.answers(begin=f"{greets}; echo go 0 t0k3n; {greets}", decide=f"{greets}; echo {answer}; {greets}")
    assert stage.finish()[0] == code
    assert stage.calls[1:] == calls


@pytest.mark.parametrize(("delay", "is_set"), [(6, False), (7, True)])
def test_a_back_off_never_makes_slurms_own_wait_shorter(stage: Stage, delay: int, is_set: bool) -> None:
    says = 'echo "AuthInfo                = socket=/run/munge,cred_expire=6"; echo "AuthType = auth/munge"'
    write_program(stage.bin, "scontrol", f'{log_call(stage.bin / "calls")}\n[ "$1" != show ] || {{ {says}; }}')
    stage.answers(decide=f"echo again 76 - {delay}")
    assert stage.finish()[0] == 0
    told = [f"scontrol update jobid=77 StartTime=now+{delay}"] if is_set else []
    assert stage.calls[1:] == ["scontrol show config", "scontrol requeue 77", *told]


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
    assert "--jobs=77 --Format=State:20,RestartCnt:12,PreemptTime:24,Reason:60" in (stage.bin / "asked").read_text()


@pytest.mark.parametrize(
    ("answer", "verb", "word"), [("again 75 -", "requeue", "requeue"), ("hold 73 -", "requeuehold", "hold")]
)
def test_a_refused_requeue_ends_with_75_and_says_what_to_do(stage: Stage, answer: str, verb: str, word: str) -> None:
    (stage.bin / f"{verb}.refused").touch()
    stage.answers(decide=f"echo {answer}")
    told = f"hpc-train: Slurm does not {word} this job; go on with: hpc-train requeue r-1\n"
    assert stage.finish() == (75, f"Invalid job id specified\n{told}")


# What scontrol says of a controller that does not answer, and what it says nothing of when it is cut short.
UNANSWERED = ("slurm_requeue error: Unable to contact slurm controller (connect failure)", "Socket timed out", "")


@pytest.mark.parametrize("verb", ["requeue", "requeuehold"])
@pytest.mark.parametrize("said", UNANSWERED)
def test_a_controller_that_comes_back_is_asked_again(stage: Stage, said: str, verb: str) -> None:
    stage.hurry()
    tried = f'echo x >>"{stage.bin}/tried"; [ "$(wc -l <"{stage.bin}/tried")" -gt 3 ] || {{ echo "{said}"; exit 1; }}'
    write_program(stage.bin, "scontrol", f"{log_call(stage.bin / 'calls')}\n{tried}")
    stage.answers(decide=f"echo {'again 75' if verb == 'requeue' else 'hold 73'} -")
    assert stage.finish()[0] == 0
    assert stage.calls[1:] == [f"scontrol {verb} 77"] * 4


def test_a_controller_that_stays_away_ends_the_job_with_75(stage: Stage) -> None:
    stage.hurry()
    write_program(stage.bin, "squeue", "exit 1")
    stage.answers(decide="echo again 75 -")
    code, said = stage.finish()
    assert code == 75 and "go on with: hpc-train requeue r-1" in said
    assert len(stage.calls) == 1  # nothing is asked while nobody says that this is the job's newest start


@pytest.mark.parametrize(
    ("meanwhile", "said"),
    [
        ('mkdir "$run/attempt-001"', "attempt 0 was given up"),
        ('mkdir -p "$run/submission-01"; : >"$run/submission-01/launch.json"', "attempt 0 was given up"),
        (': >"$run/cancelled"', "attempt 0 was given up"),
        (': >"${0%/*}/restarted"', "the job was started again meanwhile"),
    ],
)
@pytest.mark.parametrize("answer", ["again 75 -", "again-elsewhere 76 ExcNodeList=n2", "hold 73 -"])
def test_a_host_that_was_cut_off_while_it_asked_leaves_the_next_start_alone(
    stage: Stage, answer: str, meanwhile: str, said: str
) -> None:
    # The network is away at first; when it is back, the job runs elsewhere.
    stage.hurry()
    away = f'[ -e "${{0%/*}}/back" ] || {{ : >"${{0%/*}}/back"; {meanwhile}; exit 1; }}'
    count = '[ ! -e "${0%/*}/restarted" ] || echo 1'
    text = f'case "$*" in *--Format=RestartCnt:12*) run="{stage.run.path}"; {away}; {count} ;; esac'
    write_program(stage.bin, "squeue", text)
    stage.answers(decide=f"echo {answer}")
    code, told = stage.finish()
    assert (code, stage.calls[1:]) == (0, [])
    assert said in told


def test_a_requeue_that_was_heard_but_not_answered_excludes_its_node_all_the_same(stage: Stage) -> None:
    stage.hurry()
    write_program(stage.bin, "squeue", '[ "$2" != --jobs=77 ] || [ ! -e "${0%/*}/heard" ] || echo 1')
    heard = f'[ "$1" != requeue ] || {{ : >"{stage.bin}/heard"; echo Socket timed out >&2; exit 1; }}'
    write_program(stage.bin, "scontrol", f"{log_call(stage.bin / 'calls')}\n{heard}")
    stage.answers(decide="echo again-elsewhere 76 ExcNodeList=n2")
    assert stage.finish()[0] == 0
    assert stage.calls[1:] == ["scontrol requeue 77", "scontrol update jobid=77 ExcNodeList=n2"]


def test_a_question_that_hangs_is_cut_short(stage: Stage) -> None:
    hangs_once = '[ "$(grep -c requeue "${0%/*}/calls")" -gt 1 ] || exec sleep 60'
    write_program(stage.bin, "scontrol", f"{log_call(stage.bin / 'calls')}\n{hangs_once}")
    stage.answers(decide="echo again 75 -")
    assert stage.finish()[0] == 0
    assert stage.calls[1:] == ["scontrol requeue 77"] * 2


@pytest.mark.parametrize("verb", ["requeue", "update"])
def test_slurms_sigterm_does_not_end_what_is_being_asked(stage: Stage, verb: str) -> None:
    # The requeue itself makes Slurm send it to the whole job: a lost update let the run meet its bad host again.
    log = log_call(stage.bin / "calls")
    answers = f"""[ $1 != {verb} ] || {{ touch "${{0%/*}}/asked"; sleep 1; }}\n{log}"""
    write_program(stage.bin, "scontrol", answers)
    stage.answers(decide="echo again-elsewhere 76 ExcNodeList=n2")
    process = stage.start()
    wait_for((stage.bin / "asked").exists, "a question to Slurm")
    for pid in [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdecimal()]:
        with contextlib.suppress(ProcessLookupError):
            if os.getsid(pid) == process.pid:
                os.kill(pid, signal.SIGTERM)
    assert stage.finish(process) == (0, "")
    assert stage.calls[1:] == ["scontrol requeue 77", "scontrol update jobid=77 ExcNodeList=n2"]


def test_a_node_that_cannot_be_excluded_does_not_stop_the_requeue(stage: Stage) -> None:
    (stage.bin / "update.refused").touch()
    stage.answers(decide="echo again-elsewhere 76 ExcNodeList=n2")
    told = "hpc-train: Slurm does not take ExcNodeList=n2 for job 77\n"
    assert stage.finish() == (0, f"Invalid job id specified\n{told}")


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


def test_a_decision_that_is_killed_is_taken_by_a_second_try(stage: Stage) -> None:
    once = '[ -e "$here/killed" ] || { : >"$here/killed"; kill -KILL $$; }'
    stage.answers(rank="exit 75", decide=f"{once}; echo again 75 -")
    assert stage.finish()[0] == 0
    assert stage.calls[-1] == "scontrol requeue 77"


def test_a_setup_line_that_changes_the_shells_rules_loses_no_decision(stage: Stage) -> None:
    # With such an IFS an unquoted process number falls apart: 1203 into 0, which is all that Slurm started here.
    rules = ["set -euCf", "trap - USR2 TERM", "IFS=123456789", "shopt -s failglob"]
    stage.render(f"setup = {json.dumps(rules)}")
    write_program(stage.bin, "squeue", "sleep 0.3; echo 0")
    heard = ': >"$here/decided"; echo "${*:4}" >>"$here/decided"; echo "$HPC_TRAIN_QUEUE_SAYS" >>"$here/decided"'
    stage.answers(rank="exit 3", decide=f"{heard}; echo again-elsewhere 75 ExcNodeList=n2")
    assert stage.finish() == (0, "")
    decided, queue_says = (stage.bin / "decided").read_text().splitlines()
    assert decided.endswith("--code 3") and queue_says == "0"
    assert stage.calls[1:] == ["scontrol requeue 77", "scontrol update jobid=77 ExcNodeList=n2"]


@pytest.mark.parametrize("event", ["ERR", "DEBUG", "RETURN"])
def test_a_trap_of_a_setup_line_neither_ends_the_shell_nor_gets_into_its_answers(stage: Stage, event: str) -> None:
    rules = ["set -eETuo pipefail", f"trap 'echo \"trapped in line $LINENO\"; [ {event} != ERR ] || exit 1' {event}"]
    stage.render(f"setup = {json.dumps(rules)}")
    stage.answers(rank=SAVES, decide='echo "${*:4}" >"$here/decided"; echo again 75 -')
    process = stage.start()
    wait_for((stage.run.attempt(0).ready / "0").exists, "the rank is ready")
    process.send_signal(signal.SIGUSR2)  # the wall time comes near: `wait` ends with a code of its own
    said = process.communicate(timeout=60)[1]
    assert process.returncode == 0, said
    assert (stage.bin / "decided").read_text().endswith("--code 75\n")
    assert stage.calls[-1] == "scontrol requeue 77"


def test_no_process_number_is_left_to_the_shells_splitting() -> None:
    text = (ROOT / "sbatch_templates" / "batch.sh.j2").read_text()
    assert re.findall(r"^.*\b(?:kill|wait)\b[^\n\"]*\$.*$", text, re.MULTILINE) == []


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


@pytest.mark.parametrize(
    ("answer", "code", "calls"),
    [
        ("done 0 -", 0, ["succeed withdraw"]),
        ("stop 65 -", 65, ["succeed withdraw"]),
        ("again 75 -", 0, ["succeed again"]),
        ("hold 73 -", 0, ["succeed hold"]),
        (
            "again-elsewhere 76 ExcNodeList=n2,n5",
            0,
            ["succeed again", "scontrol update jobid=78 ExcNodeList=n2,n5"],
        ),
        # a new job would start at once
        ("again 76 - 10", 0, ["succeed again", "scontrol update jobid=78 StartTime=now+10"]),
        ("leave 143 -", 0, []),  # a later attempt owns the run
    ],
)
def test_without_requeue_each_word_is_about_the_job_that_waits(
    stage: Stage, answer: str, code: int, calls: list[str]
) -> None:
    stage.render(continuation="successor")
    stage.answers(
        rank='until [ -s "$here/registered" ]; do sleep 0.02; done',
        decide=f"echo {answer}",
        succeed='echo hi >&4; [ "${*: -1}" != register ] || echo 1 >"$here/registered"; echo 78; echo bye >&4',
    )
    assert stage.finish()[0] == code
    assert sorted(stage.calls[:2])[1] == "succeed register"  # beside the launch, which it does not delay
    assert stage.calls[2:] == calls


def test_the_end_waits_for_a_registration_that_is_under_way(stage: Stage) -> None:
    stage.render(continuation="successor")
    slow = '[ "${*: -1}" != register ] || { sleep 0.5; echo registered >>"$here/calls"; }; echo 78'
    stage.answers(decide="echo again 75 -", succeed=slow)
    assert stage.finish()[0] == 0
    assert stage.calls[-2:] == ["registered", "succeed again"]


def test_where_no_job_can_follow_the_job_ends_with_75_and_says_what_to_do(stage: Stage) -> None:
    stage.render(continuation="successor")
    stage.answers(decide="echo again 75 -", succeed='echo "hpc-train: no job is queued" >&2; exit 75')
    code, said = stage.finish()
    assert code == 75
    assert said.splitlines()[-1] == (
        "hpc-train: Slurm does not let another go on after this job; go on with: hpc-train requeue r-1"
    )


def test_a_cancelled_run_excludes_nothing_of_a_job_that_is_not_there(stage: Stage) -> None:
    stage.render(continuation="successor")
    stage.answers(decide="echo again-elsewhere 76 ExcNodeList=n2", succeed="echo")
    assert stage.finish()[0] == 0
    assert stage.calls[-1] == "succeed again"


@pytest.mark.parametrize(
    ("said", "code", "last"),
    [
        ("Requested operation is presently disabled for job 77", 0, "succeed again"),
        ("scontrol: error: Access/permission denied", 0, "succeed again"),
        # who was not answered may have been heard: a second job beside a requeued one would be one too many
        ("slurm_requeue error: Socket timed out on send/recv operation", 75, "scontrol requeue 77"),
        ("Job's in transition state, can't update for job 77", 75, "scontrol requeue 77"),
    ],
)
def test_a_requeue_that_is_forbidden_after_all_becomes_a_new_job(stage: Stage, said: str, code: int, last: str) -> None:
    stage.hurry()
    write_program(stage.bin, "scontrol", f'{log_call(stage.bin / "calls")}\necho "{said}" >&2; exit 1')
    stage.answers(decide="echo again 75 -")
    done, words = stage.finish()
    assert (done, stage.calls[-1]) == (code, last)
    assert said in words


def test_a_refused_successor_after_a_refused_requeue_ends_with_75(stage: Stage) -> None:
    write_program(stage.bin, "scontrol", 'echo "presently disabled" >&2; exit 1')
    stage.answers(decide="echo again 75 -", succeed="exit 75")
    code, said = stage.finish()
    assert code == 75 and "go on with: hpc-train requeue r-1" in said
