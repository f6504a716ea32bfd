"""Texts that squeue, sacct and scontrol print, also those of other versions, read without a shifted column."""

from __future__ import annotations

import pytest

from hpc_train.diagnosis.job_facts import (
    ACCOUNTING_FIELDS,
    SEPARATOR,
    parse_accounting,
    parse_details,
    parse_queue,
)
from hpc_train.scheduler.slurm.inspection import job_id_of, merge

GIB = 1 << 30


def row(job_id: str, state: str = "FAILED", **fields: str) -> str:
    """One row of sacct."""
    values = {"JobID": job_id, "JobIDRaw": job_id, "State": state, "ExitCode": "0:0", "NNodes": "1", "NCPUS": "4"}
    return SEPARATOR.join({**values, **fields}.get(name, "") for name in ACCOUNTING_FIELDS)


def queue(job_id: str, state: str, reason: str = "None") -> str:
    """One line of squeue."""
    return f"{job_id}|{state}|ann|gpu|abc|1-02:03:04|10:00|2026-01-05T10:11:12|2|500M|n[1-2]|{reason}"


def test_a_line_of_squeue() -> None:
    (job,) = parse_queue("a banner\n" + queue("7", "PENDING", "Reserved | for (others), n1") + "\n7|short\n")
    assert (job.id, job.word, job.user, job.queue, job.account) == ("7", "PENDING", "ann", "gpu", "abc")
    assert (job.reason, job.nodes, job.num_nodes) == ("Reserved | for (others), n1", "n[1-2]", 2)
    assert (job.elapsed_s, job.limit_s, job.memory) == (93784, 600, 500 << 20)


def test_rows_of_sacct_are_a_job_and_its_steps() -> None:
    text = "\n".join([
        row("7", "COMPLETED", ExitCode="0:0", ElapsedRaw="90", TimelimitRaw="60", ReqMem="32G", NNodes="2"),
        row("7.batch", "COMPLETED", MaxRSS="1024K", MaxRSSNode="n1"),
        row("7.0", "FAILED", ExitCode="3:0", MaxRSS="15G", MaxRSSNode="n2", NodeList="n[1-2]"),
        "rubbish",
    ])  # fmt: skip
    (job,) = parse_accounting(text)
    assert (job.elapsed_s, job.limit_s, job.memory) == (90, 3600, 16 * GIB)
    assert job.max_rss is not None and (job.max_rss.max_rss, job.max_rss.max_rss_node) == (15 * GIB, "n2")
    assert job.failed_step is not None and (job.failed_step.id, job.failed_step.code) == ("7.0", 3)


@pytest.mark.parametrize(
    ("asked", "nodes", "cpus", "size"),
    [
        ("32G", "2", "8", 16 * GIB),  # since 21.08: of the whole job
        ("16Gn", "2", "8", 16 * GIB),  # before: of a node
        ("4Gc", "2", "8", 16 * GIB),  # before: of a core
        ("500M", "1", "1", 500 << 20),
        ("16?", "1", "1", None),
        ("", "1", "1", None),
        ("0", "1", "1", 0),
    ],
)
def test_memory_that_was_asked_for_is_of_a_node(asked: str, nodes: str, cpus: str, size: int | None) -> None:
    (job,) = parse_accounting(row("7", ReqMem=asked, NNodes=nodes, NCPUS=cpus))
    assert job.memory == size


@pytest.mark.parametrize("limit", ["UNLIMITED", "Partition_Limit", "", "INVALID"])
def test_a_limit_that_is_no_number_is_none(limit: str) -> None:
    assert parse_accounting(row("7", TimelimitRaw=limit))[0].limit_s is None


def test_details_come_from_keys_that_begin_a_line() -> None:
    text = (
        "JobId=7 JobName=x StdOut=/wrong ExitCode=9:9\n   JobState=FAILED Reason=NonZeroExitCode Dependency=(null)\n"
        "   Requeue=1 Restarts=0 BatchFlag=1 Reboot=0 ExitCode=3:0\n   Command=/a b/job.sh\n   WorkDir=/a b\n"
        "   StdErr=/a b/slurm 7.out\n   StdIn=/dev/null\n   StdOut=/a b/slurm 7.out\n"
    )
    found = parse_details(text)
    assert (found.code, found.work_dir, found.outputs) == (3, "/a b", ("/a b/slurm 7.out",))
    assert parse_details("slurm_load_jobs error\n").outputs == ()


@pytest.mark.parametrize(
    ("text", "job_id"),
    [
        ("4711", "4711"), ("4711_3", "4711_3"), ("4711+1", "4711+1"), ("4711.0", "4711"), ("4711.batch", "4711"),
        ("4711_[3-9]", "4711"), ("4711_3.0", "4711_3"), ("", None), ("train-2026", None), ("47x", None), ("٤٧", None),
        ("4711;rm", None), ("4711 ", None), ("--all", None), ("67043328", "67043328"),
        # all jobs, to sacct
        ("0", None), ("00", None), ("0_1", None), ("4294967296", None), ("4294967297_1", None), ("9999999999", None),
    ],
)  # fmt: skip
def test_what_is_a_job_id(text: str, job_id: str | None) -> None:
    assert job_id_of(text) == job_id


@pytest.mark.parametrize(
    ("queued", "recorded", "state", "note"),
    [
        ("", "", "", "neither squeue nor sacct lists it"),
        # ended a moment ago, and the accounting has not noticed
        (queue("7", "FAILED"), row("7", "RUNNING"), "FAILED", ""),
        # an end that the accounting never saw: not "running", and surely not "completed"
        ("", row("7", "RUNNING"), "", "how it ended is not known"),
        ("", row("7", "CANCELLED by 501"), "CANCELLED by 501", ""),
        (queue("7", "CANCELLED"), row("7", "CANCELLED by 501"), "CANCELLED by 501", ""),
        (queue("7", "RUNNING"), "", "RUNNING", ""),
        (queue("7", "PENDING"), row("7", "REQUEUED") + "\n" + row("7", "PENDING"), "PENDING", ""),
    ],
)
def test_the_queue_and_the_accounting_together(queued: str, recorded: str, state: str, note: str) -> None:
    found = merge("7", parse_queue(queued), parse_accounting(recorded))
    assert found.state == state
    assert note in " ".join(found.notes) and bool(note) == bool(found.notes)


def test_a_squeue_that_does_not_answer_leaves_the_accounting_s_word() -> None:
    found = merge("7", [], parse_accounting(row("7", "RUNNING")), squeue_answers=False)
    assert (found.state, found.notes) == ("RUNNING", ())


def test_earlier_starts_of_a_requeued_job_are_told() -> None:
    text = "\n".join([row("7", "NODE_FAIL"), row("7.0", "CANCELLED"), row("7", "FAILED"), row("7.0", "FAILED")])
    found = merge("7", [], parse_accounting(text))
    assert (found.state, found.earlier, [step.state for step in found.steps]) == ("FAILED", ("NODE_FAIL",), ["FAILED"])


def test_of_an_array_the_first_task_that_failed_is_told() -> None:
    text = "\n".join([row("7_0", "COMPLETED"), row("7_1", "TIMEOUT"), row("7_2", "COMPLETED"), row("7_3", "FAILED")])
    found = merge("7", [], parse_accounting(text))
    assert (found.id, dict(found.tasks)) == ("7_1", {"COMPLETED": 2, "TIMEOUT": 1, "FAILED": 1})
    assert merge("7_3", [], parse_accounting(text)).id == "7_3"
