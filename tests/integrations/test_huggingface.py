"""Hugging Face's Trainer with our callback, one process: stopped anywhere and resumed, it ends where it would have."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from hpc_train.errors import Stopped, UsageError
from hpc_train.examples.huggingface_trainer import Counting
from hpc_train.integrations.completion import complete_checkpoints
from hpc_train.integrations.huggingface import StopCallback, newest_checkpoint
from tests.integrations.two_ranks import two_ranks

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")

STEPS_AN_EPOCH, STEPS = 6, 15


class StopAt(TrainerCallback):  # type: ignore[misc]
    """Sends the warning to this process when a step is done, or in the second batch of the evaluation after it."""

    def __init__(self, step: int, *, evaluating: bool = False) -> None:
        self.step = step
        self.evaluating = evaluating
        self.seen: list[int] = []
        self.evaluated: list[int] = []  # the step, once a batch
        self.trainer: Any = None

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """At that step."""
        self.seen.append(state.global_step)
        if state.global_step == self.step and not self.evaluating:
            os.kill(os.getpid(), signal.SIGUSR2)

    def on_prediction_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """After that step."""
        self.evaluated.append(state.global_step)
        if self.evaluating and self.evaluated.count(self.step) == 2 and state.global_step == self.step:
            os.kill(os.getpid(), signal.SIGUSR2)


def train(directory: Path, stop_at: int = 0, **options: Any) -> tuple[list[bytes], list[int]]:
    """One start of a training; gives its weights, and the steps that were done."""
    return run(directory, StopAt(stop_at), **options)


def run(directory: Path, watch: StopAt, **options: Any) -> tuple[list[bytes], list[int]]:
    """As `train`."""
    torch.manual_seed(1)
    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=2))
    settings = {"save_steps": 5, "save_total_limit": 2, "logging_steps": 4, "max_steps": STEPS, **options}
    arguments = TrainingArguments(
        output_dir=str(directory),
        per_device_train_batch_size=4,
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        **settings,
    )
    data = Counting(STEPS_AN_EPOCH * 4, 0.0)
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=data,
        eval_dataset=Counting(4, 0.0),
        callbacks=[watch, StopCallback()],
    )
    watch.trainer = trainer
    trainer.train(resume_from_checkpoint=newest_checkpoint(directory))
    return [value.numpy().tobytes() for value in model.state_dict().values()], watch.seen


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    weights, steps = train(tmp_path_factory.mktemp("undisturbed"))
    assert steps == list(range(1, STEPS + 1))
    return weights


@pytest.mark.parametrize(
    "step",
    [
        1,
        4,  # where the loss is logged
        5,  # where a save is due anyway
        STEPS_AN_EPOCH,
        STEPS_AN_EPOCH + 1,
        STEPS - 1,
    ],
)
def test_stopped_and_resumed_it_ends_as_if_never_stopped(place: Path, undisturbed: list[bytes], step: int) -> None:
    with pytest.raises(Stopped, match=f"saved at step {step}"):
        train(place, step)
    weights, steps = train(place)
    assert steps == list(range(step + 1, STEPS + 1))
    assert weights == undisturbed


def test_a_stop_saves_before_the_evaluation_that_is_due(place: Path) -> None:
    options = {"eval_strategy": "steps", "eval_steps": 7, "save_strategy": "best", "metric_for_best_model": "loss"}
    with pytest.raises(Stopped, match="saved at step 7"):
        train(place, 7, **options)
    assert complete_checkpoints(place)[-1][0] == 7
    history = json.loads((place / "checkpoint-7" / "trainer_state.json").read_text())["log_history"]
    assert history and not any("eval_loss" in entry for entry in history)


# Four batches; at steps inside an epoch, or at an epoch's end.
BY_STEPS = {"eval_strategy": "steps", "eval_steps": 4, "per_device_eval_batch_size": 1}
BY_EPOCHS = {"eval_strategy": "epoch", "per_device_eval_batch_size": 1}


@pytest.mark.parametrize(("options", "step"), [(BY_STEPS, 8), (BY_EPOCHS, STEPS_AN_EPOCH)])
def test_a_stop_does_not_wait_for_the_end_of_an_evaluation(place: Path, options: dict[str, Any], step: int) -> None:
    (place / "a").mkdir()
    undisturbed, _ = train(place / "a", **options)
    watch = StopAt(step, evaluating=True)
    with pytest.raises(Stopped, match=f"saved at step {step}"):
        run(place / "b", watch, **options)
    assert watch.evaluated.count(step) == 2
    weights, steps = train(place / "b", **options)
    assert steps == list(range(step + 1, STEPS + 1))
    assert weights == undisturbed


def test_a_stop_in_the_evaluation_after_the_last_step_lets_the_training_end(place: Path) -> None:
    watch = StopAt(STEPS, evaluating=True)
    run(place, watch, **BY_STEPS)
    assert watch.evaluated.count(STEPS) == 4
    assert complete_checkpoints(place)[-1][0] == STEPS


class Evaluates(StopAt):
    """Asks for an evaluation of its own, inside a step whose gradients are half there."""

    def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """After the second step's first half."""
        if state.global_step == self.step:
            self.trainer.evaluate()


def test_an_evaluation_inside_a_step_is_not_cut(place: Path) -> None:
    watch = Evaluates(1, evaluating=True)
    with pytest.raises(Stopped, match="saved at step 2"):
        run(place, watch, gradient_accumulation_steps=2, per_device_eval_batch_size=1)
    assert watch.evaluated == [1] * 4


def test_two_ranks_leave_an_evaluation_together(place: Path) -> None:
    said = two_ranks(place, name="huggingface", step="4", options="[test.BY_STEPS]")
    assert said == ["signal, saved at step 4"]
    assert [step for step, _ in complete_checkpoints(place / "out-0")] == [4]


def test_a_stop_at_the_last_step_lets_the_training_end(place: Path) -> None:
    train(place, STEPS)
    assert complete_checkpoints(place)[-1][0] == STEPS


def test_a_training_that_is_over_is_not_trained_further(place: Path, undisturbed: list[bytes]) -> None:
    # What came after training failed, say. STEPS lies inside an epoch, where the Trainer alone would add a step.
    assert train(place)[0] == undisturbed
    assert train(place)[0] == undisturbed
    assert complete_checkpoints(place)[-1][0] == STEPS
    assert not (place / f"checkpoint-{STEPS + 1}").exists()


def test_accumulated_gradients_and_saves_at_epochs(place: Path) -> None:
    options: dict[str, Any] = {"gradient_accumulation_steps": 2, "save_strategy": "epoch", "max_steps": 8}
    (place / "a").mkdir()
    whole, _ = train(place / "a", **options)
    assert [step for step, _ in complete_checkpoints(place / "a")] == [6, 8]
    with pytest.raises(Stopped, match="saved at step 4"):
        train(place / "b", 4, **options)
    weights, _ = train(place / "b", **options)
    assert weights == whole


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"save_total_limit": 1}, "set 2 or more"),
        ({"save_only_model": True}, "optimizer and step are not saved"),
        ({"save_on_each_node": True}, "a directory that all nodes see"),
    ],
)
def test_settings_that_lose_progress_are_refused_before_the_first_step(
    place: Path, options: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(UsageError, match=complaint):
        train(place, **options)


def test_a_fresh_start_beside_progress_is_refused(place: Path) -> None:
    with pytest.raises(Stopped):
        train(place, 8)
    arguments = TrainingArguments(output_dir=str(place), max_steps=9, use_cpu=True, report_to="none")
    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=16, n_layer=1, n_head=2))
    trainer = Trainer(model=model, args=arguments, train_dataset=Counting(8, 0.0), callbacks=[StopCallback()])
    with pytest.raises(UsageError, match="starts from nothing"):
        trainer.train()


# Killed inside the second save: the Trainer asks callbacks for their state when all but its own record is written.
DIES = """
import os, sys
from transformers.trainer_callback import ExportableState, TrainerCallback
from tests.integrations import test_huggingface as test

class Dies(test.StopAt, ExportableState):
    def state(self):
        if self.seen and self.seen[-1] >= 10:
            os.kill(os.getpid(), 9)
        return {"args": {"step": 0}, "attributes": {}}

test.StopAt = Dies
test.train(test.Path(sys.argv[1]))
"""


def test_a_save_that_was_cut_short_is_not_taken(place: Path, undisturbed: list[bytes]) -> None:
    root = str(Path(__file__).parents[2])
    argv = [sys.executable, "-c", DIES, str(place / "out")]
    done = subprocess.run(argv, env={**os.environ, "PYTHONPATH": root}, timeout=120, capture_output=True, text=True)
    assert done.returncode == -signal.SIGKILL, done.stderr
    half = place / "out" / "checkpoint-10"
    assert (half / "model.safetensors").exists() and not (half / "trainer_state.json").exists()
    assert get_last_checkpoint(place / "out") == str(half)  # what one would have resumed from without a mark
    assert newest_checkpoint(place / "out") == str(place / "out" / "checkpoint-5")
    weights, steps = train(place / "out")
    assert (steps[0], weights) == (6, undisturbed)
