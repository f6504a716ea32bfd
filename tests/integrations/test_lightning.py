"""Lightning's Trainer with our callback, one process: stopped anywhere and resumed, it ends where it would have."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import lightning
import pytest
import torch
from lightning.fabric.plugins.environments import LightningEnvironment, TorchElasticEnvironment
from lightning.pytorch.callbacks import Callback

from hpc_train.errors import Stopped, UsageError
from hpc_train.examples.lightning_trainer import Adder, Sums
from hpc_train.integrations.completion import complete_checkpoints
from hpc_train.integrations.lightning import ResumableLoader, StopCallback, newest_checkpoint
from tests.integrations.two_ranks import two_ranks

# Lightning warns of what it deprecates itself, and of small numbers of workers.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning", "ignore::DeprecationWarning")

STEPS_AN_EPOCH, EPOCHS = 6, 3


class Adds(Adder):
    """With dropout and a plain validation, and a count of what happened."""

    def __init__(self) -> None:
        super().__init__()
        self.num_validations = 0

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """Uses random numbers, as a sampling metric would."""
        torch.rand(3)

    def on_validation_epoch_end(self) -> None:
        """Counts all but Lightning's first look at the loader."""
        self.num_validations += not self.trainer.sanity_checking


class StopAt(Callback):  # type: ignore[misc]
    """Sends the warning to this process when a step is done, or in the second batch of the validation after it."""

    def __init__(self, step: int, *, evaluating: bool = False) -> None:
        self.step = step
        self.evaluating = evaluating
        self.seen: list[int] = []
        self.validated: list[int] = []  # the step, once a batch

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """At that step, once."""
        self.seen.append(trainer.global_step)
        if trainer.global_step == self.step and not self.evaluating:
            self.step = -1
            os.kill(os.getpid(), signal.SIGUSR2)

    def on_validation_batch_end(self, trainer: Any, *_: Any) -> None:
        """After that step."""
        if not trainer.sanity_checking:
            self.validated.append(trainer.global_step)
        if self.evaluating and trainer.global_step == self.step and self.validated.count(self.step) == 2:
            os.kill(os.getpid(), signal.SIGUSR2)


def train(directory: Path, stop_at: int = -1, **options: Any) -> Any:
    """One start of a training; gives its model, and the steps that were done."""
    return run(directory, StopAt(stop_at), **options)


def run(
    directory: Path,
    watch: StopAt,
    *,
    every: int | None = None,
    workers: int = 0,
    num_valid: int = 1,
    devices: int = 1,
    **options: Any,
) -> Any:
    """As `train`; `num_valid`: batches of a validation."""
    lightning.seed_everything(1, verbose=False)
    model = Adds()
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=devices,
        max_epochs=EPOCHS,
        # looking for it would start MPI in the process of the tests
        plugins=[LightningEnvironment() if devices == 1 else TorchElasticEnvironment()],
        callbacks=[StopCallback(directory, every_n_steps=every), watch],
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **options,
    )
    data = Sums(STEPS_AN_EPOCH * 4, 0.0)
    loader = ResumableLoader(data, batch_size=4, shuffle=True, num_workers=workers)
    valid = torch.utils.data.DataLoader(Sums(4 * num_valid * devices, 0.0), batch_size=4)
    trainer.fit(model, loader, valid, ckpt_path=newest_checkpoint(directory))
    return model, watch.seen


def weights(model: torch.nn.Module) -> list[bytes]:
    return [value.numpy().tobytes() for value in model.state_dict().values()]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Any:
    directory = tmp_path_factory.mktemp("undisturbed")
    model, steps = train(directory)
    assert steps == list(range(1, STEPS_AN_EPOCH * EPOCHS + 1))
    return model


@pytest.mark.parametrize(
    "step",
    [
        1,
        8,  # inside the second epoch
        STEPS_AN_EPOCH,  # the last batch of an epoch: the validation comes first
        STEPS_AN_EPOCH + 1,
        STEPS_AN_EPOCH * EPOCHS - 1,
    ],
)
def test_stopped_and_resumed_it_ends_as_if_never_stopped(place: Path, undisturbed: Any, step: int) -> None:
    with pytest.raises(Stopped, match=f"saved at step {step}"):
        train(place, step)
    model, steps = train(place)
    assert steps == list(range(step + 1, STEPS_AN_EPOCH * EPOCHS + 1))  # not one more: Lightning's report 4265
    assert weights(model) == weights(undisturbed)


def test_stopped_again_and_again_it_ends_as_if_never_stopped(place: Path, undisturbed: Any) -> None:
    for step in (3, 4, 11):
        with pytest.raises(Stopped):
            train(place, step)
    model, _ = train(place)
    assert weights(model) == weights(undisturbed)


def test_workers_read_what_is_left_of_the_epoch(place: Path) -> None:
    (place / "a").mkdir()
    whole, _ = train(place / "a", workers=2)
    with pytest.raises(Stopped):
        train(place / "b", 8, workers=2)
    model, _ = train(place / "b", workers=2)
    assert weights(model) == weights(whole)


# Validations inside an epoch, at its end, and where gradients are being accumulated.
INSIDE = {"num_valid": 3, "val_check_interval": 2}
AT_THE_END = {"num_valid": 3}
AFTER_TWO = {"num_valid": 3, "accumulate_grad_batches": 2, "val_check_interval": 2}


@pytest.mark.parametrize(
    ("options", "step"),
    [(INSIDE, 2), (INSIDE, 10), (INSIDE, STEPS_AN_EPOCH), (AT_THE_END, 2 * STEPS_AN_EPOCH), (AFTER_TWO, 4)],
)
def test_a_validation_that_a_stop_cut_short_is_made_again(place: Path, options: dict[str, Any], step: int) -> None:
    (place / "a").mkdir()
    whole = StopAt(-1)
    undisturbed, _ = run(place / "a", whole, **options)
    cut, again = StopAt(step, evaluating=True), StopAt(-1)
    with pytest.raises(Stopped, match=f"saved at step {step}"):
        run(place / "b", cut, **options)
    assert cut.validated.count(step) == 2
    model, _ = run(place / "b", again, **options)
    assert cut.seen + again.seen == whole.seen
    assert cut.validated[:-2] + again.validated == whole.validated
    assert weights(model) == weights(undisturbed)


def test_a_validation_between_two_halves_of_a_step_is_not_cut(place: Path) -> None:
    watch = StopAt(1, evaluating=True)
    with pytest.raises(Stopped, match="saved at step 2"):
        run(place, watch, accumulate_grad_batches=2, val_check_interval=3, num_valid=3)
    assert watch.validated == [1, 1, 1]


def test_a_stop_in_the_last_validation_lets_the_training_end(place: Path) -> None:
    watch = StopAt(STEPS_AN_EPOCH * EPOCHS, evaluating=True)
    model, _ = run(place, watch, num_valid=3)
    assert (model.num_validations, watch.validated[-3:]) == (EPOCHS, [STEPS_AN_EPOCH * EPOCHS] * 3)


def test_two_ranks_leave_a_validation_together(place: Path) -> None:
    always = '"devices": 2, "val_check_interval": 1, "use_distributed_sampler": False'
    counts = ("3", 'int(os.environ["RANK"]) + 3')
    options = ", ".join(f'{{{always}, "num_valid": {count}}}' for count in counts)
    said = two_ranks(place, name="lightning", step="2", options=f"[{options}]")
    # Where they do not validate the same number of batches they cannot meet between two: the step after it is next.
    assert said == ["signal, saved at step 2", "signal, saved at step 3"]


def test_a_stop_at_the_last_step_lets_the_training_end(place: Path) -> None:
    last = STEPS_AN_EPOCH * EPOCHS
    train(place, last)
    assert complete_checkpoints(place)[-1][0] == last
    model, steps = train(place)  # what came after training failed, say: it is not trained again
    assert steps == []
    assert model.num_validations == 0


def test_max_steps_inside_an_epoch_is_an_end_too(place: Path) -> None:
    _, steps = train(place, 8, max_steps=8)
    assert steps[-1] == 8
    assert complete_checkpoints(place)[-1][0] == 8


def test_accumulated_gradients_count_one_step(place: Path) -> None:
    (place / "a").mkdir()
    whole, _ = train(place / "a", accumulate_grad_batches=2)
    with pytest.raises(Stopped, match="saved at step 4"):
        train(place / "b", 4, accumulate_grad_batches=2)
    model, _ = train(place / "b", accumulate_grad_batches=2)
    assert weights(model) == weights(whole)


def test_the_newest_two_saves_stay_and_the_end_is_one_of_them(place: Path) -> None:
    train(place, every=4)
    assert [step for step, _ in complete_checkpoints(place)] == [16, 18]
    assert sorted(path.suffix for path in place.iterdir()) == [".ckpt", ".ckpt", ".json", ".json"]


def test_a_fresh_start_beside_progress_is_refused(place: Path) -> None:
    with pytest.raises(Stopped):
        train(place, 8)
    trainer = lightning.Trainer(
        accelerator="cpu",
        plugins=[LightningEnvironment()],
        callbacks=[StopCallback(place)],
        logger=False,
        max_epochs=1,
    )
    with pytest.raises(UsageError, match="starts from nothing"):
        trainer.fit(Adder(), ResumableLoader(Sums(8, 0.0), batch_size=4))


def test_in_a_slurm_job_of_ours_lightning_neither_requeues_nor_picks_a_port(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As the shim leaves the environment of a rank that srun started; 20542, 21406 are reports of what happens else.
    slurm = {"SLURM_NTASKS": "1", "SLURM_JOB_ID": "7912", "SLURM_JOB_NAME": "train", "SLURM_PROCID": "0"}
    slurm |= {"SLURM_LOCALID": "0", "SLURM_NODEID": "0", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_NTASKS_PER_NODE": "1"}
    ours = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "TORCHELASTIC_RUN_ID": "run", "MASTER_PORT": "4242"}
    for name, value in {**slurm, **ours}.items():
        monkeypatch.setenv(name, value)
    seen: list[Any] = []

    class Look(Callback):  # type: ignore[misc]
        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            seen.extend([signal.getsignal(signal.SIGUSR1), trainer._accelerator_connector.cluster_environment])

    before = signal.getsignal(signal.SIGUSR1)
    trainer = lightning.Trainer(
        accelerator="cpu", callbacks=[StopCallback(place), Look()], logger=False, max_epochs=1, devices=1
    )
    trainer.fit(Adder(), ResumableLoader(Sums(8, 0.0), batch_size=4))
    handler, environment = seen
    assert handler == before
    assert isinstance(environment, TorchElasticEnvironment)
    assert environment.main_port == 4242


def test_under_lightnings_other_name_it_is_that_ones_callback() -> None:
    text = "import pytorch_lightning as other\nfrom hpc_train.integrations.lightning import StopCallback\n"
    text += "assert issubclass(StopCallback, other.callbacks.Checkpoint)"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
