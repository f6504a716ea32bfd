"""A Lightning script that knows nothing of hpc-train, but the numbers of devices and nodes that it is started with."""

from __future__ import annotations

import os
import signal
from typing import Any

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Line(lightning.LightningModule):  # type: ignore[misc]
    """Fits a line."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 1)
        self.handler: Any = None

    def training_step(self, batch: list[torch.Tensor], batch_idx: int) -> torch.Tensor:
        """Squared error."""
        self.handler = signal.getsignal(signal.SIGUSR1)
        return nn.functional.mse_loss(self.layer(batch[0]), batch[0].sum(1, keepdim=True))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """SGD."""
        return torch.optim.SGD(self.parameters(), lr=1e-2)


model = Line()
trainer = lightning.Trainer(
    devices=int(os.environ["LOCAL_WORLD_SIZE"]),
    num_nodes=int(os.environ["GROUP_WORLD_SIZE"]),
    max_steps=6,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
)
trainer.fit(model, DataLoader(TensorDataset(torch.randn(64, 4)), batch_size=2))
where = f"rank {trainer.global_rank} of {trainer.world_size}, local rank {trainer.local_rank}"
environment = type(trainer.strategy.cluster_environment).__name__
how = f"environment {environment}, USR1 {signal.Handlers(model.handler).name}"
print(f"lightning: {where}, step {trainer.global_step}, {how}\n", end="", flush=True)
