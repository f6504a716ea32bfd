"""`hpc-train checkpoint inspect`: what is in a checkpoint, without torch, and without trusting it."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner, Result

from hpc_train.checkpoint import Checkpointer, rng_state
from hpc_train.cli.checkpoint import command
from hpc_train.errors import HpcTrainError


def run(*arguments: object) -> Result:
    return CliRunner().invoke(command, ["inspect", *map(str, arguments)])


@pytest.fixture
def root(tmp_path: Path) -> Path:
    embed, head = torch.nn.Embedding(5, 3), torch.nn.Linear(3, 5, bias=False)
    head.weight = embed.weight
    model = torch.nn.Sequential(OrderedDict(embed=embed, head=head))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.5)
    model(torch.arange(4)).sum().backward()
    optimizer.step()
    train = {"epoch": 3, "best": math.inf, "name": "a\x1b[31m", "key": b"\0\1", "steps": (1, 2), "none": None}
    state = {"model": model, "optimizer": optimizer, "train": train}
    checkpoint = Checkpointer(tmp_path / "root")
    for step in (10, 20):
        train["epoch"] = step
        checkpoint.save(step, state, per_rank={"random": rng_state(), "buffer": {"x": np.arange(3), "n": step}})
    return tmp_path / "root"


def test_parts_tensors_values_and_ranks_are_shown(root: Path) -> None:
    done = run(root)
    assert done.exit_code == 0, done.output
    for text in (
        f"checkpoint {root}/step-000000020\n",
        "step       20, saved 20",
        "UTC on 1 rank (writer posix)",
        "part       model: 1 tensors of 60 bytes, 0 plain values",
        "part       train: 0 tensors of 0 bytes, 6 plain values",
        "per rank   1 ranks, ",
        "tensor     model.embed.weight: F32 [5, 3], 60 bytes; tied: model.head.weight",
        "tensor     optimizer.state.0.exp_avg: F32 [5, 3], 60 bytes",
        "value      optimizer.param_groups.0.lr = 0.5 (float)",
        "value      optimizer.param_groups.0.betas = [0.9, 0.999] (tuple)",
        "value      train.epoch = 20 (int)",
        "value      train.best = 'inf' (float)",
        "value      train.key = '2 bytes: 0001' (bytes)",
        "value      train.steps = [1, 2] (tuple)",
        "value      train.none = None (NoneType)",
    ):
        assert text in done.output, text
    assert "\x1b" not in done.output


def test_json_holds_the_same_and_adds_up(root: Path) -> None:
    record: dict[str, Any] = json.loads(run(root, "--json", "--step", 10).output)
    assert (record["format"], record["version"], record["step"]) == ("hpc-train-checkpoint", 1, 10)
    assert (record["run"], record["attempt"], record["world_size"]) == ("", None, 1)
    sizes: dict[str, int] = {}
    for tensor in record["tensors"]:
        itemsize = {"F32": 4}[tensor["dtype"]]
        assert tensor["nbytes"] == itemsize * math.prod(tensor["shape"])
        part = tensor["name"].split(".")[0]
        sizes[part] = sizes.get(part, 0) + tensor["nbytes"]
    assert {name: part["num_bytes"] for name, part in record["parts"].items() if part["num_tensors"]} == sizes
    assert sum(record["files"].values()) < record["num_bytes"]


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("exp_avg", {"optimizer.state.0.exp_avg", "optimizer.state.0.exp_avg_sq"}),
        ("*.weight", {"model.embed.weight"}),
        ("model.head.weight", {"model.embed.weight"}),  # found by the name that is tied to it
        ("nothing", set()),
    ],
)
def test_a_filter_chooses_by_name(root: Path, pattern: str, names: set[str]) -> None:
    record = json.loads(run(root, "--json", "--filter", pattern).output)
    assert {tensor["name"] for tensor in record["tensors"]} == names
    assert record["parts"]["model"]["num_tensors"] == 1  # the whole is counted all the same


def test_the_state_of_one_rank_is_shown_when_asked(root: Path) -> None:
    done = run(root, "--rank", 0, "--filter", "buffer")
    assert "rank 0     buffer.x: I64 [3], 24 bytes" in done.output
    assert "rank 0     buffer.n = 20 (int)" in done.output
    missing = run(root, "--rank", 1)
    assert isinstance(missing.exception, HpcTrainError) and missing.exception.exit_code == 65
    assert "holds no state of rank 1; ranks 0 to 0 have one" in str(missing.exception)


def test_a_step_that_is_not_there_is_refused_with_those_that_are(root: Path, tmp_path: Path) -> None:
    for arguments, said in (
        ((root, "--step", 11), "no checkpoint of step 11; there are: 10, 20"),
        ((root / "step-000000010", "--step", 11), "is one checkpoint, of step 10"),
        ((tmp_path,), "no checkpoint; there are: none"),
        ((tmp_path / "nowhere",), "no such directory"),
    ):
        done = run(*arguments)
        assert isinstance(done.exception, HpcTrainError) and done.exception.exit_code == 65
        assert said in str(done.exception)


@pytest.mark.parametrize("name", ["COMMIT", "index.json"])
def test_a_damaged_record_is_named_not_shown(root: Path, name: str) -> None:
    path = root / "step-000000020" / name
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)
    done = run(path.parent)
    assert isinstance(done.exception, HpcTrainError) and done.exception.exit_code == 65
    assert str(path) in str(done.exception)
    os.truncate(path, 0)
    assert "step       10" in run(root).output or name == "index.json"  # a root shows its newest committed one


def test_nothing_heavy_is_imported(root: Path) -> None:
    program = (
        "import sys\nfrom click.testing import CliRunner\nfrom hpc_train.cli.checkpoint import command\n"
        f"assert CliRunner().invoke(command, ['inspect', {str(root)!r}, '--rank', '0']).exit_code == 0\n"
        "assert not {'torch', 'numpy', 'mpi4py', 'h5py'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60, cwd=Path(__file__).parents[2])


def test_a_root_without_a_whole_checkpoint_names_what_is_damaged(root: Path) -> None:
    for index in root.glob("*/index.json"):
        index.unlink()
    error = run(root).exception
    assert isinstance(error, HpcTrainError)
    assert "the newest of 2, step 20, is damaged" in str(error)
    assert f"{root}/step-000000020/index.json: No such file or directory; the checkpoint is damaged" in str(error)
    assert str(error).endswith(f"hpc-train checkpoint verify {root}")
