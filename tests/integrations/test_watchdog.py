"""An evaluation longer than the hang timeout is no hang, as long as it gets on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.launch.attempts import run_one

pytestmark = pytest.mark.mpi  # the real shim and its monitor

PROGRAMS = {
    "huggingface": """
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
from hpc_train.examples.huggingface_trainer import Counting
from hpc_train.integrations.huggingface import StopCallback

arguments = TrainingArguments(
    output_dir="out", max_steps=1, eval_strategy="steps", eval_steps=1, per_device_eval_batch_size=1,
    save_strategy="no", use_cpu=True, report_to="none", disable_tqdm=True,
)
model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=8, n_layer=1, n_head=1))
Trainer(
    model=model, args=arguments, train_dataset=Counting(16, 0.0), eval_dataset=Counting(8, 1.2),
    callbacks=[StopCallback()],
).train()
""",
    "lightning": """
import lightning
from torch.utils.data import DataLoader
from hpc_train.examples.lightning_trainer import Adder, Sums
from hpc_train.integrations.lightning import ResumableLoader, StopCallback

class Adds(Adder):
    def validation_step(self, batch, batch_idx):
        pass

trainer = lightning.Trainer(
    accelerator="cpu", max_epochs=1, num_sanity_val_steps=0, callbacks=[StopCallback("out")], logger=False,
    enable_progress_bar=False,
)
trainer.fit(Adds(), ResumableLoader(Sums(8, 0.0), batch_size=8), DataLoader(Sums(8, 1.2), batch_size=1))
""",
}


@pytest.mark.parametrize("framework", PROGRAMS)
def test_a_long_evaluation_is_no_hang(tmp_path: Path, framework: str) -> None:
    ended = run_one(tmp_path, PROGRAMS[framework], hang_timeout_s=6, rendezvous="torch")
    assert ended.word == "done", ended.log
