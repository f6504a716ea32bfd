"""Torch states: every dtype and shape, modules and optimizers, other readers of the same bytes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from hpc_train.checkpoint import Checkpointer, rng_state
from hpc_train.checkpoint.dtypes import DTYPES
from hpc_train.errors import CheckpointError

NO_SUCH_IN_SAFETENSORS = {"C32", "C128", "F8_E8M0", "F4_E2M1_X2"}


def random_bytes_as(dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """Any bit pattern, NaNs too: a checkpoint keeps bits, not numbers."""
    count = dtype.itemsize
    for extent in shape:
        count *= extent
    raw = torch.randint(0, 2 if dtype is torch.bool else 256, (count,), dtype=torch.uint8)
    return raw.view(dtype).reshape(shape)


def bits(tensor: torch.Tensor) -> bytes:
    plain = tensor.detach().contiguous()
    return plain.reshape(-1).view(torch.uint8).numpy().tobytes() if plain.numel() else b""


def same(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and one.shape == other.shape and bits(one) == bits(other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(same, one, other))
    return type(one) is type(other) and one == other


def training(width: int = 33) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    model = torch.nn.Sequential(torch.nn.Linear(7, width), torch.nn.BatchNorm1d(width), torch.nn.Linear(width, 3))
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def one_step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    model(torch.randn(5, 7)).square().sum().backward()
    optimizer.step()


@pytest.mark.filterwarnings("ignore:ComplexHalf support is experimental")
@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_comes_back_bit_for_bit_and_safetensors_reads_it(tmp_path: Path, name: str) -> None:
    dtype = getattr(torch, DTYPES[name].torch)
    saved = {f"s{i}": random_bytes_as(dtype, shape) for i, shape in enumerate([(), (0, 3), (5,), (2, 3, 4)])}
    saved["turned"] = random_bytes_as(dtype, (6, 4)).t()[1:]
    path = Checkpointer(tmp_path).save(1, {"m": saved})
    live = {key: torch.zeros_like(value) for key, value in saved.items() if key != "s1"}
    Checkpointer(tmp_path).load({"m": live})
    for key, value in saved.items():
        assert live[key].dtype == dtype
        assert live[key].shape == value.shape
        assert bits(live[key]) == bits(value)
    with safe_open(path / "data-00000.safetensors", "pt") as file:
        for key, value in saved.items():
            read = file.get_tensor(f"m.{key}")
            assert bits(read) == bits(value)
            if name not in NO_SUCH_IN_SAFETENSORS:
                assert read.dtype == dtype


def test_conjugate_and_negative_views_are_saved_as_their_values(tmp_path: Path) -> None:
    x = torch.randn(3, 3, dtype=torch.complex64)
    Checkpointer(tmp_path).save(1, {"m": {"conj": x.conj(), "neg": x.conj().imag}})
    live: dict[str, Any] = {}
    Checkpointer(tmp_path).load({"m": live})
    assert torch.equal(live["conj"], x.conj())
    assert torch.equal(live["neg"], -x.imag)


def test_a_fresh_model_and_an_empty_optimizer_go_on_bit_for_bit(tmp_path: Path) -> None:
    torch.manual_seed(1)
    model, optimizer = training()
    scheduler = torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 5])
    one_step(model, optimizer)
    scheduler.step()
    state = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    Checkpointer(tmp_path).save(1, state, per_rank={"rng": rng_state()})
    one_step(model, optimizer)
    other_model, other_optimizer = training()
    other_scheduler = torch.optim.lr_scheduler.MultiStepLR(other_optimizer, [2, 5])
    live = {"model": other_model, "optimizer": other_optimizer, "scheduler": other_scheduler}
    assert Checkpointer(tmp_path).load(live, per_rank={"rng": rng_state()}) == 1
    assert other_scheduler.state_dict() == scheduler.state_dict()
    one_step(other_model, other_optimizer)
    assert same(other_model.state_dict(), model.state_dict())
    assert same(other_optimizer.state_dict(), optimizer.state_dict())


def test_tied_weights_are_stored_once_and_stay_tied(tmp_path: Path) -> None:
    def tied() -> torch.nn.ModuleDict:
        model = torch.nn.ModuleDict({"embed": torch.nn.Embedding(1000, 100), "head": torch.nn.Linear(100, 1000, False)})
        model["head"].weight = model["embed"].weight
        return model

    model, live = tied(), tied()
    path = Checkpointer(tmp_path).save(1, {"model": model})
    assert (path / "data-00000.safetensors").stat().st_size < 450_000
    Checkpointer(tmp_path).load({"model": live})
    assert same(live.state_dict(), model.state_dict())
    assert live["head"].weight is live["embed"].weight


def test_a_model_of_another_shape_is_refused_untouched(tmp_path: Path) -> None:
    model, _ = training(33)
    Checkpointer(tmp_path).save(1, {"model": model})
    other, _ = training(34)
    before = {key: value.clone() for key, value in other.state_dict().items()}
    with pytest.raises(CheckpointError, match=r"'model\.0\.weight': the checkpoint has F32 \[33, 7\]"):
        Checkpointer(tmp_path).load({"model": other})
    assert same(dict(other.state_dict()), before)


def test_a_module_with_a_new_layer_is_refused_with_its_name(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(2, 2))
    Checkpointer(tmp_path).save(1, {"model": model})
    with pytest.raises(CheckpointError, match=r"1\.weight"):
        Checkpointer(tmp_path).load({"model": torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))})


def test_a_cast_made_by_load_state_dict_is_not_silent(tmp_path: Path) -> None:
    parameter = torch.nn.Parameter(torch.zeros(3, dtype=torch.bfloat16))
    optimizer = torch.optim.SGD([parameter], lr=0.1, momentum=0.9)
    optimizer.state[parameter] = {"momentum_buffer": torch.full((3,), 1.001)}
    Checkpointer(tmp_path).save(1, {"optimizer": optimizer})
    other = torch.optim.SGD([torch.nn.Parameter(torch.zeros(3, dtype=torch.bfloat16))], lr=0.1, momentum=0.9)
    with pytest.raises(CheckpointError, match=r"saved as F32.*made BF16"):
        Checkpointer(tmp_path).load({"optimizer": other})


@pytest.mark.parametrize(
    "tensor",
    [
        torch.eye(3).to_sparse(),
        torch.empty(3, device="meta"),
    ],
    ids=["sparse", "meta"],
)
def test_tensors_without_plain_bytes_are_refused(tmp_path: Path, tensor: torch.Tensor) -> None:
    with pytest.raises(CheckpointError, match=r"'m\.x'.*cannot be saved"):
        Checkpointer(tmp_path).save(1, {"m": {"x": tensor}})


@pytest.mark.filterwarnings("ignore")  # DCP warns about a single process and its own API
def test_loads_what_torch_distributed_checkpoint_loads(tmp_path: Path) -> None:
    from torch.distributed.checkpoint.state_dict_loader import load
    from torch.distributed.checkpoint.state_dict_saver import save

    model, optimizer = training()
    one_step(model, optimizer)
    saved: dict[str, Any] = {"model": dict(model.state_dict()), "moments": dict(enumerate_state(optimizer)), "epoch": 3}
    save(saved, checkpoint_id=tmp_path / "dcp", no_dist=True)
    Checkpointer(tmp_path / "ours").save(1, saved)
    by_dcp = {"model": zeros(saved["model"]), "moments": zeros(saved["moments"]), "epoch": 0}
    by_ours = {"model": zeros(saved["model"]), "moments": zeros(saved["moments"]), "epoch": 0}
    load(by_dcp, checkpoint_id=tmp_path / "dcp", no_dist=True)
    Checkpointer(tmp_path / "ours").load(by_ours)
    assert same(by_ours, saved)
    assert same(by_ours, by_dcp)


def enumerate_state(optimizer: torch.optim.Optimizer) -> list[tuple[str, torch.Tensor]]:
    return [
        (f"{i}.{key}", value) for i, item in enumerate(optimizer.state.values()) for key, value in sorted(item.items())
    ]


def zeros(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {key: torch.zeros_like(value) for key, value in tensors.items()}


def test_a_tensor_that_could_not_be_restored_is_refused_when_it_is_saved(tmp_path: Path) -> None:
    expanded = torch.ones(1).expand(5)  # a copy into it is impossible
    with pytest.raises(CheckpointError, match=r"'m\.x'.*share memory.*clone"):
        Checkpointer(tmp_path).save(1, {"m": {"x": expanded}})
