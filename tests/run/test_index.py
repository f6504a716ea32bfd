"""Paths of a run, its format, and how a run is found again."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hpc_train.errors import SpecError
from hpc_train.files import write_json
from hpc_train.run.index import add_to_index, find_run, index_path, open_run, read_index, tidy_index
from hpc_train.run.jobs import record_job
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


def test_the_whole_name_of_a_job_goes_before_the_beginning_of_another_s(
    tmp_path: Path, environ: dict[str, str]
) -> None:
    names = ("gpt-20260101-101112-aaaaaa", "gpt-large-20260102-101112-bbbbbb", "it-s-50-20260102-101112-cccccc")
    runs = [make_run(tmp_path / name) for name in names]
    for number, run in enumerate(runs):
        add_to_index(environ, run, str(number))
    assert find_run("gpt", environ) == runs[0]
    assert find_run("gpt-l", environ) == runs[1]
    assert find_run("it's 50%", environ) == runs[2]
    with pytest.raises(SpecError, match=r"'g' fits 2 runs"):
        find_run("g", environ)
    again = make_run(tmp_path / "gpt-20260103-101112-dddddd")
    add_to_index(environ, again, "7")
    with pytest.raises(SpecError, match=rf"'gpt' fits 2 runs \({names[0]}, {again.name}\)"):
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
    assert [entry.name for entry in read_index(environ)] == [run.name for run in runs]


def test_a_job_id_of_two_clusters_names_both(runs: list[RunDir], environ: dict[str, str]) -> None:
    for run, site in zip(runs, ("alpine", "summit"), strict=False):
        add_to_index(environ, run, "77", site=site)
    with pytest.raises(SpecError, match=r"'77' fits 2 runs \(alpine:77, summit:77\); write one of these"):
        find_run("77", environ)
    assert [find_run(f"{site}:77", environ) for site in ("alpine", "summit")] == runs[:2]


def test_two_runs_of_one_name_are_told_apart_by_their_paths(tmp_path: Path, environ: dict[str, str]) -> None:
    paths = [tmp_path / place / "same" for place in ("a", "b")]
    for number, path in enumerate(paths):
        add_to_index(environ, make_run(path), str(number))
    with pytest.raises(SpecError, match=rf"'same' fits 2 runs \({paths[0]}, {paths[1]}\); give the path"):
        find_run("same", environ)
    assert find_run("1", environ).path == paths[1]


def test_a_job_that_no_login_node_noted_is_found_in_the_runs_records(
    runs: list[RunDir], environ: dict[str, str]
) -> None:
    runs[1].submission(3).path.mkdir()
    write_json(runs[1].submission(3).submit, {"job_id": "5000"})
    write_json(runs[0].submission(0).submit, {"job_id": ["5000"]})
    assert find_run("5000", environ) == runs[1]
    record_job(runs[2].submission(0), "5001", attempt=3)  # a successor, which a node submitted
    assert find_run("5001", environ) == runs[2]


def test_a_moved_run_is_found_by_its_path_and_a_new_one_of_its_name_by_name(
    runs: list[RunDir], environ: dict[str, str], tmp_path: Path
) -> None:
    moved = tmp_path / "elsewhere" / runs[2].name
    moved.parent.mkdir()
    runs[2].path.rename(moved)
    assert find_run(str(moved), environ).path == moved
    add_to_index(environ, RunDir(moved), "1002")
    assert find_run("vit", environ).path == find_run("1002", environ).path == moved


def test_half_a_line_of_a_writer_that_was_killed_costs_no_other(runs: list[RunDir], environ: dict[str, str]) -> None:
    path = index_path(environ)
    assert path is not None
    with open(path, "ab") as file:
        file.write(b'{"run": "tor')
    add_to_index(environ, runs[0], "9")
    assert read_index(environ)[-1].job_id == "9"


def test_entries_without_a_run_are_dropped(runs: list[RunDir], environ: dict[str, str]) -> None:
    os.rename(runs[1].path, runs[1].path.with_name("gone"))
    assert tidy_index(environ) == 1
    assert [entry.name for entry in read_index(environ)] == [runs[0].name, runs[2].name]
    path = index_path(environ)
    assert path is not None and path.stat().st_mode & 0o777 == 0o600
    assert tidy_index(environ) == 0
    assert tidy_index({}) == 0


def _add_many(environ: dict[str, str], run: RunDir, first: int) -> None:
    for number in range(first, first + 40):
        add_to_index(environ, run, str(number))


def test_tidying_loses_no_entry_that_is_added_meanwhile(runs: list[RunDir], environ: dict[str, str]) -> None:
    writers = [multiprocessing.Process(target=_add_many, args=(environ, runs[0], 1000 * n)) for n in (2, 3)]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        add_to_index(environ, RunDir(runs[0].path.with_name("never")), "1")  # so that there is something to drop
        tidy_index(environ)
    for writer in writers:
        writer.join(30)
    found = [entry.job_id for entry in read_index(environ) if entry.path == runs[0].path]
    assert sorted(found[1:]) == [str(1000 * n + k) for n in (2, 3) for k in range(40)]


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
    assert reason.startswith(f"{tmp_path}/run.json is damaged (Expecting property name")
    (tmp_path / "run.json").unlink()
    (tmp_path / "run.json").mkdir()
    assert "run.json is damaged (not a regular file)" in str(find_run_format(tmp_path))


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


def test_one_byte_that_is_no_utf_8_hides_no_other_run(runs: list[RunDir], environ: dict[str, str]) -> None:
    path = index_path(environ)
    assert path is not None
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b'{"run": "\xff\n' + lines[1].replace(b"1001", b"10\xff1") + lines[2] + b"\xfe")
    assert [entry.path for entry in read_index(environ)] == [runs[0].path, runs[2].path]
    assert find_run("vit", environ) == runs[2]


def test_tidying_drops_what_no_line_of_ours_is_and_keeps_the_rest(runs: list[RunDir], environ: dict[str, str]) -> None:
    path = index_path(environ)
    assert path is not None
    path.write_bytes(b"\xff\n" + path.read_bytes())
    shutil.rmtree(runs[1].path)
    assert tidy_index(environ) == 1
    assert [entry.path for entry in read_index(environ)] == [runs[0].path, runs[2].path]
    assert b"\xff" not in path.read_bytes()
