"""Checkpointer: save and load the state of a training, the class that users hold.

Apart from the protocol (saving.py) and the restoring (loading.py) because it only chooses: which root, which step,
which older checkpoint when the newest is damaged.
"""

from __future__ import annotations

import contextlib
import logging
import operator
import time
from pathlib import Path
from typing import Any

from hpc_train.checkpoint.agreement import DamagedCheckpoint, agree, attempt, together
from hpc_train.checkpoint.catalogue import list_checkpoints
from hpc_train.checkpoint.loading import Restore
from hpc_train.checkpoint.names import MAX_STEP, step_name
from hpc_train.checkpoint.reader import OpenCheckpoint
from hpc_train.checkpoint.resize import ON_RESIZE, Resize, check_resizable, plan_resize
from hpc_train.checkpoint.root import STANDALONE, Root
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
        is_inside = run_dir is not None and self.root.resolve().is_relative_to(run_dir.resolve())
        self._root = Root(self.root, _owner(run_dir, is_inside=is_inside), run_dir if is_inside else None)
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
        step = _plain(step)
        request = SaveRequest(
            step=step,
            state=state,
            per_rank=per_rank,
            keep=self._keep,
            writer=self._writer,
            damaged=frozenset(self._damaged),
            newer_is_left=self._left_newer,
            run="" if self._world.run_dir is None else self._world.run_dir.name,
            attempt=None if self._world.run_dir is None else self._world.attempt,
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
        per_rank_on_resize: str = "reseed",
    ) -> int | None:
        """Restore a state in place from the newest checkpoint that is whole. Collective.

        Tensors are copied into the live ones (shape and dtype must match), objects get `load_state_dict`, plain values
        are assigned; parts of the checkpoint that `state` does not name stay unread.

        Args:  step: "latest", or the step to load (later checkpoints are put aside by the next save then).
            per_rank_on_resize: what to do with `per_rank` of another number of ranks: "reseed" (ranks that saved get
            their own back, others begin anew; for parts with `load_resized(state, seed)`, as `rng_state()`, else
            refuse), "refuse" or "skip" (leave it). Log and journal say that the run is not bit-equal from there.
        Returns: the step; None when there is no checkpoint. A damaged newest one is skipped with a warning.
        Raises: the same error on all ranks: CheckpointError if it does not fit the state (nothing was touched), if the
            step asked for is missing or damaged, or all are damaged (the state is undefined then).
        """
        step = _plain(step)
        is_step = _is_step(step, per_rank_on_resize)
        steps = on_root(self._world, self._candidates)
        if is_step:
            if step not in steps:
                raise CheckpointError(f"{self.root}: no checkpoint of step {step}; there are: {steps or 'none'}")
            self._left_newer = step != steps[0]
            steps = [int(step)]
        problems: list[str] = []
        for candidate in steps:
            try:
                resize = self._restore(candidate, state, per_rank, per_rank_on_resize)
            except DamagedCheckpoint as error:
                self._note_damage(candidate, str(error))
                problems.append(str(error))
                continue
            if problems:
                self._tell_fallback(candidate, steps[: len(problems)], problems[0])
            self._world.record("resumed", step=candidate)
            self._tell_other_owner(candidate)
            if resize is not None:
                self._tell_resize(candidate, resize, is_training=per_rank is not None)
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
        # The text names the rank, and is the same on all: one line of it is enough.
        log_at = log.warning if self._world.rank == 0 else log.info
        log_at("checkpoint step %d is damaged, trying an older one: %s", step, problem)
        self._world.record("checkpoint_damaged", step=step, problem=problem[:1000])

    def _tell_fallback(self, step: int, damaged: list[int], problem: str) -> None:
        log_at = log.warning if self._world.rank == 0 else log.info
        log_at("loaded checkpoint step %d in place of %d newer ones that are damaged", step, len(damaged))
        self._world.record("fallback", step=step, damaged=damaged[:20], problem=problem[:1000])

    def _tell_other_owner(self, step: int) -> None:
        """Of two runs with one fixed root the second goes on where the first has ended, and may have nothing to do."""
        owner = self._root.other_owner() if self._world.rank == 0 else ""
        if owner:
            self._world.record("loaded_from", step=step, run=owner)
            log.warning(
                "checkpoint step %d in %s was saved by another run (%s): this one goes on from it, and cannot save "
                "there; to begin anew give this run a root of its own", step, self.root, owner,
            )  # fmt: skip

    def _tell_resize(self, step: int, resize: Resize, *, is_training: bool) -> None:
        """Say aloud that the run is no longer the one of the other size, bit for bit."""
        self._world.record("resized", step=step, saved_ranks=resize.saved, num_ranks=resize.size, bit_equal=False)
        if self._world.rank == 0:
            is_loud = is_training or self._world.run_dir is not None  # not where a checkpoint is only looked at
            log.log(
                logging.WARNING if is_loud else logging.INFO,
                "checkpoint step %d was saved by %s and goes on with %d: the same samples in the same order, but "
                "from here on not bit-equal to a run on %s (other sums, other random numbers)",
                step, resize.saved_by, resize.size, resize.saved_by,
            )  # fmt: skip

    def _restore(
        self, step: int, state: dict[str, Any], per_rank: dict[str, Any] | None, on_resize: str
    ) -> Resize | None:
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
            resize = plan_resize(opened, rank=self._world.rank, size=self._world.size)
            mine = None if resize is not None and on_resize == "skip" else per_rank

            def match() -> Restore:
                if resize is not None and mine is not None:
                    check_resizable(mine, resize, on_resize, str(path))
                restore = Restore(opened, state, mine, resize)
                restore.match(self._world.rank)
                return restore

            with self._world.phase("checkpoint read", READ_GRACE_S + commit.num_bytes / SLOWEST_BYTES_PER_S):
                restore = together(self._world, match, doing)
                together(self._world, restore.read, doing)
                together(self._world, restore.apply, doing)
            return resize
        finally:
            if opened is not None:
                opened.close()


def _plain(step: Any) -> Any:
    """Python's own int for a whole number of NumPy; anything else as it is, to be refused or not."""
    with contextlib.suppress(TypeError):
        return step if isinstance(step, bool) else operator.index(step)
    return step


def _is_step(step: int | str, on_resize: str) -> bool:
    """Whether `load` was asked for one step. Raises: UsageError for arguments that it does not take."""
    if on_resize not in ON_RESIZE:
        raise UsageError(f"per_rank_on_resize = {on_resize!r}; allowed: {', '.join(ON_RESIZE)}")
    is_step = type(step) is int and 0 <= step <= MAX_STEP
    if step != "latest" and not is_step:
        raise UsageError(f'step = {step!r}; allowed: "latest" or an int from 0 to {MAX_STEP}')
    return is_step


def _owner(run_dir: Path | None, *, is_inside: bool) -> str:
    """Who saves in a root, in the words of its owner record."""
    if run_dir is None:
        return STANDALONE
    # Not the path where the root lies in the run's own directory: that may be moved between two attempts.
    return "the run in whose directory this lies" if is_inside else str(run_dir.resolve())
