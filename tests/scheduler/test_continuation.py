"""Letting a run go on: the same request or a changed one, one job and never two, and nothing changed by a refusal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hpc_train.errors import HpcTrainError, SchedulerError, SpecError
from hpc_train.job.loader import LoadedJob, job_from_json, load_job
from hpc_train.run.index import read_index
from hpc_train.run.journal import Journal, read_journal
from hpc_train.run.layout import RunDir
from hpc_train.scheduler.continuation import preview, requeue, resume
from hpc_train.scheduler.submission import Submitted, submit
from hpc_train.topology.placement import placement_from_json
from tests.scheduler.making import bare_environment, load, log_call, make_attempt, recorded, wait_for, write_program

ROOT = Path(__file__).parents[2]
TIMED_OUT = "echo 'sbatch: error: Socket timed out on send/recv operation' >&2; exit 1"
JOB = '[job]\nname = "odd \\"name\\""\nnodes = 2\n[env]\nset = {A = "a b"}\n'


@pytest.fixture
def shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """An environment with a Slurm that takes every job, and has forgotten all of them at once."""
    bin_dir = tmp_path / "bin"
    write_program(bin_dir, "sbatch", f"{log_call(bin_dir / 'calls')}\necho $$")
    ends = 'sed -i "/^$1|/d" "${0%/*}/queue" 2>/dev/null; exit 0'
    write_program(bin_dir, "scancel", f"{log_call(bin_dir / 'calls')}\n{ends}")
    write_program(bin_dir, "squeue", 'cat "${0%/*}/queue" 2>/dev/null || :')
    write_program(bin_dir, "sacct", "exit 0")
    write_program(bin_dir, "scontrol", "echo 'Invalid job id specified' >&2; exit 1")
    (tmp_path / "home").mkdir()
    environment = bare_environment(bin_dir, HOME=str(tmp_path / "home"))
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return environment


def request(directory: Path, job: str = "", **flags: Any) -> LoadedJob:
    directory.mkdir(parents=True, exist_ok=True)
    for name in ("train.py", "other.py"):
        (directory / name).touch()
    text = f'{job}\n[program]\ncommand = ["python", "train.py"]\n'
    return load(directory, text, flags={"job.site": "slurm", **flags})


@pytest.fixture
def submitted(tmp_path: Path, shell: dict[str, str]) -> Submitted:
    """A run whose first job has ended."""
    return submit(request(tmp_path / "work", JOB), shell)


@pytest.fixture
def run(submitted: Submitted) -> RunDir:
    return submitted.run


def files(run: RunDir) -> dict[str, bytes]:
    """All that a refusal must leave as it was; the lock of the claim is empty."""
    return {str(path): path.read_bytes() for path in run.path.rglob("*") if path.is_file() and path != run.claim}


# --- the same request


def test_a_run_goes_on_with_the_records_it_had(run: RunDir, shell: dict[str, str]) -> None:
    requeue(run, shell)
    first, second = run.submissions()
    assert second.number == 1
    for name in ("job.json", "site.json", "placement.json", "launch.json"):
        assert (second.path / name).read_text() == (first.path / name).read_text()
    expected = first.script.read_text().replace("submission-01", "submission-02")  # what ends it, should it live on
    for old, new in (
        ("/00\n", "/01\n"),
        ("submission-00", "submission-01"),
        (" 0,", " 1,"),
        ("hpc_train_submission=0\n", "hpc_train_submission=1\n"),
        ("submission 0", "submission 1"),
    ):
        expected = expected.replace(old, new)
    assert second.script.read_text() == expected


def test_a_requeue_after_a_resume_repeats_the_changed_request(run: RunDir, shell: dict[str, str]) -> None:
    resume(run, {"job.nodes": 4}, shell)
    requeue(run, shell)
    assert placement_from_json(run.submission(2).placement.read_text()).num_nodes == 4
    assert resume(run, {"job.walltime": "30"}, shell).changes == ("walltime none -> 30",)
    assert placement_from_json(run.submission(3).placement.read_text()).num_nodes == 4


@pytest.mark.parametrize("go_on", [requeue, lambda run, environ: resume(run, {"job.nodes": 4}, environ)])
def test_a_refused_continuation_leaves_the_run_as_it_was(
    tmp_path: Path, run: RunDir, shell: dict[str, str], go_on: Any
) -> None:
    write_program(tmp_path / "bin", "sbatch", "echo refused >&2; exit 1")
    run.cancelled.write_text("cancelled by its user\n")
    before = files(run)
    with pytest.raises(SchedulerError, match="refused"):
        go_on(run, shell)
    after = files(run)
    journal = str(run.journal / "login.jsonl")
    assert after.pop(journal).startswith(before.pop(journal))  # that it was asked stays written down
    assert after == before


def test_a_continuation_whose_fate_is_not_known_keeps_its_number(
    tmp_path: Path, run: RunDir, shell: dict[str, str]
) -> None:
    # Slurm may start that job after all: it finds no records of its number and ends.
    write_program(tmp_path / "bin", "sbatch", TIMED_OUT)
    with pytest.raises(SchedulerError) as caught:
        requeue(run, shell)
    assert caught.value.transient
    assert list(run.submission(1).path.iterdir()) == []
    write_program(tmp_path / "bin", "sbatch", "echo 12")
    assert requeue(run, shell) == "12"
    assert [each.number for each in run.submissions()] == [0, 1, 2]


def test_a_run_that_was_never_written_whole_cannot_go_on(run: RunDir, shell: dict[str, str]) -> None:
    run.submission(0).launch.unlink()
    for go_on in (lambda: requeue(run, shell), lambda: resume(run, {}, shell)):
        with pytest.raises(SpecError, match="submit it anew"):
            go_on()


# --- a changed request


def test_what_is_given_changes_and_all_else_stays(tmp_path: Path, run: RunDir, shell: dict[str, str]) -> None:
    flags = {"job.nodes": 1, "job.walltime": "2:00:00", "program.command": ("python", "other.py", "--steps", "9")}
    done = resume(run, flags, {**shell, "HPC_TRAIN_JOB_NODES": "7"})
    first, second = run.submission(0), run.submission(1)
    old, new = job_from_json(first.job.read_text()), job_from_json(second.job.read_text())
    assert (new.job.nodes, new.job.walltime) == (1, "2:00:00")
    assert new.program.command == flags["program.command"]
    assert (new.env, new.recovery, new.job.name) == (old.env, old.recovery, old.job.name)
    assert json.loads(second.launch.read_text())["workdir"] == str(tmp_path / "work")
    assert done.changes == (
        "walltime none -> 2:00:00",
        "nodes 2 -> 1",
        "command python train.py -> python other.py --steps 9",
        "2 -> 1 ranks: how it deals the samples to them is up to the program",
    )
    origins = json.loads(second.origins.read_text())["origins"]
    assert origins["job.nodes"] == "flag --nodes"
    assert origins["env.set.A"].endswith("[env.set].A (submission 0)")
    assert json.loads(second.submit.read_text())["job_id"] == done.submitted.job_id
    assert [entry.path for entry in read_index(shell) if entry.job_id == done.submitted.job_id] == [run.path]
    asked = [event for event in read_journal(run) if event.event == "resume_asked"]
    assert [event.fields["after_attempt"] for event in asked] == [-1]


def test_a_site_named_anew_brings_its_own_defaults_and_leaves_what_was_asked(
    tmp_path: Path, shell: dict[str, str]
) -> None:
    sites = tmp_path / "sites"
    sites.mkdir()
    for name, walltime in (("one", "1:00:00"), ("two", "3:00:00")):
        defaults = f'[defaults]\nwalltime = "{walltime}"\nranks_per_node = 4\n'
        text = f'extends = "slurm"\n{defaults}[[queues]]\nname = "q-{name}"\ndefault = true\n'
        (sites / f"{name}.toml").write_text(text)
        (sites / f"{name}.toml").chmod(0o644)
    shell["HPC_TRAIN_SITES"] = str(sites)
    directory = tmp_path / "work"
    request(directory)
    text = '[job]\nnodes = 2\n[program]\ncommand = ["python", "train.py"]\n'
    (directory / "job.toml").write_text(text)
    run = submit(load_job(directory / "job.toml", {"job.site": "one"}, shell, directory=directory), shell).run
    (sites / "one.toml").write_text("this is no site file any more")
    kept = preview(run, {"job.cpus_per_rank": 2}, shell)[0]
    assert (kept.placement.queue, kept.placement.walltime_s, kept.site.name) == ("q-one", 3600, "one")
    moved = preview(run, {"job.site": "two"}, shell)[0]
    assert (moved.placement.queue, moved.placement.walltime_s, moved.site.name) == ("q-two", 10800, "two")
    assert (moved.placement.num_nodes, moved.placement.ranks_per_node) == (2, 4)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ({"job.site": "nowhere"}, "unknown site 'nowhere'"),
        ({"program.command": ("python", "gone.py")}, "there is no 'gone.py' in"),
        ({"env.venv": "no-such"}, "no-such/bin/python is no program"),
        ({"job.walltime": "soon"}, "--walltime"),
        ({"data.global_batch": 7}, "flag --global-batch: global batch 7: allowed ranks 1, 7; asked 2"),
    ],
)
def test_a_request_that_cannot_run_is_refused_and_changes_nothing(
    run: RunDir, shell: dict[str, str], flags: dict[str, Any], message: str
) -> None:
    before = files(run)
    with pytest.raises(Exception, match=message):
        resume(run, flags, shell)
    assert files(run) == before


def test_a_python_typed_at_resume_starts_where_it_was_typed(
    tmp_path: Path, run: RunDir, shell: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "elsewhere"
    (place / "env" / "bin").mkdir(parents=True)
    (place / "env" / "bin" / "python").symlink_to(sys.executable)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.chdir(place)
    assert preview(run, {"env.venv": "env"}, shell)[0].python == str(place / "env" / "bin" / "python")


# --- sizes


def test_a_number_of_ranks_that_the_batches_cannot_be_dealt_to_waits_in_no_queue(
    run: RunDir, shell: dict[str, str]
) -> None:
    journal = Journal(run, "rank0", 0)
    journal.append("stream", global_batch=16, lanes=8)
    journal.append("stream", global_batch=12, lanes=4)
    before = files(run)
    with pytest.raises(SpecError, match=r"allowed ranks 1, 2, 4; asked 8 \(4 nodes x 2 ranks_per_node\)"):
        resume(run, {"job.nodes": 4, "job.ranks_per_node": 2}, shell)
    assert files(run) == before
    # a person who says that the new command has another batch is believed
    assert preview(run, {"job.nodes": 3, "data.global_batch": 9}, shell)[0].placement.num_ranks == 3


# --- one job, never two


def command(run: RunDir, shell: dict[str, str], *words: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "hpc_train", words[0], str(run.path), *words[1:]],
        env={**shell, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_of_many_commands_at_once_one_wins(tmp_path: Path, run: RunDir, shell: dict[str, str]) -> None:
    # Slow enough for all to meet, and a queue that lists the job once it is there.
    calls = log_call(tmp_path / "bin" / "calls")
    write_program(
        tmp_path / "bin", "sbatch", f'{calls}\nsleep 0.5; echo "88|PENDING||Priority" >"${{0%/*}}/queue"; echo 88'
    )
    before = len(recorded(tmp_path / "bin" / "calls"))
    started = [command(run, shell, *words) for words in [("requeue",), ("resume", "--nodes", "4")] * 3]
    ends = [(each.communicate(timeout=60), each.returncode) for each in started]
    assert sorted(code for _, code in ends) == [0, 78, 78, 78, 78, 78]
    for (_, said), code in ends:
        assert not code or "lets run" in said or "its job 88 is pending" in said, said
    assert len(recorded(tmp_path / "bin" / "calls")) == before + 1
    assert [each.number for each in run.submissions()] == [0, 1]


def test_a_command_that_comes_while_another_waits_for_sbatch_is_refused(
    tmp_path: Path, run: RunDir, shell: dict[str, str]
) -> None:
    # The number of the other's submission is taken by now, and no job of it is listed yet.
    asked, answer = tmp_path / "asked", tmp_path / "answer"
    write_program(tmp_path / "bin", "sbatch", f': >"{asked}"; until [ -e "{answer}" ]; do sleep 0.05; done; echo 88')
    first = command(run, shell, "resume", "--nodes", "4")
    wait_for(asked.exists, "sbatch is asked")
    for go_on in (requeue, lambda run, shell: resume(run, {}, shell)):
        with pytest.raises(SpecError, match="another command lets run"):
            go_on(run, shell)
    answer.touch()
    _, said = first.communicate(timeout=30)
    assert first.returncode == 0, said
    assert [each.number for each in run.submissions()] == [0, 1]


def test_where_there_are_no_locks_the_number_of_the_next_submission_decides(
    tmp_path: Path, run: RunDir, shell: dict[str, str]
) -> None:
    # The other command comes just after this one has chosen its number.
    write_program(tmp_path / "bin", "squeue", f'mkdir -p "{run.submission(1).path}"; exit 0')
    with pytest.raises(SpecError, match="another command lets run"):
        resume(run, {}, shell)
    assert list(run.submission(1).path.iterdir()) == []  # the other's


def test_a_job_whose_command_was_killed_before_it_could_note_it_is_found_again(
    tmp_path: Path, run: RunDir, shell: dict[str, str]
) -> None:
    write_program(
        tmp_path / "bin",
        "sbatch",
        f'grep -o "comment=.*" "$2" | cut -d= -f2 >"{tmp_path}/token"; kill -9 $PPID; sleep 1',
    )
    killed = command(run, shell, "resume", "--nodes", "4")
    killed.communicate(timeout=60)
    assert killed.returncode == -9
    assert run.submission(1).launch.exists() and not run.submission(1).submit.exists()
    token = (tmp_path / "token").read_text().strip().strip("'\"")
    write_program(
        tmp_path / "bin",
        "squeue",
        f'case "$*" in *%k*) echo "99|{token}" ;; *) echo "99|PENDING||Priority" ;; esac',
    )
    for go_on in (requeue, lambda run, shell: resume(run, {}, shell)):
        with pytest.raises(SpecError, match="its job 99 is pending"):
            go_on(run, shell)
    assert json.loads(run.submission(1).submit.read_text())["job_id"] == "99"


def test_a_submission_that_no_job_came_of_is_asked_again_as_it_was(
    tmp_path: Path, run: RunDir, shell: dict[str, str]
) -> None:
    resume(run, {"job.nodes": 4}, shell)
    run.submission(1).submit.unlink()  # its command was killed before sbatch; Slurm knows no such job
    assert requeue(run, shell).isdecimal()
    assert placement_from_json(run.submission(2).placement.read_text()).num_nodes == 4


def test_a_job_of_an_interrupted_resume_never_gets_the_records_of_a_later_one(
    tmp_path: Path, run: RunDir, shell: dict[str, str]
) -> None:
    # Ctrl-C while sbatch runs: Slurm may have taken the job, which would begin as submission 1.
    asked = tmp_path / "bin" / "asked"
    write_program(tmp_path / "bin", "sbatch", f': >"{asked}"; exec sleep 60')
    interrupted = command(run, shell, "resume", "--nodes", "4")
    wait_for(asked.exists, "sbatch is asked")
    interrupted.send_signal(signal.SIGINT)
    _, said = interrupted.communicate(timeout=30)
    assert (interrupted.returncode, said) == (130, "hpc-train: interrupted\n")
    assert list(run.submission(1).path.iterdir()) == []
    write_program(tmp_path / "bin", "sbatch", "echo 12")
    assert resume(run, {}, shell).submitted.job_id == "12"
    assert run.submission(2).submit.exists() and not run.submission(1).launch.exists()


def test_a_job_that_could_not_be_noted_is_cancelled_and_its_number_stays_taken(
    tmp_path: Path, run: RunDir, shell: dict[str, str]
) -> None:
    write_program(tmp_path / "bin", "sbatch", 'mkdir "${2%/*}/submit.json"; echo 4711')
    with pytest.raises(HpcTrainError):
        resume(run, {}, shell)
    assert recorded(tmp_path / "bin" / "calls")[-1] == "scancel 4711"
    assert list(run.submission(1).path.iterdir()) == []


@pytest.mark.parametrize("go_on", [requeue, lambda run, environ: resume(run, {}, environ)])
def test_a_cancel_that_comes_in_between_wins(tmp_path: Path, run: RunDir, shell: dict[str, str], go_on: Any) -> None:
    write_program(tmp_path / "bin", "sbatch", f'touch "{run.cancelled}"; echo 77')
    with pytest.raises(SpecError, match="was cancelled in the meantime, and its new job 77 too"):
        go_on(run, shell)
    assert recorded(tmp_path / "bin" / "calls")[-1] == "scancel 77"
    assert run.cancelled.exists()


def test_the_held_job_of_the_submission_before_leaves_the_queue_once_the_new_one_is_in(
    tmp_path: Path, submitted: Submitted, shell: dict[str, str]
) -> None:
    run = submitted.run
    make_attempt(run, word="hold", failure="no_space")
    (tmp_path / "bin" / "queue").write_text(f"{submitted.job_id}|PENDING||JobHeldUser\n")
    done = resume(run, {"job.nodes": 4}, shell)
    calls = recorded(tmp_path / "bin" / "calls")
    assert [call.split()[0] for call in calls] == ["sbatch", "sbatch", "scancel"]
    assert calls[-1] == f"scancel {submitted.job_id}"
    assert not any("held job" in warning for warning in done.warnings)


def test_a_held_job_that_cannot_be_cancelled_is_a_warning(
    tmp_path: Path, submitted: Submitted, shell: dict[str, str]
) -> None:
    (tmp_path / "bin" / "queue").write_text(f"{submitted.job_id}|PENDING||JobHeldUser\n")
    write_program(tmp_path / "bin", "scancel", "echo 'Unable to contact slurm controller' >&2; exit 1")
    done = resume(submitted.run, {}, shell)
    assert any("starts nothing" in warning for warning in done.warnings)


def test_a_run_of_another_machines_supervisor_is_left_alone(tmp_path: Path, run: RunDir, shell: dict[str, str]) -> None:
    submission = run.submission(0)
    submission.submit.write_text(
        json.dumps({"job_id": f"local:{submission.path}", "scheduler": "local", "site": "local", "time": 0.0})
    )
    record = {"pid": os.getpid(), "started": 1, "host": "elsewhere", "state": "running", "reason": ""}
    (submission.path / "supervisor.json").write_text(json.dumps(record))
    with pytest.raises(SpecError, match="it may still run on elsewhere; go on there"):
        resume(run, {}, shell)
    run.cancelled.touch()  # that machine is gone for good
    assert resume(run, {}, shell).submitted.job_id
