"""A home of its own for each test: no user config or variable of the machine is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

WriteJob = Callable[..., Path]


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """An environment whose home is an empty directory."""
    (tmp_path / "home").mkdir()
    return {"HOME": str(tmp_path / "home")}


@pytest.fixture
def write_job(tmp_path: Path) -> WriteJob:
    """Writes a job file with a command, unless the text brings its own."""

    def write(text: str, mode: int = 0o644) -> Path:
        path = tmp_path / "job.toml"
        path.write_text(text if "[program]" in text else f'{text}\n[program]\ncommand = ["python", "train.py"]\n')
        path.chmod(mode)
        return path

    return write
