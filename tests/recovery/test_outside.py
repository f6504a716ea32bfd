"""Who ended a job from outside: every text that Slurm was seen to print, and silence."""

from __future__ import annotations

import pytest

from hpc_train.recovery.outside import CANCEL, NODE_FAILURE, PREEMPTION, REQUEUE, TIME_LIMIT, find_ender


def told(why: str = "", job_id: int = 16) -> str:
    return f"slurmstepd-n1: error: *** JOB {job_id} ON n1 CANCELLED AT 2026-01-01T00:00:00{why} ***\n"


@pytest.mark.parametrize(
    ("queue", "log", "ender"),
    [
        ("RUNNING             1           None", told(), ""),  # of an earlier start
        ("SIGNALING           1           None", "", ""),
        ("COMPLETING          1           None", told(), CANCEL),
        ("COMPLETING          1           None", "", CANCEL),
        ("COMPLETING          1           None", told(" DUE TO PREEMPTION") + told(), CANCEL),
        ("COMPLETING          1           None", told() + told(" DUE TO PREEMPTION") + "srun: error\n", PREEMPTION),
        ("COMPLETING          1           None", told() + told(" DUE TO PREEMPTION", job_id=161), CANCEL),
        ("COMPLETING          1           TimeLimit", told(" DUE TO TIME LIMIT"), TIME_LIMIT),
        ("COMPLETING          1           TimeLimit", "", TIME_LIMIT),
        ("COMPLETING          2           None", told(" DUE TO JOB REQUEUE"), REQUEUE),
        (
            "RUNNING             2           None",
            told(" DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS"),
            NODE_FAILURE,
        ),
        ("PENDING             2           BeginTime", told(" DUE TO PREEMPTION"), REQUEUE),
        ("COMPLETING          1           NodeDown", "", ""),
        ("COMPLETING          1           None", told(" DUE TO NODE FAILURE, SEE SLURMCTLD LOG FOR DETAILS"), ""),
        ("", told(), ""),  # squeue did not answer: nothing is made up
        ("COMPLETING", "", ""),
    ],
)
def test_slurms_words_say_who_ended_the_job(queue: str, log: str, ender: str) -> None:
    assert find_ender(queue, log, job_id="16", restart_count=1) == ender
