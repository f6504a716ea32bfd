"""What ties a World to its run: the fence, the journal, the watchdog's page."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_train.bootstrap.attachment import Attachment, find_attachment
from hpc_train.bootstrap.solo import AttachedSoloWorld
from hpc_train.errors import StorageError, Superseded
from hpc_train.launch.page import Page
from hpc_train.run.journal import read_journal
from hpc_train.run.layout import RunDir
from hpc_train.run.ownership import take_ownership
from tests.run.records import make_run


@pytest.fixture
def run(tmp_path: Path) -> RunDir:
    return make_run(tmp_path / "run")


def environment(run: RunDir, attempt: int, token: str = "") -> dict[str, str]:
    return {"HPC_TRAIN_RUN_DIR": str(run.path), "HPC_TRAIN_ATTEMPT": str(attempt), "HPC_TRAIN_TOKEN": token}


def test_a_world_knows_its_run_and_attempt(run: RunDir) -> None:
    take_ownership(run)
    owner = take_ownership(run)
    world = AttachedSoloWorld(find_attachment(0, environment(run, 1, owner.token)))
    assert (world.run_dir, world.attempt) == (run.path, 1)


def test_the_fence_lets_the_owner_pass_and_stops_it_once_it_is_superseded(run: RunDir) -> None:
    owner = take_ownership(run)
    world = AttachedSoloWorld(find_attachment(0, environment(run, 0, owner.token)))
    world.fence()
    take_ownership(run)
    with pytest.raises(Superseded, match="attempt 1 owns this run now"):
        world.fence()


def test_a_rank_that_comes_too_late_is_refused_at_once(run: RunDir) -> None:
    owner = take_ownership(run)
    take_ownership(run)
    with pytest.raises(Superseded):
        find_attachment(0, environment(run, 0, owner.token))


def test_the_token_is_taken_from_the_run_where_the_launcher_lost_it(run: RunDir) -> None:
    take_ownership(run)
    attachment = find_attachment(0, environment(run, 0))
    attachment.fence()
    take_ownership(run)
    with pytest.raises(Superseded):
        attachment.fence()
    with pytest.raises(Superseded):  # of another attempt: it is not ours to take
        find_attachment(0, environment(run, 0))


def test_an_owner_record_that_cannot_be_read_stops_too(run: RunDir) -> None:
    owner = take_ownership(run)
    run.owner.write_text("{")
    with pytest.raises(StorageError):
        find_attachment(0, environment(run, 0, owner.token))


def test_only_rank_0_writes_the_journal(run: RunDir) -> None:
    owner = take_ownership(run)
    for rank in (0, 1, 2):
        find_attachment(rank, environment(run, 0, owner.token)).record("commit", step=rank)
    assert [(event.event, event.fields) for event in read_journal(run)] == [("commit", {"step": 0})]


def test_outside_a_run_nothing_happens() -> None:
    attachment = find_attachment(0, {})
    attachment.fence()
    attachment.record("step", step=1)
    with attachment.phase("load", 1):
        pass
    assert (attachment.run_dir, attachment.attempt) == (None, 0)


def test_a_phase_is_told_and_taken_back_even_when_it_fails(run: RunDir) -> None:
    page = Page()
    attachment = Attachment(run, 0, token="", page=page, writes=False)
    with pytest.raises(ValueError, match="inside"), attachment.phase("load", 5):
        assert (page.read().phase, page.read().phase_limit_s) == ("load", 5)
        raise ValueError("inside")
    assert (page.read().phase, page.read().phase_limit_s) == ("starting", 0)
