"""A Trainer script that knows nothing of hpc-train."""

from __future__ import annotations

import tempfile

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments

torch.manual_seed(1)
arguments = TrainingArguments(
    output_dir=tempfile.mkdtemp(),
    max_steps=6,
    per_device_train_batch_size=2,
    save_strategy="no",
    use_cpu=True,
    report_to="none",
    disable_tqdm=True,
)
model = GPT2LMHeadModel(GPT2Config(vocab_size=16, n_positions=8, n_embd=16, n_layer=1, n_head=1))
data = [{"input_ids": (torch.arange(8) + n) % 16, "labels": (torch.arange(8) + n) % 16} for n in range(64)]
trainer = Trainer(model=model, args=arguments, train_dataset=data)
trainer.train()
where = f"rank {arguments.process_index} of {arguments.world_size}, local rank {arguments.local_process_index}"
print(f"huggingface: {where}, step {trainer.state.global_step}\n", end="", flush=True)
