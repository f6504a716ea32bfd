"""`hpc-train checkpoint list` and `verify`: every damage is named, and the login side stays light."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from hpc_train.checkpoint import Checkpointer, verify_checkpoint
from hpc_train.cli.checkpoint import command

BIG = np.arange(5 << 20, dtype=np.float32)  # 20 MiB: three chunks


@pytest.fixture
def root(tmp_path: Path) -> Path:
    checkpoint = Checkpointer(tmp_path / "a root")
    for step in (1, 2):
        checkpoint.save(step, {"m": {"big": BIG, "odd": np.ones(7, np.uint8)}}, per_rank={"mine": {"x": step}})
    return tmp_path / "a root"


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(command, [str(argument) for argument in arguments])


def flip(path: Path, position: int) -> None:
    with open(path, "r+b") as file:
        file.seek(position, os.SEEK_END if position < 0 else os.SEEK_SET)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 4]))


def place(step: Path, name: str) -> int:
    data = (step / "data-00000.safetensors").read_bytes()
    header = int.from_bytes(data[:8], "little")
    return 8 + header + int(json.loads(data[8 : 8 + header])[name]["data_offsets"][0])


DATA = "data-00000.safetensors"
DAMAGE: dict[str, tuple[Callable[[Path], object], tuple[str, ...]]] = {
    "a bit in the third chunk": (
        lambda p: flip(p / DATA, place(p, "m.big") + (17 << 20)),
        (DATA, "'m.big'", "chunk 2 of 3"),
    ),
    "a bit in a small tensor": (lambda p: flip(p / DATA, place(p, "m.odd")), (DATA, "'m.odd'", "chunk 0")),
    "a bit in a rank's state": (lambda p: flip(p / DATA, place(p, "__rank_00000")), (DATA, "state of rank 0")),
    "a bit in the header": (lambda p: flip(p / DATA, 20), (DATA, "header")),
    "a bit in the padding": (lambda p: flip(p / DATA, place(p, "__pad_00000")), (DATA, "padding")),
    "a bit in the index": (lambda p: flip(p / "index.json", 100), ("index.json", "sha256")),
    "a bit in COMMIT": (lambda p: flip(p / "COMMIT", 50), ("COMMIT", "CRC-32")),
    "data cut short": (lambda p: os.truncate(p / DATA, 1000), (DATA, "1000 bytes")),
    "index cut short": (lambda p: os.truncate(p / "index.json", 9), ("index.json", "9 bytes")),
    "COMMIT cut short": (lambda p: os.truncate(p / "COMMIT", 30), ("COMMIT", "cut short")),
    "data empty": (lambda p: os.truncate(p / DATA, 0), (DATA, "0 bytes")),
    "index empty": (lambda p: os.truncate(p / "index.json", 0), ("index.json", "0 bytes")),
    "COMMIT empty": (lambda p: os.truncate(p / "COMMIT", 0), ("COMMIT",)),
    "data missing": (lambda p: os.unlink(p / DATA), (DATA, "No such file")),
    "index missing": (lambda p: os.unlink(p / "index.json"), ("index.json", "No such file")),
    "COMMIT missing": (lambda p: os.unlink(p / "COMMIT"), ("COMMIT", "No such file")),
    "renamed to another step": (lambda p: p.rename(p.with_name("step-000000009")), ("is of step 2",)),
}


@pytest.mark.parametrize(("damage", "words"), DAMAGE.values(), ids=DAMAGE)
def test_every_damage_is_named_and_exits_65(
    root: Path, damage: Callable[[Path], object], words: tuple[str, ...]
) -> None:
    damage(root / "step-000000002")
    result = run("verify", root)
    assert result.exit_code == 65
    assert "step-000000001: whole" in result.output
    for word in words:
        assert word in result.output


def test_a_whole_root_exits_0_and_one_directory_can_be_given(root: Path) -> None:
    assert run("verify", root).exit_code == 0
    result = run("verify", "--json", root / "step-000000001")
    assert result.exit_code == 0
    record = json.loads(result.output)
    assert [(item["step"], item["is_good"]) for item in record["checkpoints"]] == [(1, True)]


def test_one_directory_without_commit_is_damaged_not_empty(root: Path) -> None:
    os.unlink(root / "step-000000002/COMMIT")
    assert run("verify", root / "step-000000002").exit_code == 65


def test_nothing_to_verify_is_an_error(tmp_path: Path) -> None:
    result = run("verify", tmp_path)
    assert getattr(result.exception, "exit_code", None) == 65


def test_every_byte_of_a_checkpoint_is_covered(root: Path) -> None:
    step = root / "step-000000002"
    for name in sorted(os.listdir(step)):
        size = (step / name).stat().st_size
        for position in sorted({*range(0, size, max(size // 7, 1)), size - 1}):
            flip(step / name, position)
            assert not verify_checkpoint(step).is_good, f"{name} at {position}"
            flip(step / name, position)
    assert verify_checkpoint(step).is_good


def test_list_tells_committed_damaged_and_uncommitted_apart(root: Path) -> None:
    os.unlink(root / "step-000000001/COMMIT")
    (root / ".step-000000003.inprogress-0123abcd").mkdir()
    (root / "step-000000100.backup").mkdir()
    record = json.loads(run("list", "--json", root).output)
    assert [(item["step"], item["status"], item["world_size"]) for item in record["checkpoints"]] == [
        (1, "damaged", None),
        (2, "committed", 1),
        (3, "uncommitted", None),
    ]
    text = run("list", root).output
    assert "backup" not in text
    assert "COMMIT: No such file" in text


def test_a_run_directory_stands_for_its_checkpoints(root: Path, tmp_path: Path) -> None:
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    (run_dir / "run.json").write_text('{"format": "hpc-train-run", "version": 1}')
    root.rename(run_dir / "checkpoints")
    assert len(json.loads(run("list", "--json", run_dir).output)["checkpoints"]) == 2
    assert run("verify", run_dir).exit_code == 0


def test_the_login_side_imports_nothing_heavy(root: Path) -> None:
    program = (
        "import sys\nfrom click.testing import CliRunner\nfrom hpc_train.cli.checkpoint import command\n"
        "for name in ('list', 'verify'):\n"
        f"    assert CliRunner().invoke(command, [name, {str(root)!r}]).exit_code == 0\n"
        "assert not {'torch', 'numpy', 'mpi4py', 'h5py'} & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=60, cwd=Path(__file__).parents[2])
