"""Save and load in one process, with numpy arrays: what comes back, what is refused, what is kept."""

from __future__ import annotations

import logging
import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpc_train.checkpoint import Checkpointer, list_checkpoints, rng_state, verify_checkpoint
from hpc_train.checkpoint.catalogue import newest
from hpc_train.checkpoint.names import in_progress_name
from hpc_train.errors import CheckpointError, NoSpaceError, Superseded, UsageError
from tests.checkpoint.run_world import RunWorld


def state(value: float) -> dict[str, Any]:
    return {"model": {"w": np.full((3, 4), value), "i": np.full(5, int(value), np.int32)}, "train": {"epoch": value}}


def value_of(live: dict[str, Any]) -> float:
    assert (live["model"]["w"] == live["train"]["epoch"]).all()
    return float(live["train"]["epoch"])


def flip(path: Path, position: int) -> None:
    data = bytearray(path.read_bytes())
    data[position] ^= 1
    path.write_bytes(data)


def test_arrays_are_restored_in_place(tmp_path: Path) -> None:
    Checkpointer(tmp_path).save(1, state(2.0))
    live = state(0.0)
    array, part = live["model"]["w"], live["model"]
    assert Checkpointer(tmp_path).load(live) == 1
    assert value_of(live) == 2.0
    assert live["model"]["w"] is array and live["model"] is part


def test_no_checkpoint_is_none_and_touches_nothing(tmp_path: Path) -> None:
    live = state(1.0)
    assert Checkpointer(tmp_path / "none").load(live) is None
    assert value_of(live) == 1.0
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"w": np.zeros((3, 5))}, r"'model\.w'.*\[3, 4\].*\[3, 5\]"),
        ({"w": np.zeros((3, 4), np.float32)}, r"'model\.w'.*F64.*F32.*nothing is cast"),
        ({"extra": np.zeros(2)}, r"'model\.extra' is not in the checkpoint"),
    ],
)
def test_what_does_not_fit_is_refused_and_nothing_is_touched(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    Checkpointer(tmp_path).save(1, state(2.0))
    live = state(0.0)
    live["model"].update(change)
    with pytest.raises(CheckpointError, match=message):
        Checkpointer(tmp_path).load(live)
    assert (live["model"]["i"] == 0).all()


def test_a_part_that_was_not_saved_is_named_and_others_can_be_left(tmp_path: Path) -> None:
    Checkpointer(tmp_path).save(1, state(2.0))
    with pytest.raises(CheckpointError, match="'optimizer' is not in the checkpoint; saved there: model, train"):
        Checkpointer(tmp_path).load({"optimizer": {}})
    live = {"train": {"epoch": 0.0}}
    assert Checkpointer(tmp_path).load(live) == 1
    assert live == {"train": {"epoch": 2.0}}


@pytest.mark.parametrize("name", ["data-00000.safetensors", "index.json", "COMMIT"])
def test_damage_falls_back_loudly_and_total_damage_is_an_error(
    tmp_path: Path, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    world = RunWorld(tmp_path)
    checkpoint = Checkpointer(world=world)
    checkpoint.save(1, state(1.0))
    checkpoint.save(2, state(2.0))
    flip(tmp_path / "checkpoints/step-000000002" / name, -5)
    live = state(0.0)
    with caplog.at_level(logging.WARNING):
        assert checkpoint.load(live) == 1
    assert value_of(live) == 1.0
    assert name in caplog.text
    assert [event for event, _ in world.events] == ["commit", "commit", "checkpoint_damaged", "fallback", "resumed"]
    assert world.events[3][1]["step"] == 1 and world.events[3][1]["damaged"] == [2]
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    flip(tmp_path / "checkpoints/step-000000001" / name, -5)
    with pytest.raises(CheckpointError, match="no checkpoint can be loaded, 2 tried"):
        checkpoint.load(live)


def test_training_goes_on_past_a_damaged_newer_checkpoint(tmp_path: Path) -> None:
    checkpoint = Checkpointer(tmp_path, keep=2)
    for step in (1, 2, 3):
        checkpoint.save(step, state(float(step)))
    flip(tmp_path / "step-000000003/data-00000.safetensors", -1)
    again = Checkpointer(tmp_path, keep=2)
    assert again.load(state(0.0)) == 2
    again.save(3, state(33.0))  # replaces the damaged one
    live = state(0.0)
    assert Checkpointer(tmp_path).load(live) == 3
    assert value_of(live) == 33.0


def test_a_directory_without_commit_is_told_of_and_the_older_one_is_used(tmp_path: Path) -> None:
    Checkpointer(tmp_path).save(50, state(50.0))
    (tmp_path / "step-000000060").mkdir()
    assert [(e.step, e.status) for e in list_checkpoints(tmp_path)] == [(50, "committed"), (60, "damaged")]
    entry = newest(tmp_path)
    assert entry is not None and entry.step == 50
    assert Checkpointer(tmp_path).load(state(0.0)) == 50


def test_odd_names_are_never_loaded_nor_deleted(tmp_path: Path) -> None:
    checkpoint = Checkpointer(tmp_path, keep=1)
    checkpoint.save(1, state(1.0))
    odd = ["step-000000100.backup", "step-1e3", "step-0000000099", ".step-000000001.inprogress-XYZ", "step-99", "old"]
    for name in odd:
        (tmp_path / name).mkdir()
    assert checkpoint.load(state(0.0)) == 1
    checkpoint.save(2, state(2.0))
    checkpoint.save(3, state(3.0))
    kept = sorted(name for name in os.listdir(tmp_path) if (tmp_path / name).is_dir())
    assert kept == sorted([*odd, "step-000000003"])


def test_leftovers_of_dead_saves_are_reaped_by_the_next(tmp_path: Path) -> None:
    for name in (".step-000000009.inprogress-0123abcd", ".deleting-step-000000004-0123abcd"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "data-00000.safetensors").write_bytes(b"x")
    Checkpointer(tmp_path).save(1, state(1.0))
    assert sorted(os.listdir(tmp_path)) == [".owner.lock", "LATEST", "owner.json", "step-000000001"]


def test_a_stale_latest_is_only_advice(tmp_path: Path) -> None:
    Checkpointer(tmp_path).save(1, state(1.0))
    (tmp_path / "LATEST").write_text('{"step": 999}')
    assert Checkpointer(tmp_path).load(state(0.0)) == 1


def test_a_lower_step_is_refused_unless_an_earlier_one_was_loaded_on_purpose(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        Checkpointer(tmp_path).save(step, state(float(step)))
    with pytest.raises(CheckpointError, match=r"step 3, newer than step 2.*was load\(\) forgotten"):
        Checkpointer(tmp_path).save(2, state(0.0))
    again = Checkpointer(tmp_path)
    live = state(0.0)
    assert again.load(live, step=1) == 1
    again.save(2, state(22.0))
    assert Checkpointer(tmp_path).load(live) == 2
    assert value_of(live) == 22.0
    assert [(e.step, e.status) for e in list_checkpoints(tmp_path)] == [
        (1, "committed"),
        (2, "committed"),
        (3, "abandoned"),
    ]


def test_a_superseded_attempt_commits_nothing(tmp_path: Path) -> None:
    world = RunWorld(tmp_path)
    checkpoint = Checkpointer(world=world)
    checkpoint.save(1, state(1.0))
    world.is_superseded = True
    with pytest.raises(Superseded):
        checkpoint.save(2, state(2.0))
    assert [entry.step for entry in list_checkpoints(tmp_path / "checkpoints")] == [1]


def test_an_attempt_that_is_superseded_while_it_writes_commits_nothing(tmp_path: Path) -> None:
    world = RunWorld(tmp_path)
    world.fences_left = 1  # before it writes; the next look comes before the rename
    with pytest.raises(Superseded):
        Checkpointer(world=world).save(2, state(2.0))
    assert list_checkpoints(tmp_path / "checkpoints") == []


def test_a_superseded_attempt_does_not_clear_away_what_its_successor_writes(tmp_path: Path) -> None:
    world = RunWorld(tmp_path)
    checkpoint = Checkpointer(world=world)
    checkpoint.save(1, state(1.0))
    of_successor = tmp_path / "checkpoints" / in_progress_name(2)
    of_successor.mkdir()
    world.is_superseded = True
    with pytest.raises(Superseded):
        checkpoint.save(2, state(2.0))
    assert of_successor.is_dir()


def test_another_run_may_load_from_a_root_is_told_so_and_may_not_save_into_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    root = tmp_path / "root"
    Checkpointer(root, world=RunWorld(tmp_path / "one")).save(1, state(1.0))
    world = RunWorld(tmp_path / "two")
    other = Checkpointer(root, world=world)
    with caplog.at_level(logging.WARNING):
        assert other.load(state(0.0)) == 1
    assert f"was saved by another run ({tmp_path / 'one'})" in caplog.text
    assert ("loaded_from", {"step": 1, "run": str(tmp_path / "one")}) in world.events
    caplog.clear()
    assert Checkpointer(root).load(state(0.0)) == 1  # somebody who looks into it
    assert not caplog.records
    with pytest.raises(CheckpointError, match=r"belongs to the run .*/one.*remove owner\.json"):
        other.save(2, state(2.0))


def test_a_run_whose_directory_was_moved_goes_on_saving(tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    before.mkdir()
    Checkpointer(world=RunWorld(before)).save(1, state(1.0))
    before.rename(after)
    moved = Checkpointer(world=RunWorld(after))
    assert moved.load(state(0.0)) == 1
    moved.save(2, state(2.0))
    with pytest.raises(CheckpointError, match="belongs to the run"):
        Checkpointer(after / "checkpoints", world=RunWorld(tmp_path / "other")).save(3, state(3.0))


def test_umask_is_honoured(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        path = Checkpointer(tmp_path / "root").save(1, state(1.0))
    finally:
        os.umask(before)
    assert [os.stat(p).st_mode & 0o777 for p in (path, path / "COMMIT", path / "data-00000.safetensors")] == [
        0o750,
        0o640,
        0o640,
    ]


def test_setgid_of_a_shared_space_is_inherited(tmp_path: Path) -> None:
    os.chmod(tmp_path, 0o2775)
    path = Checkpointer(tmp_path).save(1, state(1.0))
    assert os.stat(path).st_mode & 0o2000


def test_symbolic_links_inside_are_refused(tmp_path: Path) -> None:
    checkpoint = Checkpointer(tmp_path / "root")
    path = checkpoint.save(1, state(1.0))
    os.rename(path / "data-00000.safetensors", tmp_path / "elsewhere")
    os.symlink(tmp_path / "elsewhere", path / "data-00000.safetensors")
    assert not verify_checkpoint(path).is_good
    os.symlink(path, tmp_path / "root/step-000000002")
    assert not verify_checkpoint(tmp_path / "root/step-000000002").is_good
    with pytest.raises(CheckpointError, match="2 tried"):
        checkpoint.load(state(0.0))


def test_a_pipe_in_place_of_a_file_does_not_hang(tmp_path: Path) -> None:
    path = Checkpointer(tmp_path).save(1, state(1.0))
    os.unlink(path / "index.json")
    os.mkfifo(path / "index.json")
    verdict = verify_checkpoint(path)
    assert "not a regular file" in verdict.problems[0]


def test_tied_arrays_are_stored_once_and_untied_ones_do_not_load_into_tied(tmp_path: Path) -> None:
    w = np.arange(300_000.0)
    path = Checkpointer(tmp_path / "tied").save(1, {"m": {"embed": w, "head": w}})
    assert (path / "data-00000.safetensors").stat().st_size < 1.5 * w.nbytes
    live = {"m": {"embed": np.zeros_like(w), "head": np.zeros_like(w)}}
    Checkpointer(tmp_path / "tied").load(live)
    assert (live["m"]["embed"] == w).all() and (live["m"]["head"] == w).all()
    Checkpointer(tmp_path / "untied").save(1, {"m": {"embed": w, "head": w + 1}})
    shared = np.zeros_like(w)
    with pytest.raises(CheckpointError, match="shares memory"):
        Checkpointer(tmp_path / "untied").load({"m": {"embed": shared, "head": shared}})


def test_random_generators_come_back(tmp_path: Path) -> None:
    checkpoint = Checkpointer(tmp_path)
    checkpoint.save(1, {}, per_rank={"rng": rng_state()})
    expected = (random.random(), float(np.random.random()))
    random.seed(0)
    np.random.seed(0)
    assert checkpoint.load({}, per_rank={"rng": rng_state()}) == 1
    assert (random.random(), float(np.random.random())) == expected


def test_saving_numpy_arrays_needs_no_torch(tmp_path: Path) -> None:
    program = (
        "import sys, numpy\nfrom hpc_train.checkpoint import Checkpointer\n"
        f"c = Checkpointer({str(tmp_path)!r}); c.save(1, {{'m': {{'w': numpy.ones(3)}}}}); c.load({{'m': {{}}}})\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60, cwd=Path(__file__).parents[2])


@pytest.mark.parametrize("arguments", [{"keep": 0}, {"keep": True}, {"writer": "nfs"}, {"root": None}])
def test_wrong_arguments_are_refused(tmp_path: Path, arguments: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Checkpointer(**{"root": tmp_path, **arguments})


@pytest.mark.parametrize("step", [-1, 1.0, True, "1", 10**16, np.int64(-1), np.bool_(1), np.arange(2)])
def test_wrong_steps_are_refused(tmp_path: Path, step: Any) -> None:
    with pytest.raises(UsageError):
        Checkpointer(tmp_path).save(step, {})


@pytest.mark.parametrize("step", [np.int64(3), np.uint8(3), np.array(3)])
def test_a_step_may_be_a_number_of_numpy(tmp_path: Path, step: Any) -> None:
    checkpointer = Checkpointer(tmp_path)
    assert checkpointer.save(step, state(1.0)).name == "step-000000003"
    assert type(checkpointer.load(state(0.0), step=step)) is int


def test_a_root_that_cannot_be_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Exception, match="Not a directory") as error:
        Checkpointer(tmp_path / "file").save(1, state(1.0))
    assert getattr(error.value, "exit_code", None) == 73


def test_file_size_limit_is_a_typed_error(tmp_path: Path) -> None:
    import resource

    checkpoint = Checkpointer(tmp_path)
    checkpoint.save(1, state(1.0))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    try:
        with pytest.raises(NoSpaceError):
            checkpoint.save(2, {"m": {"w": np.ones(1 << 20)}})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert [entry.step for entry in list_checkpoints(tmp_path)] == [1]
    assert not [name for name in os.listdir(tmp_path) if "inprogress" in name]


class ResizedWorld(RunWorld):
    """Rank 0 of two, whose other rank does as it does."""

    size = 2

    def allgather(self, value: Any) -> list[Any]:
        return [value, value]


@pytest.mark.parametrize("is_in_a_run", [True, False])
def test_another_number_of_ranks_is_said_aloud_and_journalled(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, is_in_a_run: bool
) -> None:
    Checkpointer(tmp_path / "root").save(4, state(2.0), per_rank={"random": rng_state()})
    world = ResizedWorld(tmp_path)
    if not is_in_a_run:
        world.run_dir = None
    live = state(0.0)
    per_rank = {"random": rng_state()} if is_in_a_run else None  # without: a look at a checkpoint
    with caplog.at_level("INFO"):
        assert Checkpointer(tmp_path / "root", world=world).load(live, per_rank=per_rank) == 4
    assert world.events == [
        ("resumed", {"step": 4}),
        ("resized", {"step": 4, "saved_ranks": 1, "num_ranks": 2, "bit_equal": False}),
    ]
    told = [record for record in caplog.records if "not bit-equal" in record.message]
    assert [record.levelname for record in told] == ["WARNING" if is_in_a_run else "INFO"]
    assert "saved by 1 rank and goes on with 2" in told[0].message


def test_a_part_of_a_rank_may_say_how_it_goes_on_at_another_size(tmp_path: Path) -> None:
    class Loader:
        def __init__(self) -> None:
            self.resized: list[Any] = []

        def state_dict(self) -> dict[str, Any]:
            return {"position": 7}

        def load_state_dict(self, loaded: dict[str, Any]) -> None:
            raise AssertionError("the size is another one")

        def load_resized(self, loaded: dict[str, Any] | None, seed: int) -> None:
            self.resized.append((loaded, seed))

    Checkpointer(tmp_path / "root").save(1, {}, per_rank={"one": Loader(), "two": Loader()})
    one, two = Loader(), Loader()
    Checkpointer(tmp_path / "root", world=ResizedWorld(tmp_path)).load({}, per_rank={"one": one, "two": two})
    [(of_one, seed_one)], [(of_two, seed_two)] = one.resized, two.resized
    assert of_one == of_two == {"position": 7}
    assert seed_one != seed_two and min(seed_one, seed_two) >= 0
