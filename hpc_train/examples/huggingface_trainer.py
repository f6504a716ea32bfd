"""Hugging Face's Trainer in a run of hpc-train: two lines more than without it, both marked.

A small GPT-2 with random weights learns to count; nothing is downloaded. Start it on two nodes with
hpc-train submit --nodes 2 --ranks-per-node 2 -- python -m hpc_train.examples.huggingface_trainer
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch
from torch.utils.data import Dataset
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

from hpc_train.integrations.huggingface import StopCallback, newest_checkpoint


class Counting(Dataset[dict[str, torch.Tensor]]):
    """Sequences of 16 numbers modulo 64, each counting up from its index; `pause_s` stands for slow work."""

    def __init__(self, size: int, pause_s: float) -> None:
        self.size = size
        self.pause_s = pause_s

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        time.sleep(self.pause_s)
        ids = (torch.arange(16) + index) % 64
        return {"input_ids": ids, "labels": ids}


def main() -> None:
    """Train to the last step, from wherever the newest complete checkpoint stands."""
    parser = argparse.ArgumentParser(description="Train a tiny GPT-2 with transformers.Trainer.")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--save-every", type=int, default=20, help="steps between checkpoints")
    parser.add_argument("--samples", type=int, default=400, help="of an epoch")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds a sample, to have time to watch")
    parser.add_argument("--output", default=os.environ.get("HPC_TRAIN_RUN_DIR", ".") + "/huggingface")
    options = parser.parse_args()

    torch.manual_seed(1)  # before the model is made: all ranks begin with the same weights
    model = GPT2LMHeadModel(GPT2Config(vocab_size=64, n_positions=16, n_embd=32, n_layer=2, n_head=2))
    arguments = TrainingArguments(
        output_dir=options.output,
        max_steps=options.steps,
        per_device_train_batch_size=4,
        learning_rate=1e-3,
        save_steps=options.save_every,
        save_total_limit=2,
        logging_steps=10,
        use_cpu=not torch.cuda.is_available(),  # without it ranks on CPUs would train apart
        report_to="none",
        disable_tqdm=True,
        seed=1,
    )
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=Counting(options.samples, options.pause),
        callbacks=[StopCallback()],  # hpc-train: stops, commits, progress
    )
    trainer.train(resume_from_checkpoint=newest_checkpoint(options.output))  # hpc-train: None at the first start
    trainer.save_model(str(Path(options.output) / "final"))


if __name__ == "__main__":
    main()
