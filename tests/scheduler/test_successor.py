"""`succeed` as the batch shell calls it, against a Slurm of stand-ins: one next job, recorded, never two."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from hpc_train.job.loader import job_to_json
from hpc_train.run.jobs import read_jobs
from hpc_train.run.layout import RunDir
from tests.scheduler.making import (
    bare_environment,
    load,
    log_call,
    make_attempt,
    make_run,
    note_submitted,
    recorded,
    wait_for,
)
from tests.scheduler.making import write_program as write

ROOT = Path(__file__).parents[2]
# A queue in a file, one "ID|COMMENT" a line, that sbatch adds to. Variables of its environment go to the file env.
SBATCH = """
for option in "$@"; do case $option in --comment=*) comment=${option#--comment=} ;; esac; done
/usr/bin/env >"${0%/*}/env"
echo "78|$comment" >>"${0%/*}/queue"
"""
SQUEUE = """
for option in "$@"; do case $option in
  --format=%x) cat "${0%/*}/excluded"; exit ;;
  --format=*%T*) sed 's/|.*/|PENDING||Dependency/' "${0%/*}/queue"; exit ;;
esac; done
cat "${0%/*}/queue"
"""
REFUSED = "echo 'sbatch: error: QOSMaxSubmitJobPerUserLimit' >&2; exit 1"


@dataclass
class Rig:
    """A batch shell of job 77, the run it belongs to, and the stand-ins."""

    run: RunDir
    bin: Path
    shell: subprocess.Popen[bytes]
    environ: dict[str, str]

    def program(self, name: str, text: str) -> None:
        """Replace a stand-in; its calls are noted."""
        write(self.bin, name, f"{log_call(self.bin / 'calls')}\n{text}")

    def start(self, word: str, attempt: int = 0) -> subprocess.Popen[str]:
        """Start `succeed`."""
        argv = [sys.executable, "-m", "hpc_train", "succeed", str(self.run.path), "--submission", "0"]
        argv += ["--attempt", str(attempt), "--shell", str(self.shell.pid), "--word", word]
        # what modules and setup lines have made of the environment meanwhile
        environ = {**self.environ, "PYTHONPATH": str(ROOT), "SET_BY_SETUP": "1"}
        return subprocess.Popen(argv, env=environ, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    def succeed(self, word: str, attempt: int = 0) -> tuple[int, str, str]:
        """Run it to its end: code, answer, and what it said."""
        process = self.start(word, attempt)
        out, said = process.communicate(timeout=30)
        return process.returncode, out.strip(), said

    @property
    def calls(self) -> list[str]:
        """The calls that change something, in order, without the script's name."""
        noted = (line.replace(str(self.run.submission(0).script), "SCRIPT") for line in recorded(self.bin / "calls"))
        return [line for line in noted if not line.startswith(("squeue", "sacct", "scontrol ping"))]

    @property
    def jobs(self) -> list[tuple[str, int, bool]]:
        """What is recorded of the run's jobs."""
        return [(job.job_id, job.attempt, job.withdrawn) for job in read_jobs(self.run)]


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    """A run that job 77 runs; the first job of its user that asks for another gets 78."""
    run = make_run(tmp_path / "r-1", script="#!/bin/bash\n")
    spec = load(tmp_path / "job", '[env]\npass = ["WANTED"]\n[program]\ncommand = ["true"]\n').spec
    run.submission(0).job.write_text(job_to_json(spec))
    note_submitted(run.submission(0), "77")
    bin_dir = tmp_path / "bin"
    given = bare_environment(
        bin_dir, SLURM_JOB_ID="77", SLURM_MEM_PER_CPU="9", WANTED="a b", HOME=str(tmp_path / "home")
    )
    shell = subprocess.Popen(["sleep", "60"], env=given)
    made = Rig(run, bin_dir, shell, given)
    made.program("sbatch", f"{SBATCH}\necho 78")
    made.program("squeue", SQUEUE)
    made.program("scancel", ': >"${0%/*}/queue"')
    made.program("scontrol", "")
    (bin_dir / "queue").touch()
    (bin_dir / "excluded").write_text("(null)\n")
    return made


@pytest.fixture(autouse=True)
def _end_shell(rig: Rig) -> object:
    yield
    rig.shell.kill()
    rig.shell.wait()


SUBMITTED = "sbatch --parsable --dependency=afterany:77 --comment=hpc-train:r-1/00+000 SCRIPT"


def test_an_attempt_has_one_successor_however_often_it_asks(rig: Rig) -> None:
    assert rig.succeed("register") == (0, "78", "")
    assert rig.succeed("again") == (0, "78", "")
    assert rig.calls == [SUBMITTED]
    assert rig.jobs == [("77", -1, False), ("78", 0, False)]
    index = (Path(rig.environ["HOME"]) / ".local/state/hpc-train/runs.jsonl").read_text()
    assert json.loads(index)["job_id"] == "78"


def test_it_gets_what_the_first_job_was_given_and_nothing_of_this_one(rig: Rig) -> None:
    rig.succeed("register")
    seen = dict(line.split("=", 1) for line in (rig.bin / "env").read_text().splitlines())
    assert seen["WANTED"] == "a b"
    assert seen["HOME"] == rig.environ["HOME"]
    assert not {name for name in seen if name.startswith("SLURM_")} and "SET_BY_SETUP" not in seen


def test_nodes_that_were_excluded_stay_so(rig: Rig) -> None:
    (rig.bin / "excluded").write_text("n[2-3]\n")
    rig.succeed("register")
    assert rig.calls == [SUBMITTED.replace(" SCRIPT", " --exclude=n[2-3] SCRIPT")]


def test_an_sbatch_that_queued_and_was_not_heard_is_one_job(rig: Rig) -> None:
    rig.program("sbatch", f"{SBATCH}\necho 'Socket timed out on send/recv operation' >&2; exit 1")
    assert rig.succeed("register") == (0, "78", "")
    assert rig.succeed("again") == (0, "78", "")
    assert rig.calls == [SUBMITTED]


@pytest.mark.parametrize(
    "refusal", [REFUSED, "echo 'sbatch: error: Batch job submission failed: Access/permission denied' >&2; exit 1"]
)
def test_a_refusal_is_said_and_asked_again_at_the_end(rig: Rig, refusal: str) -> None:
    rig.program("sbatch", refusal)
    code, answer, said = rig.succeed("register")
    assert (code, answer) == (0, "")
    assert said.startswith("hpc-train: no job is queued that goes on after this one: ") and "sbatch: error:" in said
    assert said.endswith("it is tried again at the end of this attempt\n") and said.count("\n") == 1
    code, answer, said = rig.succeed("again")
    assert (code, answer, said.count("\n")) == (75, "", 1)
    rig.program("sbatch", f"{SBATCH}\necho 78")
    assert rig.succeed("again") == (0, "78", "")


@pytest.fixture
def requeued(rig: Rig) -> Rig:
    """Attempt 0 has registered job 78; then an administrator requeued job 77, which runs attempt 1 now."""
    rig.program("sacct", "")
    assert rig.succeed("register") == (0, "78", "")
    for number in (0, 1):
        make_attempt(rig.run, number).started.write_text('{"job_id": "77"}')
    return rig


def test_a_requeued_job_keeps_the_job_that_waits_for_it(requeued: Rig) -> None:
    for word in ("register", "again"):
        assert requeued.succeed(word, attempt=1) == (0, "78", "")
    assert requeued.calls == [SUBMITTED], "two jobs that wait for the same one would start at once"
    assert requeued.jobs[-1] == ("78", 1, False)
    assert requeued.succeed("withdraw", attempt=1) == (0, "", "")
    assert requeued.calls == [SUBMITTED, "scancel 78"]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda rig: (rig.bin / "queue").write_text(""), "it was taken out of the queue"),
        (lambda rig: rig.run.attempt(0).started.write_text('{"job_id": "76"}'), "it waits for another job"),
        (lambda rig: rig.run.submission(0).jobs.write_text(""), "nobody has noted it"),
    ],
    ids=["gone", "of another job", "not noted"],
)
def test_a_requeued_job_asks_anew_where_none_waits_for_it(
    requeued: Rig, change: Callable[[Rig], object], why: str
) -> None:
    change(requeued)
    requeued.program("sbatch", f"{SBATCH.replace('78', '79')}\necho 79")
    assert requeued.succeed("register", attempt=1) == (0, "79", ""), why
    assert requeued.calls == [SUBMITTED, SUBMITTED.replace("+000", "+001")]


def test_where_slurm_does_not_say_whether_a_job_waits_no_second_one_is_asked_for(requeued: Rig) -> None:
    requeued.program("squeue", "echo 'slurm_load_jobs error: Unable to contact slurm controller' >&2; exit 1")
    code, answer, said = requeued.succeed("register", attempt=1)
    assert (code, answer, said.count("\n")) == (0, "", 1) and "tried again at the end" in said
    assert requeued.calls == [SUBMITTED]


def test_a_cancelled_run_gets_no_further_job(rig: Rig) -> None:
    rig.run.cancelled.touch()
    assert rig.succeed("again") == (0, "", "")
    assert rig.calls == []


def test_a_job_that_was_queued_while_its_user_cancelled_is_cancelled_too(rig: Rig) -> None:
    # `cancel` has read the list of jobs already, in which this one does not stand yet
    rig.program("sbatch", f'{SBATCH}\n: >"{rig.run.cancelled}"\necho 78')
    assert rig.succeed("register") == (0, "", "")
    assert rig.calls == [SUBMITTED, "scancel 78"]
    assert rig.jobs[-1] == ("78", 0, True)


def test_a_run_that_is_over_leaves_no_job(rig: Rig) -> None:
    rig.succeed("register")
    assert rig.succeed("withdraw") == (0, "", "")
    assert rig.calls == [SUBMITTED, "scancel 78"]
    assert rig.jobs[-1] == ("78", 0, True)


def test_a_held_run_is_a_held_job(rig: Rig) -> None:
    rig.succeed("register")
    assert rig.succeed("hold") == (0, "78", "")
    assert rig.calls == [SUBMITTED, "scontrol hold 78"]
    assert rig.jobs[-1] == ("78", 0, False)


@pytest.mark.parametrize("word", ["hold", "withdraw"])
def test_where_no_job_waits_there_is_nothing_to_do(rig: Rig, word: str) -> None:
    assert rig.succeed(word) == (0, "", "")
    assert rig.calls == []


def test_the_end_of_the_job_does_not_come_between_sbatch_and_its_record(rig: Rig) -> None:
    rig.program("sbatch", f'{SBATCH}\n: >"${{0%/*}}/queued"; sleep 1; echo 78')
    process = rig.start("register")
    wait_for((rig.bin / "queued").exists, "sbatch has queued the job")
    for number in (signal.SIGTERM, signal.SIGUSR2, signal.SIGHUP, signal.SIGINT):
        os.kill(process.pid, number)
    assert process.communicate(timeout=30) == ("78\n", "")
    assert rig.jobs[-1] == ("78", 0, False)


def test_a_job_that_cannot_be_recorded_is_cancelled(rig: Rig) -> None:
    rig.run.submission(0).jobs.mkdir()
    code, answer, said = rig.succeed("again")
    assert (code, answer, said.count("\n")) == (75, "", 1)
    assert "Traceback" not in said and "jobs.jsonl" in said
    assert rig.calls == [SUBMITTED, "scancel 78"], "a job that is not recorded would be asked for twice"


@pytest.mark.parametrize("word", ["hold", "withdraw"])
def test_a_job_that_slurm_does_not_take_back_is_told_and_no_error(rig: Rig, word: str) -> None:
    rig.succeed("register")
    for name in ("scancel", "scontrol"):
        rig.program(name, "echo 'Unable to contact slurm controller' >&2; exit 1")
    code, _, said = rig.succeed(word)
    assert (code, said.count("\n")) == (0, 1)
    assert said.startswith("hpc-train: job 78 ")
