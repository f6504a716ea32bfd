"""The jobs of a run: what was appended is read, whatever else stands in the file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpc_train.files import write_json
from hpc_train.run.jobs import JobRecord, read_jobs, record_job, record_withdrawn, standing_jobs
from tests.run.records import make_run


def test_jobs_are_read_in_the_order_in_which_they_came(tmp_path: Path) -> None:
    run = make_run(tmp_path / "r")
    write_json(run.submission(0).submit, {"job_id": "7", "scheduler": "slurm", "site": "s"})
    record_job(run.submission(0), "8", attempt=0)
    record_job(run.submission(0), "7")  # it tells of itself
    record_job(run.submission(0), "9", attempt=1)
    record_withdrawn(run.submission(0), "9")
    run.submission(1).path.mkdir()
    record_job(run.submission(1), "12")
    assert read_jobs(run) == [
        JobRecord(0, "7"),
        JobRecord(0, "8", 0),
        JobRecord(0, "9", 1, withdrawn=True),
        JobRecord(1, "12"),
    ]
    assert [job.job_id for job in standing_jobs(run)] == ["7", "8", "12"]


def test_damaged_lines_are_passed_over(tmp_path: Path) -> None:
    run = make_run(tmp_path / "r")
    run.submission(0).submit.write_text("{")
    lines = [
        '{"job_id": "8"',
        "[]",
        "7",
        '{"job_id": 9}',
        '{"job_id": ""}',
        '{"job_id": "5", "attempt": "x"}',
        "[" * 9999,
    ]
    run.submission(0).jobs.write_text("\n".join([*lines, '{"job_id": "10", "attempt": 3}', '{"job_']))
    assert read_jobs(run) == [JobRecord(0, "10", 3)]


def test_one_byte_that_is_no_utf_8_hides_no_other_job(tmp_path: Path) -> None:
    run = make_run(tmp_path / "r")
    record_job(run.submission(0), "8", attempt=0)
    with open(run.submission(0).jobs, "ab") as file:
        file.write(b'{"job_id": "\xff"}\n')
    record_job(run.submission(0), "9", attempt=1)
    assert [job.job_id for job in read_jobs(run)] == ["8", "9"]


@pytest.mark.timeout(20)
def test_a_pipe_in_place_of_the_jobs_keeps_nobody_waiting(tmp_path: Path) -> None:
    run = make_run(tmp_path / "r")
    os.mkfifo(run.submission(0).jobs)
    assert read_jobs(run) == []
    with pytest.raises(OSError, match="No such device"):
        record_job(run.submission(0), "9")
