"""Hugging Face Trainer under hpc-train: stop, commit, resume.

Apart because it imports transformers. The Trainer saves in its own way, in its own format; this callback decides with
all ranks when to, and says when it is complete.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from transformers import Trainer, TrainerCallback

from hpc_train.errors import UsageError
from hpc_train.integrations.completion import newest_checkpoint
from hpc_train.integrations.session import Session, find_world

__all__ = ["StopCallback", "newest_checkpoint"]

_REMEDY = "on a machine without GPUs, TrainingArguments(use_cpu=True) is what makes the Trainer's ranks work together"


class StopCallback(TrainerCallback):  # type: ignore[misc]
    """Makes a `transformers.Trainer` a good citizen of a run.

    At a wall-time warning all ranks agree on the step; the Trainer saves there, without the evaluation that might be
    due, or in the middle of it; the program leaves with Stopped (code 75), and the next attempt goes on if the script
    says `trainer.train(resume_from_checkpoint=newest_checkpoint(output_dir))`. Each save of the Trainer's is a commit
    of the run. Steps, and the loss where the Trainer logs it, reach the journal and the watchdog.

    Raises: UsageError when training begins, for settings that would lose progress.
    """

    def __init__(self) -> None:
        self._session: Session | None = None
        self._trainer: Any = None
        self._is_between_steps = False  # all of the last one is in the weights, and nothing of the next
        self._is_leaving = False
        self._is_over = False  # resumed from its last step

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Join the run. Collective, as all hooks that follow."""
        _refuse_what_loses_progress(args)
        world = find_world(args.world_size, _REMEDY)
        self._session = Session(world, Path(args.output_dir), step=state.global_step, total_steps=state.max_steps)
        self._is_over = state.global_step >= state.max_steps
        self._trainer, self._is_between_steps = _calling_trainer(), False

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Until the step's end there is nothing that could be saved. Not collective."""
        self._is_between_steps = False

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A training that is over is left as it is: where max_steps lies inside an epoch, the Trainer adds a step."""
        if self._is_over:
            kwargs["optimizer"].zero_grad(set_to_none=True)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        """Tell the step; ask whether to stop."""
        if self._is_over:
            state.global_step = state.max_steps
            control.should_save = control.should_log = control.should_evaluate = False
            return control
        session = self._joined()
        if not control.should_log:  # else the loss follows at once, with on_log
            session.tell(state.global_step)
        # A training at its last step is over: what the script does after it may still fit in.
        if session.must_stop() and state.global_step < state.max_steps:
            self._is_leaving = control.should_save = True
            control.should_evaluate = False
        if control.should_save:
            session.begin_save(_path_of(args, state))
        self._is_between_steps = True
        return control

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Saves that are due at the end of an epoch."""
        if control.should_save:
            self._joined().begin_save(_path_of(args, state))

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Tell the step with its loss. Not collective."""
        if self._session is not None and logs and "loss" in logs:
            self._session.tell(state.global_step, float(logs["loss"]))

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """An evaluation gets on; of one between two training steps, ask whether to stop.

        Raises: Stopped, once the state of the last step is saved. The Trainer cannot go on inside an evaluation: the
        next attempt leaves it out.
        """
        if self._session is None:
            return
        self._session.alive()
        may_stop = self._trainer is not None and self._is_between_steps and state.global_step < state.max_steps
        if may_stop and self._session.must_stop():
            control.should_evaluate, self._is_leaving = False, True
            self._session.begin_save(_path_of(args, state))
            self._trainer._save_checkpoint(self._trainer.model_wrapped, None)  # as the Trainer itself, after a step
            self.on_save(args, state, control)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Evaluations that follow are the script's own. Not collective."""
        self._is_between_steps = False

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The Trainer has saved on this rank. Raises: Stopped, if the save was for that."""
        session = self._joined()
        session.commit(_path_of(args, state), state.global_step)
        if self._is_leaving:
            raise session.leave(state.global_step)

    def _joined(self) -> Session:
        assert self._session is not None  # on_train_begin comes first
        return self._session


def _calling_trainer() -> Any:
    """The Trainer whose hook runs: it gives its callbacks everything but itself. None where somebody else calls."""
    frame = sys._getframe(1)
    while frame is not None and not isinstance(frame.f_locals.get("self"), Trainer):
        frame = frame.f_back  # type: ignore[assignment]
    return None if frame is None else frame.f_locals["self"]


def _path_of(args: Any, state: Any) -> Path:
    return Path(args.output_dir) / f"checkpoint-{state.global_step}"  # transformers.trainer_utils.PREFIX_CHECKPOINT_DIR


def _refuse_what_loses_progress(args: Any) -> None:
    if args.save_total_limit == 1:
        raise UsageError(
            "save_total_limit=1 removes the last complete checkpoint before the new one is complete; "
            "set 2 or more, or None"
        )
    if args.save_only_model:
        raise UsageError("save_only_model=True leaves nothing to resume from: optimizer and step are not saved")
    if args.save_on_each_node:
        raise UsageError("save_on_each_node=True: set output_dir to a directory that all nodes see, and leave it False")
