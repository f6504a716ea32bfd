"""Slurm's word and the logs' together: who is believed, who must act, and never "completed" from silence."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hpc_train.diagnosis.engine import diagnose
from hpc_train.diagnosis.job_facts import JobFacts, StepFacts
from hpc_train.diagnosis.logs import make_log
from hpc_train.diagnosis.verdict import Diagnosis, judge, of_log, shown_size, shown_time

RAISED = "Traceback (most recent call last):\n  File x\nKeyError: 'labels'\n"
CUDA = "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has\n"
OOM = "slurmstepd: error: Detected 1 oom-kill event(s) in StepId=7.0.\n"
PEER = "RuntimeError: [../gloo/transport/tcp/pair.cc:1] Connection closed by peer [10.0.0.5]:4\n"
TIME = "slurmstepd: error: *** JOB 7 ON n1 CANCELLED AT 2026-01-05T10:11:12 DUE TO TIME LIMIT ***\n"
STEPS = "step loss 2.0\n" * 1000


def told(state: str, log: str = "", **more: object) -> Diagnosis:
    """The judgement on a job in this state with this log."""
    facts = replace(JobFacts("7", state=state, nodes="n1"), **more)  # type: ignore[arg-type]
    return judge(facts, diagnose([make_log(log.encode(), name="job.out")]))


@pytest.mark.parametrize(
    ("state", "log", "failure", "pattern", "who"),
    [
        ("FAILED", "", "program", "", "you"),
        ("FAILED", RAISED, "program", "python-exception", "you"),
        ("FAILED", CUDA, "out_of_memory", "gpu-out-of-memory", "you"),
        ("FAILED", PEER, "peer_lost", "peer-lost", "you"),
        # the scheduler saw the node go: what ranks cried then is no cause
        ("NODE_FAIL", PEER + RAISED, "node_fail", "", "site"),
        ("PREEMPTED", RAISED, "preempted", "", "wait"),
        ("OUT_OF_MEMORY", RAISED, "out_of_memory", "", "you"),
        ("OUT_OF_MEMORY", RAISED + OOM, "out_of_memory", "host-out-of-memory", "you"),
        ("BOOT_FAIL", "", "infrastructure", "", "site"),
        ("DEADLINE", "", "timeout", "", "you"),
        # a rank raised, the others waited for the time limit: the exception; but one that the program survived is none
        ("TIMEOUT", RAISED + TIME, "program", "python-exception", "you"),
        ("TIMEOUT", RAISED + STEPS + TIME, "timeout", "", "you"),
        ("TIMEOUT", STEPS + TIME, "timeout", "time-limit", "you"),
        ("TIMEOUT", "", "timeout", "", "you"),
        ("CANCELLED by 501", "", "cancelled", "", "you"),
        ("CANCELLED by 501", RAISED + STEPS, "cancelled", "", "you"),
        ("COMPLETED", "", "completed", "", ""),
        ("RUNNING", RAISED, "running", "", ""),
        ("", "", "unknown", "", "you"),
        ("", RAISED, "program", "python-exception", "you"),
        ("SOMETHING_NEW", "", "program", "", "you"),
    ],
)
def test_who_is_believed(state: str, log: str, failure: str, pattern: str, who: str) -> None:
    found = told(state, log)
    assert (found.failure, found.pattern, found.who) == (failure, pattern, who)
    assert found.what and found.next and "{" not in found.what + found.next


def test_what_slurm_alone_knows_is_evidence_too() -> None:
    assert told("FAILED", RAISED, code=1).evidence == ("job.out:3: KeyError: 'labels'", "Slurm: FAILED, ExitCode 1:0")


def test_a_job_whose_script_hid_a_failed_step_is_not_completed() -> None:
    # martius-lab/cluster_utils#87
    steps = (StepFacts("7.batch", "COMPLETED"), StepFacts("7.0", "FAILED", code=3, nodes="n1"))
    found = told("COMPLETED", "", steps=steps)
    assert found.failure == "program"
    assert found.what.startswith("the script ended with code 0, but its step 7.0 did not (FAILED, 3:0)")
    assert found.evidence == ("Slurm: step 7.0 FAILED, ExitCode 3:0",)


def test_a_completed_job_with_an_error_at_the_end_of_its_log_is_told_so() -> None:
    assert "but its log holds an error" in told("COMPLETED", STEPS + RAISED).what
    assert "all that Slurm knows" in told("COMPLETED", RAISED + STEPS).what


@pytest.mark.parametrize(
    ("code", "signal", "failure", "word"),
    [
        (127, 0, "config", "not found"), (126, 0, "permission", "executed"), (137, 0, "killed", "SIGKILL"),
        (0, 9, "killed", "SIGKILL"), (139, 0, "crash", "SIGSEGV"), (0, 11, "crash", "SIGSEGV"),
        (0, 7, "crash", "/dev/shm"),
        (0, 53, "config", "--output"), (3, 0, "program", "code 3"), (134, 0, "crash", "SIGABRT"),
    ],
)  # fmt: skip
def test_an_exit_code_alone_says_something(code: int, signal: int, failure: str, word: str) -> None:
    found = told("FAILED", code=code, signal=signal)
    assert found.failure == failure and word in found.what


def test_a_process_killed_with_nearly_all_of_the_memory_ran_out_of_it() -> None:
    steps = (StepFacts("7.0", "FAILED", signal=9, max_rss=31 << 30, max_rss_node="n1", nodes="n1"),)
    found = told("FAILED", "srun: error: n1: task 0: Killed\n", memory=32 << 30, steps=steps)
    assert (found.failure, found.next) == ("out_of_memory", "ask for more: sbatch --mem=49152M SCRIPT")
    assert told("FAILED", "srun: error: n1: task 0: Killed\n", memory=320 << 30, steps=steps).failure == "killed"


def test_how_much_more_to_ask_for_is_said_in_numbers() -> None:
    assert "--mem=1536M" in told("OUT_OF_MEMORY", memory=1 << 30).next
    assert "--time=120" in told("TIMEOUT", limit_s=3600).next
    assert "(01:00:00)" in told("TIMEOUT", limit_s=3600).what


def test_a_waiting_job_says_why_until_when_and_whether_it_ever_starts() -> None:
    found = told("PENDING", reason="Resources", start="2026-01-05T10:11:12")
    assert (found.failure, found.who, found.next) == ("waiting", "wait", "expected start: squeue --start -j 7")
    assert "2026-01-05T10:11:12" in found.what
    never = told("PENDING", reason="PartitionTimeLimit")
    assert never.who == "you" and "never starts" in never.what and "jobid=7" in never.next
    assert "not known here: Odd" in told("PENDING", reason="Odd").what


def test_a_log_without_a_job() -> None:
    assert of_log([]).failure == "unknown"
    assert of_log(diagnose([make_log(b"", name="x")])).evidence == ()


def test_times_and_sizes_are_written_as_slurm_and_people_do() -> None:
    assert [shown_time(each) for each in (0, 3661, 93784, None)] == [
        "00:00:00",
        "01:01:01",
        "1-02:03:04",
        "no limit known",
    ]
    assert [shown_size(each) for each in (0, 1 << 10, 3 << 19, 5 << 30)] == ["0 B", "1.0 KiB", "1.5 MiB", "5.0 GiB"]


NOT_SAID = "it never started, and Slurm does not say why"


@pytest.mark.parametrize(
    ("state", "reason", "judged", "what", "then"),
    [
        ("FAILED", "BadConstraints", ("config", "you"), "it never started: no nodes of this queue can ever fulfil the "
         "request (BadConstraints): its script did not run", "then submit again with another request"),
        ("CANCELLED", "DependencyNeverSatisfied", ("config", "you"), "it never started: the job that it waits for",
         "then submit again"),
        ("FAILED", "JobLaunchFailure", ("infrastructure", "site"), "it never started: it could not", "tell the site"),
        ("FAILED", "Priority", ("infrastructure", "site"), NOT_SAID, "ask the site"),
        ("FAILED", "", ("infrastructure", "site"), NOT_SAID, "ask the site"),
        ("CANCELLED by 501", "Resources", ("cancelled", "you"), "it was cancelled by user id 501 before it started",
         "nothing, if that was meant"),
        ("CANCELLED by 501", "JobHeldUser", ("cancelled", "you"), "before it started", "nothing, if that was meant"),
    ],
)  # fmt: skip
def test_a_job_that_never_started_is_no_fault_of_its_program(
    state: str, reason: str, judged: tuple[str, str], what: str, then: str
) -> None:
    found = judge(JobFacts("7", state=state, reason=reason, code=1, elapsed_s=0))
    assert (found.failure, found.who) == judged
    assert what in found.what and then in found.next
    assert "scancel" not in found.next and "scontrol update" not in found.next
    assert "its program" not in found.what and "its log" not in found.next


def test_a_job_of_which_a_node_or_its_time_is_known_did_start() -> None:
    never = JobFacts("7", state="FAILED", code=1, elapsed_s=0)
    for facts in (
        replace(never, nodes="n1"),
        replace(never, elapsed_s=1),
        replace(never, elapsed_s=None),
        replace(never, earlier=("NODE_FAIL",)),
    ):
        assert "ended with code 1" in judge(facts).what
