"""The Slurm back end against programs that stand in for sbatch, squeue, sacct, scancel and scontrol."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from hpc_train.errors import SchedulerError
from hpc_train.run.layout import RunDir
from hpc_train.scheduler.backend import JobState
from hpc_train.scheduler.slurm.commands import SlurmBackend
from tests.scheduler.making import bare_environment, log_call, make_run, recorded, write_program

# A queue in a file, one "ID|STATE|NODES|REASON|COMMENT" a line, that a real squeue's options are answered from.
SQUEUE = """
for option in "$@"; do
  case $option in
    --format=%i\\|%k) cut -d'|' -f1,5 "${0%/*}/queue"; exit ;;
    --format=*) cut -d'|' -f1-4 "${0%/*}/queue"; exit ;;
  esac
done
"""
SBATCH = """
for script; do :; done
comment=$(sed -n 's/^#SBATCH --comment=//p' "$script")
echo "4711|PENDING||Priority|$comment" >>"${0%/*}/queue"
"""
TIMED_OUT = "echo 'sbatch: error: Batch job submission failed: Socket timed out on send/recv operation' >&2; exit 1"


@dataclass
class FakeSlurm:
    """Where the stand-ins live and what they noted."""

    bin: Path
    run: RunDir
    backend: SlurmBackend

    def program(self, name: str, text: str) -> None:
        """Replace a stand-in; each call is noted first."""
        write_program(self.bin, name, f"{log_call(self.bin / 'calls')}\n{text}")

    def queue(self, *lines: str) -> None:
        """What squeue lists from now on."""
        (self.bin / "queue").write_text("".join(f"{line}\n" for line in lines))

    @property
    def calls(self) -> list[str]:
        """The calls so far, by program, without the pings that go before."""
        return [line.split(" ", 1)[0] for line in recorded(self.bin / "calls") if line != "scontrol ping"]

    def be_impatient(self) -> None:
        """Wait for no stand-in longer than two seconds."""
        self.backend = SlurmBackend(query_timeout_s=2, submit_timeout_s=2, look_up_pauses_s=(0.0, 0.05))

    def submit(self) -> str:
        """Submit the run's script."""
        return self.backend.submit(self.run, self.run.submission(0), bare_environment(self.bin))


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    """A Slurm that takes every job and lists what its queue holds."""
    run = make_run(tmp_path / "r-1", script="#!/bin/bash\n#SBATCH --comment=hpc-train:r-1/00\n")
    backend = SlurmBackend(look_up_pauses_s=(0.0, 0.05))
    made = FakeSlurm(tmp_path / "bin", run, backend)
    made.program("sbatch", f"{SBATCH}\necho 4711")
    made.program("squeue", SQUEUE)
    made.program("sacct", "")
    made.program("scancel", "")
    made.program("scontrol", "")
    made.queue()
    for name, value in bare_environment(made.bin).items():
        monkeypatch.setenv(name, value)
    return made


def test_a_job_is_submitted_once(slurm: FakeSlurm) -> None:
    assert slurm.submit() == "4711"
    assert slurm.calls == ["sbatch"]


def test_a_timed_out_sbatch_that_had_queued_is_one_job_found_by_its_token(slurm: FakeSlurm) -> None:
    # rwth-i6/sisyphus#281: submitted again, there would be two
    slurm.program("sbatch", f"{SBATCH}\n{TIMED_OUT}")
    assert slurm.submit() == "4711"
    assert slurm.calls == ["sbatch", "squeue"]


def test_an_sbatch_that_hangs_after_queueing_is_one_job_too(slurm: FakeSlurm) -> None:
    slurm.program("sbatch", f"{SBATCH}\nexec sleep 60")
    slurm.be_impatient()
    started = time.monotonic()
    assert slurm.submit() == "4711"
    assert time.monotonic() - started < 30


def test_a_timed_out_sbatch_that_had_not_queued_may_be_tried_again(slurm: FakeSlurm) -> None:
    slurm.program("sbatch", TIMED_OUT)
    slurm.queue("12|RUNNING|n1|None|hpc-train:other/00")
    with pytest.raises(SchedulerError, match="Socket timed out") as caught:
        slurm.submit()
    assert (caught.value.transient, caught.value.exit_code) == (True, 69)
    assert slurm.calls == ["sbatch", "squeue", "squeue"]


def test_an_unknown_refusal_is_told_once_in_slurms_words_and_not_tried_again(slurm: FakeSlurm) -> None:
    refusal = "sbatch: error: The site has a rule of its own: not on Mondays"
    slurm.program("sbatch", f"echo '{refusal}' >&2; exit 1")
    with pytest.raises(SchedulerError) as caught:
        slurm.submit()
    assert str(caught.value) == f"sbatch failed with code 1: {refusal}"
    assert not caught.value.transient
    assert slurm.calls == ["sbatch"]


def test_a_known_refusal_names_the_key_to_change_and_slurms_words(slurm: FakeSlurm) -> None:
    refusal = "sbatch: error: Batch job submission failed: Invalid account or account/partition combination specified"
    slurm.program("sbatch", f"echo '{refusal}' >&2; exit 1")
    with pytest.raises(SchedulerError) as caught:
        slurm.submit()
    assert str(caught.value).startswith("Slurm refuses this job: this account is not yours")
    assert "--account or [job].account" in str(caught.value)
    assert str(caught.value).endswith(refusal)
    assert (caught.value.transient, caught.value.exit_code) == (False, 69)


def test_a_site_that_greets_and_gives_no_id_is_asked_by_token(slurm: FakeSlurm) -> None:
    slurm.program("sbatch", f"{SBATCH}\necho Welcome")
    assert slurm.submit() == "4711"


def test_no_id_and_no_job_is_an_error(slurm: FakeSlurm) -> None:
    slurm.program("sbatch", "echo Welcome")
    with pytest.raises(SchedulerError, match="gave no job id"):
        slurm.submit()


def test_a_missing_command_is_named_with_what_it_may_mean(slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(slurm.bin / "empty"))  # this machine may have the real ones
    with pytest.raises(SchedulerError, match="squeue: not found; is this a login node") as caught:
        slurm.backend.states(["1"])
    assert not caught.value.transient
    with pytest.raises(SchedulerError, match="sbatch: not found; is this a login node"):
        slurm.backend.submit(slurm.run, slurm.run.submission(0), {"PATH": str(slurm.bin / "empty")})


def test_states_are_asked_for_all_jobs_at_once(slurm: FakeSlurm) -> None:
    slurm.queue("1|RUNNING|n[1-2]|None|x", "2|PENDING||Priority|x", "99|RUNNING|n3|None|x")
    assert slurm.backend.states(["1", "2"]) == {
        "1": JobState("running", "RUNNING", "", "n[1-2]"),
        "2": JobState("pending", "PENDING", "Priority", ""),
    }
    assert slurm.calls == ["squeue"]


def test_a_job_purged_from_the_queue_is_looked_up_in_accounting(slurm: FakeSlurm) -> None:
    slurm.queue("1|RUNNING|n1|None|x")
    slurm.program("sacct", "echo '2|TIMEOUT|n2|None'")
    states = slurm.backend.states(["1", "2"])
    assert (states["1"].state, states["2"].state) == ("running", "timeout")
    assert recorded(slurm.bin / "calls")[-1].endswith("--jobs=2")


def test_a_job_that_nobody_lists_is_unknown_and_never_completed(slurm: FakeSlurm) -> None:
    # Parsl#1588, maestrowf#264: silence is not success
    state = slurm.backend.states(["3"])["3"]
    assert (state.state, state.reason) == ("unknown", "neither squeue nor sacct lists it")


def test_a_cluster_without_accounting_gives_unknown_with_the_reason(slurm: FakeSlurm) -> None:
    slurm.program("sacct", "echo 'Slurm accounting storage is disabled' >&2; exit 1")
    state = slurm.backend.states(["3"])["3"]
    assert state.state == "unknown"
    assert "accounting storage is disabled" in state.reason


@pytest.mark.parametrize(
    "text",
    ["echo 'slurm_load_jobs error: Unable to contact slurm controller (connect failure)' >&2; exit 1", "exec sleep 60"],
    ids=["down", "hanging"],
)
def test_a_controller_that_is_down_is_a_transient_error(slurm: FakeSlurm, text: str) -> None:
    slurm.program("squeue", text)
    slurm.be_impatient()
    with pytest.raises(SchedulerError) as caught:
        slurm.backend.states(["1"])
    assert (caught.value.transient, caught.value.exit_code) == (True, 69)


def test_a_filter_in_the_shell_does_not_hide_a_job(slurm: FakeSlurm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SQUEUE_PARTITION", "other")
    monkeypatch.setenv("SLURM_CLUSTERS", "other")
    monkeypatch.setenv("SLURM_CONF", "/etc/slurm.conf")
    slurm.program("squeue", 'env >"${0%/*}/env"')
    slurm.backend.states(["1"])
    seen = (slurm.bin / "env").read_text()
    assert "SQUEUE_PARTITION" not in seen and "SLURM_CLUSTERS" not in seen
    assert "SLURM_CONF=/etc/slurm.conf" in seen


@pytest.mark.parametrize(
    "said",
    [
        "scancel: error: Kill job error on job id 1: Invalid job id specified",
        "Job/step already completing or completed",
    ],
)
def test_cancelling_what_has_ended_is_no_error(slurm: FakeSlurm, said: str) -> None:
    slurm.program("scancel", f"echo '{said}' >&2; exit 1")
    slurm.backend.cancel("1")


@pytest.mark.parametrize("again", ["1|PENDING||BeginTime|x", "1|PENDING||JobHeldUser|x", "1|RUNNING|n1|None|x"])
def test_a_job_that_was_requeued_during_the_cancel_is_cancelled_again(slurm: FakeSlurm, again: str) -> None:
    # the first scancel lets the job complete, the batch shell requeues it, the second finds it
    slurm.queue("1|RUNNING|n1|None|x")
    slurm.program(
        "scancel",
        f"""[ -e "${{0%/*}}/first" ] && echo "1|CANCELLED by 0||None|x" >"${{0%/*}}/queue" && exit
        touch "${{0%/*}}/first"; echo "1|COMPLETING|n1|None|x" >"${{0%/*}}/queue"
        (sleep 0.3; echo "{again}" >"${{0%/*}}/queue") >/dev/null 2>&1 &""",
    )
    slurm.backend.cancel("1")
    assert slurm.calls.count("scancel") == 2
    assert slurm.backend.states(["1"])["1"].state == "cancelled"


def test_a_job_that_does_not_end_is_an_error_and_not_a_success(slurm: FakeSlurm) -> None:
    slurm.queue("1|COMPLETING|n1|None|x")
    backend = SlurmBackend(end_timeout_s=0.3)
    with pytest.raises(SchedulerError, match=r"job 1 is still completing 0.3 s after scancel; see: squeue") as caught:
        backend.cancel("1")
    assert caught.value.transient


@pytest.mark.parametrize("word", ["submit", "cancel", "states"])
def test_who_acts_learns_at_once_that_every_controller_is_down(slurm: FakeSlurm, word: str) -> None:
    slurm.program("scontrol", "echo 'Slurmctld(primary) at c1 is DOWN'; exit 1")
    acts: dict[str, Callable[[], object]] = {
        "submit": slurm.submit,
        "cancel": lambda: slurm.backend.cancel("1"),
        "states": lambda: slurm.backend.states(["1"]),
    }
    with pytest.raises(SchedulerError, match="no Slurm controller answers") as caught:
        acts[word]()
    assert caught.value.transient
    assert slurm.calls == []


def test_cancelling_anothers_job_is_an_error(slurm: FakeSlurm) -> None:
    slurm.program("scancel", "echo 'scancel: error: Kill job error on job id 1: Access/permission denied' >&2; exit 1")
    with pytest.raises(SchedulerError, match="permission denied"):
        slurm.backend.cancel("1")


@pytest.mark.parametrize(("state", "verb"), [("held", "release"), ("failed", "requeue"), ("unknown", "requeue")])
def test_a_known_job_starts_again(slurm: FakeSlurm, state: str, verb: str) -> None:
    assert slurm.backend.requeue("1", JobState(state))
    assert recorded(slurm.bin / "calls") == [f"scontrol {verb} 1"]


def test_a_live_job_is_left_alone(slurm: FakeSlurm) -> None:
    assert slurm.backend.requeue("1", JobState("running"))
    assert slurm.calls == []


def test_a_job_that_slurm_does_not_requeue_must_be_submitted_anew(slurm: FakeSlurm) -> None:
    slurm.program("scontrol", "echo 'Requested operation is presently disabled' >&2; exit 1")
    assert not slurm.backend.requeue("1", JobState("failed"))


def test_a_requeue_that_somebody_else_was_faster_with_does_not_make_a_second_job(slurm: FakeSlurm) -> None:
    slurm.program("scontrol", "echo 'Job is pending execution' >&2; exit 1")
    slurm.queue("1|PENDING||BeginTime|x")
    assert slurm.backend.requeue("1", JobState("failed"))


def test_a_requeue_that_got_no_answer_is_not_a_no(slurm: FakeSlurm) -> None:
    slurm.program("scontrol", "echo 'slurm_update error: Unable to contact slurm controller' >&2; exit 1")
    with pytest.raises(SchedulerError) as caught:
        slurm.backend.requeue("1", JobState("failed"))
    assert caught.value.transient
