"""Paths of a run, its format, and how a run is found again."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hpc_train.errors import SpecError
from hpc_train.files import write_json
from hpc_train.run.index import add_to_index, find_run, index_path, open_run, read_index
from hpc_train.run.layout import RunDir, find_run_format
from tests.run.records import make_run


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """A home of its own."""
    return {"HOME": str(tmp_path / "home")}


@pytest.fixture
def runs(tmp_path: Path, environ: dict[str, str]) -> list[RunDir]:
    """Three runs in the index."""
    names = ("gpt-20260101-aa11", "gpt-20260102-bb22", "vit-20260102-cc33")
    found = [make_run(tmp_path / "runs" / name) for name in names]
    for number, run in enumerate(found):
        assert add_to_index(environ, run, str(1000 + number)) is None
    return found


@pytest.mark.parametrize(
    ("reference", "number"),
    [
        ("gpt-20260101-aa11", 0),  # its name
        ("vit", 2),  # the beginning of its name
        ("gpt-20260102", 1),
        ("1001", 1),  # its job id
    ],
)
def test_a_run_is_found(reference: str, number: int, runs: list[RunDir], environ: dict[str, str]) -> None:
    assert find_run(reference, environ) == runs[number]


def test_a_run_is_found_by_its_path(
    runs: list[RunDir], environ: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_run(str(runs[0].path), environ) == runs[0]
    monkeypatch.chdir(runs[0].path.parent)
    assert find_run(runs[0].name, {}) == runs[0]
    assert find_run(f"./{runs[0].name}/", {}) == runs[0]


def test_a_local_job_id_with_a_path_in_it_is_found(runs: list[RunDir], environ: dict[str, str]) -> None:
    job_id = f"local:{runs[1].path}/submission-00"
    add_to_index(environ, runs[1], job_id)
    assert find_run(job_id, environ) == runs[1]


def test_a_run_submitted_twice_is_one_run(runs: list[RunDir], environ: dict[str, str]) -> None:
    add_to_index(environ, runs[2], "2000")
    assert find_run("vit", environ) == find_run("2000", environ) == runs[2]


def test_a_reference_that_fits_several_runs_names_them(runs: list[RunDir], environ: dict[str, str]) -> None:
    with pytest.raises(SpecError, match=r"'gpt' fits 2 runs \(gpt-20260101-aa11, gpt-20260102-bb22\)"):
        find_run("gpt", environ)


@pytest.mark.parametrize("reference", ["nothing", "\0", "x" * 5000, "gpt-20260101-aa11-more"])
def test_a_reference_that_fits_none_says_what_can_be_given(
    reference: str, runs: list[RunDir], environ: dict[str, str]
) -> None:
    with pytest.raises(SpecError, match="give its directory, its name, or its job id"):
        find_run(reference, environ)


def test_an_empty_reference_is_not_the_only_run_there_is(tmp_path: Path, environ: dict[str, str]) -> None:
    add_to_index(environ, make_run(tmp_path / "only"), "1")
    with pytest.raises(SpecError, match="no run given"):
        find_run("", environ)


def test_a_run_that_was_removed_is_not_found(runs: list[RunDir], environ: dict[str, str]) -> None:
    os.rename(runs[2].path, runs[2].path.with_name("gone"))
    with pytest.raises(SpecError, match="no run 'vit'"):
        find_run("vit", environ)


def test_a_path_that_holds_no_run_says_so(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"holds no run \(there is no run.json\)"):
        find_run(f"{tmp_path}/", {})


def test_damaged_lines_of_the_index_are_passed_over(runs: list[RunDir], environ: dict[str, str]) -> None:
    path = index_path(environ)
    assert path is not None
    path.write_bytes(b'\n{"run": 1}\n[]\n3\n{"run": "x"\n' + path.read_bytes() + b'{"run": "tor')
    assert [name for name, _, _ in read_index(environ)] == [run.name for run in runs]


def test_an_index_that_is_no_text_is_empty(environ: dict[str, str], runs: list[RunDir]) -> None:
    path = index_path(environ)
    assert path is not None
    path.write_bytes(b"\xff\xff\n")
    assert read_index(environ) == []


def test_a_full_home_costs_a_warning_not_the_submission(runs: list[RunDir]) -> None:
    warning = add_to_index({"XDG_STATE_HOME": "/dev/full"}, runs[0], "1")
    assert warning is not None
    assert "find this run by its path" in warning


def test_a_home_that_is_read_only_costs_a_warning(runs: list[RunDir]) -> None:
    # /proc takes no directory from anybody, root included.
    warning = add_to_index({"XDG_STATE_HOME": "/proc/self"}, runs[0], "1")
    assert warning is not None


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({"XDG_STATE_HOME": "/s", "HOME": "/h"}, Path("/s/hpc-train/runs.jsonl")),
        ({"XDG_STATE_HOME": "s", "HOME": "/h"}, Path("/h/.local/state/hpc-train/runs.jsonl")),  # relative: not allowed
        ({"HOME": "/h"}, Path("/h/.local/state/hpc-train/runs.jsonl")),
        ({"HOME": "h"}, None),
        ({}, None),
    ],
)
def test_the_index_lies_where_the_freedesktop_rules_say(environ: dict[str, str], expected: Path | None) -> None:
    assert index_path(environ) == expected


@pytest.mark.parametrize(
    ("record", "words"),
    [
        ({"format": "hpc-train-run", "version": 2}, "run format version 2, this hpc-train reads version 1"),
        ({"format": "hpc-train-run"}, "run format version None"),
        ({"format": "other", "version": 1}, "is not the record of an hpc-train run"),
        ([], "is not the record of an hpc-train run"),
    ],
)
def test_a_run_of_another_format_is_refused(tmp_path: Path, record: object, words: str) -> None:
    write_json(tmp_path / "run.json", record)
    with pytest.raises(SpecError, match=words):
        open_run(tmp_path)


def test_a_run_record_that_cannot_be_read_is_a_reason_too(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{")
    reason = find_run_format(tmp_path)
    assert reason is not None
    assert "cannot be read" in reason


def test_attempts_and_submissions_come_in_order_and_foreign_names_do_not_count(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    for name in (
        "attempt-002",
        "attempt-1000",
        "attempt-999",
        "attempt-1",
        "attempt-x",
        "submission-01",
        "submission-00",
    ):
        (tmp_path / name).mkdir()
    assert [attempt.number for attempt in run.attempts()] == [2, 999, 1000]
    assert [submission.number for submission in run.submissions()] == [0, 1]
    assert run.attempt(1000).path in [attempt.path for attempt in run.attempts()]


def test_every_path_of_a_run_lies_inside_it(tmp_path: Path) -> None:
    run = RunDir(tmp_path)
    for owner in (run, run.submission(3), run.attempt(12)):
        found = [getattr(owner, name) for name, value in vars(type(owner)).items() if isinstance(value, property)]
        paths = [path for path in found if isinstance(path, Path)]
        assert all(path.is_relative_to(tmp_path) for path in paths)
        assert len(set(paths)) == len(paths) >= 5


def test_the_room_stands_on_the_standard_library(tmp_path: Path) -> None:
    text = "import sys, hpc_train.run.index, hpc_train.run.marks, hpc_train.run.journal, hpc_train.run.ownership\n"
    text += "print([n for n in sys.modules if n.split('.')[0] in ('torch', 'numpy', 'mpi4py', 'msgspec', 'click')])"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr
