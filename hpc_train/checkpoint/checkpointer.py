"""Checkpointer: save and load the state of a training, the class that users hold.

Apart from the protocol (saving.py) and the restoring (loading.py) because it only chooses: which root, which step,
which older checkpoint when the newest is damaged.
"""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import Any

from hpc_train.checkpoint.agreement import DamagedCheckpoint, agree, attempt, together
from hpc_train.checkpoint.catalogue import list_checkpoints
from hpc_train.checkpoint.loading import Restore
from hpc_train.checkpoint.names import MAX_STEP, step_name
from hpc_train.checkpoint.reader import OpenCheckpoint
from hpc_train.checkpoint.root import Root
from hpc_train.checkpoint.saving import SaveRequest, save
from hpc_train.checkpoint.writers import WRITERS
from hpc_train.errors import CheckpointError, UsageError
from hpc_train.world import World, alone, on_root

__all__ = ["Checkpointer"]

log = logging.getLogger(__name__)

READ_GRACE_S = 600.0
SLOWEST_BYTES_PER_S = 5_000_000


class Checkpointer:
    """Saves and loads checkpoints under one root. All ranks make one, with the same arguments.

    Args:  root: directory of the checkpoints; None: `checkpoints` in the run's directory.   world: None: one process.
        keep: how many committed checkpoints stay after a save (>= 1); None keeps all.
        writer: "auto" (MPI-IO where the World has MPI, else POSIX), "mpiio" or "posix"; the files are the same.
    Raises: UsageError for a wrong argument, or no root outside a run.
    """

    def __init__(
        self,
        root: str | Path | None = None,
        *,
        world: World | None = None,
        keep: int | None = 3,
        writer: str = "auto",
    ) -> None:
        self._world: World = alone("Checkpointer") if world is None else world
        run_dir = self._world.run_dir
        if root is None and run_dir is None:
            raise UsageError("Checkpointer(root=None) outside a run: give the directory for the checkpoints")
        if keep is not None and (type(keep) is not int or keep < 1):
            raise UsageError(f"keep = {keep!r}; allowed: an int of 1 or more, or None to keep all")
        if writer not in WRITERS:
            raise UsageError(f"writer = {writer!r}; allowed: {', '.join(WRITERS)}")
        self.root = Path(root) if root is not None else Path(str(run_dir)) / "checkpoints"
        self._root = Root(self.root, _owner(self.root, run_dir))
        self._keep, self._writer = keep, writer
        self._damaged: set[int] = set()
        self._left_newer = False

    def save(self, step: int, state: dict[str, Any], *, per_rank: dict[str, Any] | None = None) -> Path:
        """Save a state and return when it is committed. Collective: all ranks call it with a state described alike.

        Args:  state: named parts, each an object with `state_dict()`, or nested dicts, lists and tuples of tensors,
            numpy arrays and plain values; every rank holds the same.   per_rank: the same, of this rank alone
            (random generators, position in the data).
        Returns: the directory of the checkpoint. A checkpoint of the same step is replaced in the same instant.
        Raises: the same error on all ranks, with earlier checkpoints untouched: NoSpaceError, StorageError,
            PermissionDeniedError, CheckpointError (state differs between ranks or cannot be stored; the root belongs to
            another run or holds a newer step), Superseded (another attempt owns the run).
        """
        begin = time.monotonic()
        request = SaveRequest(
            step=step,
            state=state,
            per_rank=per_rank,
            keep=self._keep,
            writer=self._writer,
            damaged=frozenset(self._damaged),
            newer_is_left=self._left_newer,
        )
        path, num_bytes = save(self._world, self._root, request)
        self._damaged.discard(step)
        self._left_newer = False
        seconds = round(time.monotonic() - begin, 3)
        self._world.record("commit", step=step, path=str(path), bytes=num_bytes, seconds=seconds)
        return path

    def load(
        self,
        state: dict[str, Any],
        *,
        per_rank: dict[str, Any] | None = None,
        step: int | str = "latest",
        per_rank_on_resize: str = "refuse",
    ) -> int | None:
        """Restore a state in place from the newest checkpoint that is whole. Collective.

        Tensors are copied into the live ones (shape and dtype must match), objects get `load_state_dict`, plain values
        are assigned; parts of the checkpoint that `state` does not name stay unread.

        Args:  step: "latest", or the step to load (later checkpoints are put aside by the next save then).
            per_rank_on_resize: what to do with `per_rank` when the checkpoint is of another number of ranks:
            "refuse" or "skip" (leave it as it is).
        Returns: the step; None when there is no checkpoint. A damaged newest one is skipped with a warning.
        Raises: the same error on all ranks: CheckpointError if it does not fit the state (nothing was touched), if the
            step asked for is missing or damaged, or all are damaged (the state is undefined then).
        """
        if per_rank_on_resize not in ("refuse", "skip"):
            raise UsageError(f"per_rank_on_resize = {per_rank_on_resize!r}; allowed: refuse, skip")
        is_step = type(step) is int and 0 <= step <= MAX_STEP
        if step != "latest" and not is_step:
            raise UsageError(f'step = {step!r}; allowed: "latest" or an int from 0 to {MAX_STEP}')
        steps = on_root(self._world, self._candidates)
        if is_step:
            if step not in steps:
                raise CheckpointError(f"{self.root}: no checkpoint of step {step}; there are: {steps or 'none'}")
            self._left_newer = step != steps[0]
            steps = [int(step)]
        problems: list[str] = []
        for candidate in steps:
            try:
                self._restore(candidate, state, per_rank, per_rank_on_resize)
            except DamagedCheckpoint as error:
                self._note_damage(candidate, str(error))
                problems.append(str(error))
                continue
            self._world.record("resumed", step=candidate)
            return candidate
        if problems:
            raise CheckpointError(
                f"{self.root}: no checkpoint can be loaded, {len(problems)} tried: {'; '.join(problems)}; `hpc-train"
                " checkpoint verify` shows all damage; start from another root to begin anew"
            )
        return None

    def _candidates(self) -> list[int]:
        """Steps to try, newest first. A committed name without a good COMMIT is tried too, so that it is told of."""
        try:
            self._root.heal()
        except OSError as error:
            log.warning("cannot put back a replaced checkpoint in %s: %s", self.root, error)
        entries = [entry for entry in list_checkpoints(self.root) if entry.status in ("committed", "damaged")]
        return sorted((entry.step for entry in entries if entry.step is not None), reverse=True)

    def _note_damage(self, step: int, problem: str) -> None:
        self._damaged.add(step)
        log.warning("rank %d: checkpoint step %d is damaged, trying an older one: %s", self._world.rank, step, problem)
        self._world.record("checkpoint_damaged", step=step, problem=problem)

    def _restore(self, step: int, state: dict[str, Any], per_rank: dict[str, Any] | None, on_resize: str) -> None:
        """Restore one checkpoint on all ranks, or raise the same error on all. Collective."""
        path = self.root / step_name(step)
        doing = f"cannot load {path}"
        opened, error = attempt(lambda: OpenCheckpoint(path), doing)
        try:
            agree(self._world, error)
            assert opened is not None
            commit = opened.commit
            if len(set(self._world.allgather(commit.save_id))) > 1:
                raise CheckpointError(f"{path}: ranks see different saves of this step; is another job saving there?")

            def match() -> Restore:
                restore = Restore(opened, state, self._rank_part(opened, per_rank, on_resize))
                restore.match(self._world.rank)
                return restore

            with self._world.phase("checkpoint read", READ_GRACE_S + commit.num_bytes / SLOWEST_BYTES_PER_S):
                restore = together(self._world, match, doing)
                together(self._world, restore.read, doing)
                together(self._world, restore.apply, doing)
        finally:
            if opened is not None:
                opened.close()

    def _rank_part(
        self, opened: OpenCheckpoint, per_rank: dict[str, Any] | None, on_resize: str
    ) -> dict[str, Any] | None:
        saved = opened.index.world_size
        if per_rank is None or saved == self._world.size:
            return per_rank
        if on_resize == "skip":
            log.warning("checkpoint of %d ranks loaded on %d: per_rank state is left as it is", saved, self._world.size)
            return None
        raise CheckpointError(
            f"{opened.path}: saved by {saved} ranks, loaded on {self._world.size}: state that each rank had for itself"
            ' (per_rank) has no owner here; load with the same number of ranks, or with per_rank_on_resize="skip"'
        )


def _owner(root: Path, run_dir: Path | None) -> str:
    """Who saves in a root, in the words of its owner record."""
    if run_dir is None:
        return "standalone"
    # Not the path where the root lies in the run's own directory: that may be moved between two attempts.
    is_inside = root.resolve().is_relative_to(run_dir.resolve())
    return "the run in whose directory this lies" if is_inside else str(run_dir.resolve())
