"""A home of its own for each test: no site file or user config of the machine is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

WriteSite = Callable[..., Path]


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    """An environment whose $HPC_TRAIN_SITES and home are empty directories."""
    for name in ("sites", "home"):
        (tmp_path / name).mkdir()
    return {"HPC_TRAIN_SITES": str(tmp_path / "sites"), "HOME": str(tmp_path / "home")}


@pytest.fixture
def write_site(environ: dict[str, str]) -> WriteSite:
    """Writes NAME.toml into $HPC_TRAIN_SITES."""

    def write(name: str, text: str, mode: int = 0o644) -> Path:
        path = Path(environ["HPC_TRAIN_SITES"]) / f"{name}.toml"
        path.write_text(text)
        path.chmod(mode)
        return path

    return write
