"""A byte-level GPT trained with DDP: the whole of hpc-train's library in one readable script.

Every line that a resume needs is here and nowhere else: the World, the stream, the checkpoint, the stop request. The
rest is plain PyTorch. Pack data first: hpc-train data pack DIR SOURCES --sequence 128.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import hpc_train

# Shapes: B batch (of this rank), T positions, D features, V = 256 byte values.


@dataclass(frozen=True)
class Shape:
    """Size of the model; the default has 1.4 million parameters."""

    context: int
    width: int = 160
    num_layers: int = 4
    num_heads: int = 5
    dropout: float = 0.1


class Block(nn.Module):
    """One transformer layer: attention and a feed-forward part, each behind a layer norm and beside a shortcut."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.num_heads, self.dropout = shape.num_heads, shape.dropout
        self.norm_1, self.norm_2 = nn.LayerNorm(shape.width), nn.LayerNorm(shape.width)
        self.qkv = nn.Linear(shape.width, 3 * shape.width)
        self.merge = nn.Linear(shape.width, shape.width)
        self.forward_part = nn.Sequential(
            nn.Linear(shape.width, 4 * shape.width),
            nn.GELU(),
            nn.Linear(4 * shape.width, shape.width),
            nn.Dropout(shape.dropout),
        )

    def forward(self, x_btd: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        b, t, d = x_btd.shape
        heads = self.qkv(self.norm_1(x_btd)).view(b, t, 3, self.num_heads, d // self.num_heads).permute(2, 0, 3, 1, 4)
        query, key, value = heads
        dropout = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
        x_btd = x_btd + self.merge(mixed.transpose(1, 2).reshape(b, t, d))
        after_btd: Tensor = x_btd + self.forward_part(self.norm_2(x_btd))
        return after_btd


class ByteGPT(nn.Module):
    """Predicts the next byte; its forward pass returns the mean loss in nats per byte."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(256, shape.width)
        self.positions = nn.Embedding(shape.context, shape.width)
        self.blocks = nn.Sequential(*(Block(shape) for _ in range(shape.num_layers)))
        self.norm = nn.LayerNorm(shape.width)
        self.head = nn.Linear(shape.width, 256, bias=False)

    def forward(self, tokens_bt: Tensor) -> Tensor:
        """Bytes (B, T + 1), any integer type -> scalar."""
        ids = tokens_bt.long()
        x_btd = self.tokens(ids[:, :-1]) + self.positions.weight[: ids.shape[1] - 1]
        logits_btv = self.head(self.norm(self.blocks(x_btd)))
        return F.cross_entropy(logits_btv.flatten(0, 1), ids[:, 1:].flatten())


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description="Train a byte-level GPT on a packed dataset.")
    parser.add_argument("--data", required=True, help="dataset directory, field `tokens` (n, context + 1) uint8")
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--global-batch", type=int, default=32, help="samples a step over all ranks")
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--width", type=int, default=160)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--save-every", type=int, default=20, help="steps between checkpoints")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--checkpoints", default="checkpoints", help="where they go outside a run; there its directory")
    return parser.parse_args()


def main() -> None:
    """Train to the last step, from wherever the newest checkpoint stands."""
    options = parse_arguments()
    world = hpc_train.init()
    stop = hpc_train.StopRequest(world)
    torch.manual_seed(options.seed)

    stream = hpc_train.ShardStream(options.data, global_batch=options.global_batch, seed=options.seed, world=world)
    context = stream.manifest.fields["tokens"].shape[0] - 1
    shape = Shape(context=context, width=options.width, num_layers=options.layers)
    model = ByteGPT(shape).to(world.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr)
    example = torch.zeros(options.global_batch // world.size, context + 1, dtype=torch.uint8, device=world.device)
    # One discarded pass at every start: a resumed run then equals an uninterrupted one bit for bit.
    train = hpc_train.settled_ddp(model, lambda wrapped: wrapped(example))

    hpc_train.seed_ranks(options.seed, world)  # from here on ranks differ, as their dropout must
    checkpoint = hpc_train.Checkpointer(None if world.run_dir else options.checkpoints, world=world)
    state = {"model": model, "optimizer": optimizer, "stream": stream}
    per_rank = {"random": hpc_train.rng_state()}
    step = checkpoint.load(state, per_rank=per_rank) or 0
    progress = hpc_train.Progress(world, total_steps=options.steps)
    if world.rank == 0:
        num_parameters = sum(p.numel() for p in model.parameters())
        print(f"{num_parameters:,} parameters, {world.size} ranks, from step {step} of {options.steps}")

    while step < options.steps:
        for batch in stream:
            loss = train(batch["tokens"].to(world.device))
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
            step += 1
            progress.step(step, loss=loss.item(), digest=stream.batch_digest, samples=options.global_batch)
            if world.rank == 0 and step % 10 == 0:
                print(f"step {step:5d}  loss {loss.item():.4f}")
            is_last, must_stop = step == options.steps, stop.agreed()
            if step % options.save_every == 0 or is_last or must_stop:
                checkpoint.save(step, state, per_rank=per_rank)
            if must_stop and not is_last:
                raise hpc_train.Stopped(f"{stop.reason}, saved at step {step}")
            if is_last:
                break


if __name__ == "__main__":
    main()
