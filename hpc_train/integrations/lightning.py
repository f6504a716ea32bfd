"""Lightning's Trainer under hpc-train: stop, commit, resume.

Apart because it imports Lightning, under whichever of its two names the program does. No signal handler saves here:
ranks agree between two batches, where no collective of the training is under way.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import sys
from pathlib import Path
from typing import Any

import torch

import hpc_train
from hpc_train.errors import UsageError
from hpc_train.integrations.completion import complete_checkpoints, newest_checkpoint, unmark
from hpc_train.integrations.resumable import ResumableLoader
from hpc_train.integrations.session import Session, find_world

__all__ = ["ResumableLoader", "StopCallback", "newest_checkpoint"]

_KEY = "hpc_train"
_REMEDY = (
    'Trainer(devices=int(os.environ["LOCAL_WORLD_SIZE"]), num_nodes=int(os.environ["GROUP_WORLD_SIZE"])) fits the job'
)


def _checkpoint_base() -> Any:
    """Lightning's class of callbacks that save. They run last, when the others' state is that of the step."""
    one_name = "lightning.pytorch" in sys.modules or "pytorch_lightning" not in sys.modules
    name = "lightning.pytorch" if one_name and importlib.util.find_spec("lightning") else "pytorch_lightning"
    return importlib.import_module(f"{name}.callbacks").Checkpoint


_Checkpoint: Any = _checkpoint_base()


class StopCallback(_Checkpoint):  # type: ignore[misc]
    """Makes a `lightning.Trainer` a good citizen of a run.

    Saves with `Trainer.save_checkpoint` every so many optimizer steps, at the end, and where a wall-time warning asks
    for it; then the program leaves with Stopped (code 75), and the next attempt goes on if the script says
    `trainer.fit(…, ckpt_path=newest_checkpoint(directory))`. Each save is a commit of the run and holds the random
    state of every rank. At the last batch of an epoch all this waits for the epoch's own end, validation included; but
    a stop cuts a validation short, and the next attempt begins it anew.

    Args:  directory: seen by all nodes, for these checkpoints alone.   every_n_steps: optimizer steps between saves;
    None: only at a stop and at the end.   keep: so many of the newest stay.
    """

    def __init__(self, directory: str | Path, *, every_n_steps: int | None = None, keep: int = 2) -> None:
        if keep < 1 or (every_n_steps is not None and every_n_steps < 1):
            raise UsageError(f"StopCallback: keep = {keep}, every_n_steps = {every_n_steps}: 1 or more is allowed")
        self._directory = Path(directory)
        self._every_n_steps = every_n_steps
        self._keep = keep
        self._session: Session | None = None
        self._step = self._saved = 0
        self._gathers = False
        self._random: Any = None
        self._before_validation: Any = None  # random state after a step; None while gradients are being accumulated
        self._may_cut_validation = self._cuts_validation = False

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Join the run, and give each rank its random state back. Collective, as all hooks that follow."""
        total = trainer.estimated_stepping_batches
        total_steps = None if math.isinf(total) or total < 0 else int(total)
        self._step = self._saved = trainer.global_step
        world = find_world(trainer.world_size, _REMEDY)
        self._session = Session(world, self._directory, step=self._step, total_steps=total_steps)
        for loader in _loaders_in(trainer.train_dataloader):
            loader.begin_epoch(trainer.current_epoch)
        # Here: after the loaders were made, which may draw numbers, and before the first batch is read.
        states, self._random = self._random, None
        if states is not None and len(states) == world.size:
            hpc_train.rng_state().load_state_dict(_from_plain(states[world.rank]))

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """Tell the step; ask whether to stop; save if it is time."""
        self._before_validation = None
        if trainer.global_step == self._step:  # gradients are still being accumulated
            return
        self._step = trainer.global_step
        # Reading a loss waits for the GPU: only as often as Lightning itself logs.
        is_told = trainer.log_every_n_steps and self._step % trainer.log_every_n_steps == 0
        self._joined().tell(self._step, _loss_of(outputs) if is_told else None)
        if not trainer.is_last_batch:
            self._act(trainer)
        if trainer.enable_validation:  # not at its start: its loader has drawn a number by then
            self._before_validation = hpc_train.rng_state().state_dict()

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Find out whether ranks can agree between two batches: only where all have the same number of them."""
        self._may_cut_validation = False
        over = trainer.should_stop or _is_at_the_end(trainer, self._step, is_epoch_end=trainer.is_last_batch)
        if self._before_validation is None or over or _may_lack_batches(trainer):
            return
        counts = self._joined().world.allgather([float(count) for count in trainer.num_val_batches])
        is_known = all(map(math.isfinite, counts[0]))
        self._may_cut_validation = len(counts) == 1 or (is_known and all(each == counts[0] for each in counts))

    def on_validation_batch_end(self, trainer: Any, *_: Any) -> None:
        """A validation gets on; ask whether to stop."""
        if self._session is None:
            return
        self._session.alive()
        if self._may_cut_validation and self._session.must_stop():
            self._cuts_validation = True
            self._save(trainer)
            raise self._session.leave(self._step)

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        """What the last batch of an epoch left to its end."""
        self._act(trainer, is_epoch_end=True)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """The end is saved too: what follows training may fail."""
        self._before_validation = None
        if self._saved != self._step:
            self._save(trainer)

    def on_save_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Add the random state of every rank to our own saves."""
        if self._gathers:
            state = self._before_validation if self._cuts_validation else hpc_train.rng_state().state_dict()
            checkpoint[_KEY] = {"random": self._joined().world.allgather(_to_plain(state))}
            if self._cuts_validation:
                _rewind_validation(checkpoint)

    def on_load_checkpoint(self, trainer: Any, pl_module: Any, checkpoint: dict[str, Any]) -> None:
        """Keep the random states for the start of training. Not collective."""
        self._random = checkpoint.get(_KEY, {}).get("random")

    def _act(self, trainer: Any, *, is_epoch_end: bool = False) -> None:
        session = self._joined()
        is_over = trainer.should_stop or _is_at_the_end(trainer, self._step, is_epoch_end=is_epoch_end)
        must_stop = session.must_stop() and not is_over
        every = self._every_n_steps
        if must_stop or (every is not None and self._step // every > self._saved // every):
            self._save(trainer)
        if must_stop:
            raise session.leave(self._step)

    def _save(self, trainer: Any) -> None:
        session, path = self._joined(), self._directory / f"step-{self._step:09d}.ckpt"
        session.begin_save(path)
        self._gathers = True
        try:
            trainer.save_checkpoint(path)  # ends with a barrier: after it all ranks have written
        finally:
            self._gathers = False
        session.commit(path, self._step)
        self._saved = self._step
        if session.world.rank == 0:
            for _, old in complete_checkpoints(self._directory)[: -self._keep]:
                unmark(old)
                trainer.strategy.remove_checkpoint(old)

    def _joined(self) -> Session:
        assert self._session is not None  # on_train_start comes first
        return self._session


def _is_at_the_end(trainer: Any, step: int, *, is_epoch_end: bool) -> bool:
    if trainer.max_steps != -1 and step >= trainer.max_steps:
        return True
    return is_epoch_end and trainer.max_epochs not in (None, -1) and trainer.current_epoch + 1 >= trainer.max_epochs


def _may_lack_batches(trainer: Any) -> bool:
    """Whether a rank may have no validation at all, and would be missed where the others meet."""
    name = "allow_zero_length_dataloader_with_multiple_devices"
    return any(getattr(each, name, False) for each in (trainer.lightning_module, trainer.datamodule))


def _rewind_validation(checkpoint: dict[str, Any]) -> None:
    """Have a checkpoint say that its validation is in its first batch: Lightning then begins it anew.

    As it is between two batches, Lightning takes the validation for done (2.6, RestartStage in its loops).
    """
    progress = checkpoint["loops"]["fit_loop"]["epoch_loop.val_loop.batch_progress"]
    total, current = progress["total"], progress["current"]
    before = total["completed"] - current["completed"]
    for counts, num_done in ((total, before), (current, 0)):
        counts.update(ready=num_done + 1, started=num_done + 1, processed=num_done, completed=num_done)
    progress["is_last_batch"] = False


def _loaders_in(given: Any) -> list[ResumableLoader[Any]]:
    """Of whatever Lightning takes: one loader, or lists and dictionaries of them."""
    if isinstance(given, ResumableLoader):
        return [given]
    parts = given.values() if isinstance(given, dict) else given if isinstance(given, list | tuple) else ()
    return [loader for part in parts for loader in _loaders_in(part)]


def _loss_of(outputs: Any) -> float | None:
    loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
    return float(loss) if isinstance(loss, torch.Tensor | float) else None


def _to_plain(state: dict[str, Any]) -> dict[str, Any]:
    """Random state of what `torch.load(weights_only=True)` takes: tensors instead of numpy's arrays."""
    plain = dict(state)
    if "numpy" in plain:
        name, keys, *rest = plain["numpy"]
        plain["numpy"] = (name, torch.tensor(keys.tolist(), dtype=torch.int64), *rest)
    return plain


def _from_plain(plain: dict[str, Any]) -> dict[str, Any]:
    state = dict(plain)
    if "numpy" in state:
        name, keys, *rest = state["numpy"]
        state["numpy"] = (name, keys.numpy().astype("uint32"), *rest)
    return state
