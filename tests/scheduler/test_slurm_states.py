"""Texts that real Slurms print, as rows."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_train.scheduler.backend import STATES
from hpc_train.scheduler.slurm.states import (
    all_controllers_are_down,
    find_token,
    parse_listing,
    parse_submitted,
    state_of,
)


@pytest.mark.parametrize(
    ("raw", "reason", "state"),
    [
        ("PENDING", "Priority", "pending"),
        ("PENDING", "BeginTime", "pending"),
        ("PENDING", "JobHeldUser", "held"),
        ("PENDING", "JobHeldAdmin", "held"),
        # burrmill/burrmill#15: such a job stays pending for ever
        ("PENDING", "launch failed requeued held", "held"),
        ("PENDING", "launch_failed_requeued_held", "held"),
        ("PENDING", "job requeued in held state", "held"),
        ("PENDING", "job_requeued_in_held_state", "held"),
        ("REQUEUE_HOLD", "", "held"),
        ("SPECIAL_EXIT", "", "held"),
        ("REQUEUED", "", "requeued"),
        ("CONFIGURING", "", "pending"),
        ("RUNNING", "None", "running"),
        ("SUSPENDED", "", "running"),
        ("COMPLETING", "", "completing"),
        ("COMPLETED", "", "completed"),
        ("COMPLETED+", "", "completed"),  # sacct cuts a narrow column so
        # Snakemake-Profiles/slurm#22, virtualcell/vcell#1913: both were taken for running
        ("CANCELLED by 501", "", "cancelled"),
        ("CANCELLED+", "", "cancelled"),
        ("OUT_OF_MEMORY", "", "out_of_memory"),
        ("OUT_OF_ME+", "", "unknown"),  # asked for with --parsable2 it is never cut
        ("NODE_FAIL", "", "node_fail"),
        ("BOOT_FAIL", "", "node_fail"),
        ("PREEMPTED", "", "preempted"),
        ("TIMEOUT", "TimeLimit", "timeout"),
        ("DEADLINE", "", "timeout"),
        ("FAILED", "NonZeroExitCode", "failed"),
        ("running", "", "running"),
        ("EXPLODED", "", "unknown"),  # a word of a later Slurm
        ("", "", "unknown"),
        # a reason speaks of a hold only while the job waits
        ("RUNNING", "JobHeldUser", "running"),
    ],
)
def test_a_word_of_slurm_has_one_meaning(raw: str, reason: str, state: str) -> None:
    assert state_of(raw, reason) == state


@given(st.text(max_size=30), st.text(max_size=30))
def test_every_text_has_a_state(raw: str, reason: str) -> None:
    assert state_of(raw, reason) in STATES


def test_a_bar_in_a_reason_shifts_no_column() -> None:
    # troycomi/reportseff#30: job names with '|'; we do not ask for names, and free text stands last
    found = parse_listing("12|PENDING||(a|b) Dependency|c\n13|RUNNING|n[1-2]|None\n")
    assert (found["12"].state, found["12"].reason) == ("pending", "(a|b) Dependency|c")
    assert (found["13"].state, found["13"].reason, found["13"].nodes) == ("running", "", "n[1-2]")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n\n",
        "JobIDRaw|State|NodeList|Reason\n",
        "slurm_load_jobs error: Unable to contact slurm controller\n",
        "12|RUNNING\n",
    ],
    ids=["empty", "blank", "header", "message", "columns"],
)
def test_what_is_no_listing_lists_no_job(text: str) -> None:
    assert parse_listing(text) == {}


def test_accounting_tells_of_jobs_and_not_of_their_steps() -> None:
    text = (
        "12|CANCELLED by 501|n1|None\n12.batch|COMPLETED|n1|\n12.0|FAILED|n1|\n13|OUT_OF_MEMORY|None assigned|(null)\n"
    )
    found = parse_listing(text)
    assert {job_id: state.state for job_id, state in found.items()} == {"12": "cancelled", "13": "out_of_memory"}
    assert (found["13"].nodes, found["13"].reason) == ("", "")


def test_of_a_job_that_was_requeued_the_last_line_counts() -> None:
    assert parse_listing("12|NODE_FAIL|n1|None\n12|RUNNING|n2|None\n")["12"].state == "running"


@pytest.mark.parametrize(
    ("text", "job_id"),
    [
        ("4711\n", "4711"),
        ("4711;cluster\n", "4711"),
        # geodesymiami/rsmas_insar#455: a site that greets
        ("---------\n Welcome to the Vista Supercomputer \n---------\n--> Verifying valid submit host\n4711\n", "4711"),
        ("4711\nthank you for 2 jobs\n", "4711"),
        ("", None),
        ("Submitted batch job\n", None),
        ("-5\n", None),
        ("٤٧١١\n", None),  # digits of another script
    ],
)
def test_the_job_id_is_found_in_what_sbatch_prints(text: str, job_id: str | None) -> None:
    assert parse_submitted(text) == job_id


def test_a_token_is_found_whatever_else_stands_in_comments() -> None:
    text = "1|(null)\n2|hpc-train:run/00x\n3|a|hpc-train:run/00\n4|hpc-train:run/00\n"
    assert find_token(text, "hpc-train:run/00") == "4"
    assert find_token(text, "hpc-train:other/00") is None


@pytest.mark.parametrize(
    ("text", "is_down"),
    [
        ("scontrol failed with code 1: Slurmctld(primary) at c1 is DOWN", True),
        ("Slurmctld(primary) at c1 is DOWN Slurmctld(backup) at c2 is DOWN ***** RESTORE SLURMCTLD DAEMON", True),
        ("Slurmctld(primary) at c1 is DOWN Slurmctld(backup) at c2 is UP", False),
        ("Slurmctld(primary) at c1 is UP", False),
        ("scontrol did not answer within 12 s", False),  # it may just be busy
        ("scontrol: not found", False),
        ("", False),
    ],
)
def test_only_a_clear_word_means_that_every_controller_is_down(text: str, is_down: bool) -> None:
    assert all_controllers_are_down(text) is is_down
