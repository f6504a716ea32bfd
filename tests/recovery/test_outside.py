"""Who ended a job from outside: every text that Slurm was seen to print, and silence."""

from __future__ import annotations

import pytest

from hpc_train.recovery.outside import (
    CANCEL,
    NODE_FAILURE,
    PREEMPTION,
    REQUEUE,
    TIME_LIMIT,
    ender_of_state,
    find_ender,
    find_state,
)


def told(why: str = "", job_id: int = 16, host: str = "n1") -> str:
    return f"slurmstepd-{host}: error: *** JOB {job_id} ON {host} CANCELLED AT 2026-01-01T00:00:00{why} ***\n"


@pytest.mark.parametrize(
    ("queue", "log", "ender"),
    [
        ("RUNNING             1           N/A                     None", told(), ""),  # of an earlier start
        ("SIGNALING           1           N/A                     None", "", ""),
        ("COMPLETING          1           N/A                     None", told(), CANCEL),
        ("COMPLETING          1           N/A                     None", "", CANCEL),
        ("COMPLETING          1           N/A                     None", told(" DUE TO PREEMPTION") + told(), CANCEL),
        (
            "COMPLETING          1           N/A                     None",
            told() + told(" DUE TO PREEMPTION") + "srun: error\n",
            PREEMPTION,
        ),
        (
            "COMPLETING          1           N/A                     None",
            told() + told(" DUE TO PREEMPTION", job_id=161),
            CANCEL,
        ),
        ("COMPLETING          1           N/A                     TimeLimit", told(" DUE TO TIME LIMIT"), TIME_LIMIT),
        ("COMPLETING          1           N/A                     TimeLimit", "", TIME_LIMIT),
        ("COMPLETING          2           N/A                     None", told(" DUE TO JOB REQUEUE"), REQUEUE),
        (
            "RUNNING             2           N/A                     None",
            told(" DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS"),
            NODE_FAILURE,
        ),
        ("PENDING             2           N/A                     BeginTime", told(" DUE TO PREEMPTION"), REQUEUE),
        ("COMPLETING          1           N/A                     NodeDown", "", ""),
        (
            "COMPLETING          1           N/A                     None",
            told(" DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS"),
            "",
        ),
        ("RUNNING             1           2026-01-01T00:00:00     None", "", PREEMPTION),  # in its time of grace
        ("RUNNING             2           2026-01-01T00:00:00     None", "", REQUEUE),
        ("COMPLETING          1           2026-01-01T00:00:00     None", told(" DUE TO PREEMPTION"), PREEMPTION),
        ("", told(), ""),  # squeue did not answer: nothing is made up
        ("COMPLETING", "", ""),
    ],
)
def test_slurms_words_say_who_ended_the_job(queue: str, log: str, ender: str) -> None:
    assert find_ender(queue, log, job_id="16", restart_count=1) == ender


NODE_FAILED = " DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS"
COMPLETING = "COMPLETING          1           N/A                     None"


@pytest.mark.parametrize(
    ("queue", "log", "ender"),
    [
        # A host that was cut off writes late, after this one's own words or before them, into the same log.
        (COMPLETING, told() + told(NODE_FAILED, host="n3"), CANCEL),
        (COMPLETING, told(NODE_FAILED, host="n3"), CANCEL),
        (COMPLETING, told(" DUE TO PREEMPTION", host="n3"), CANCEL),
        (COMPLETING, told(" DUE TO TIME LIMIT", host="n3"), CANCEL),
        (COMPLETING, told(" DUE TO PREEMPTION") + told(host="n3"), PREEMPTION),
        (COMPLETING, told(NODE_FAILED) + told(host="n3"), ""),
        ("RUNNING             2           N/A                     None", told(NODE_FAILED, host="n3"), REQUEUE),
        ("RUNNING             2           N/A                     None", told(NODE_FAILED), NODE_FAILURE),
        # names that hold each other
        (COMPLETING, told(NODE_FAILED, host="n11"), CANCEL),
        (COMPLETING, told(NODE_FAILED, host="an1"), CANCEL),
        # of a step, as srun passes it on from any host: no word on the job
        (COMPLETING, told(NODE_FAILED, host="n3").replace("JOB 16", "STEP 16.0"), CANCEL),
    ],
)
def test_only_the_words_of_the_own_host_count(queue: str, log: str, ender: str) -> None:
    assert find_ender(queue, log, job_id="16", restart_count=1, node="n1") == ender


@pytest.mark.parametrize(
    ("text", "ender"),
    [
        ("CANCELLED by 501\n", CANCEL),
        ("CANCELLED\n", CANCEL),
        ("CANCELLED+\n", CANCEL),  # as a narrow column cuts it
        ("PREEMPTED\n", PREEMPTION),
        ("NODE_FAIL\n", NODE_FAILURE),
        ("TIMEOUT\n", TIME_LIMIT),
        ("PREEMPTED\nCANCELLED by 0\n", CANCEL),  # one line a start: the last one counts
        ("COMPLETED\n", ""),
        ("FAILED\n", ""),
        ("RUNNING\n", ""),  # accounting lags behind
        ("\n \n", ""),
        ("", ""),  # nobody knows the job any more
    ],
)
def test_the_state_that_a_job_ended_in_says_who_ended_it(text: str, ender: str) -> None:
    assert ender_of_state(text) == ender


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("JobId=12 JobName=a UserId=u(1) JobState=PREEMPTED Reason=None Dependency=(null)\n", "PREEMPTED"),
        ("JobId=12 JobName=JobState UserId=u(1)\n   JobState=CANCELLED Reason=None\n", "CANCELLED"),
        ("slurm_load_jobs error: Invalid job id specified\n", ""),
        ("", ""),
    ],
)
def test_the_state_is_found_in_a_jobs_record(text: str, state: str) -> None:
    assert find_state(text) == state
