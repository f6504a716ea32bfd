"""Lightning's Trainer in a run of hpc-train: a callback, a loader with a position, and where to resume from.

A small network learns a sum. Start it on two nodes with
hpc-train submit --nodes 2 --ranks-per-node 2 -- python -m hpc_train.examples.lightning_trainer
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import lightning
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset

from hpc_train.integrations.lightning import ResumableLoader, StopCallback, newest_checkpoint


class Sums(Dataset[tuple[Tensor, Tensor]]):
    """Eight numbers and their sum, made from the index; `pause_s` stands for slow work."""

    def __init__(self, size: int, pause_s: float) -> None:
        self.size = size
        self.pause_s = pause_s

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        time.sleep(self.pause_s)
        numbers = torch.sin(torch.arange(8.0) * (index + 1))
        return numbers, numbers.sum(0, keepdim=True)


class Adder(lightning.LightningModule):  # type: ignore[misc]
    """Two layers with dropout between them."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 1))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Mean squared error of a batch: (B, 8), (B, 1) -> scalar."""
        numbers, sums = batch
        return F.mse_loss(self.layers(numbers), sums)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam."""
        return torch.optim.Adam(self.parameters(), lr=1e-3)


def main() -> None:
    """Train all epochs, from wherever the newest complete checkpoint stands."""
    parser = argparse.ArgumentParser(description="Train a small network with lightning.Trainer.")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--save-every", type=int, default=20, help="optimizer steps between checkpoints")
    parser.add_argument("--samples", type=int, default=320, help="of an epoch")
    parser.add_argument("--pause", type=float, default=0.0, help="seconds a sample, to have time to watch")
    parser.add_argument("--output", default=os.environ.get("HPC_TRAIN_RUN_DIR", ".") + "/lightning")
    options = parser.parse_args()

    lightning.seed_everything(1)
    model = Adder()
    trainer = lightning.Trainer(
        devices=int(os.environ.get("LOCAL_WORLD_SIZE", "1")),
        num_nodes=int(os.environ.get("GROUP_WORLD_SIZE", "1")),
        max_epochs=options.epochs,
        callbacks=[StopCallback(options.output, every_n_steps=options.save_every)],
        log_every_n_steps=10,
        logger=False,
        enable_progress_bar=False,
    )
    loader = ResumableLoader(Sums(options.samples, options.pause), batch_size=4, shuffle=True)
    trainer.fit(model, loader, ckpt_path=newest_checkpoint(options.output))
    if trainer.is_global_zero:
        torch.save(model.state_dict(), Path(options.output) / "final.pt")


if __name__ == "__main__":
    main()
