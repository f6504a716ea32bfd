"""The files of a checkout, read once: what the gates look at.

Apart from the gates so that each of them is a function from a `Checkout` to findings and runs on a small made-up
tree in its test just as on the real one.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

__all__ = ["Checkout", "Finding", "PythonSource"]

# Folders that hold nothing of ours: caches, environments, what tools leave behind.
_FOREIGN = {"__pycache__", "build", "dist", "quickstart", "runs"}
_TEXT_SUFFIXES = {".cfg", ".conf", ".j2", ".json", ".md", ".py", ".sbatch", ".sh", ".tmpl", ".toml", ".txt", ""}


@dataclass(frozen=True, order=True)
class Finding:
    """One breach: where, and what to do about it."""

    path: str
    line: int
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.text}"


@dataclass(frozen=True)
class PythonSource:
    """One parsed module of the checkout; `path` is relative to its root."""

    path: str
    text: str
    tree: ast.Module

    @property
    def module(self) -> str:
        """Dotted name as the import system has it: hpc_train/job/__init__.py is hpc_train.job."""
        return self.path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    @property
    def is_package(self) -> bool:
        """True for an `__init__.py`."""
        return self.path.endswith("__init__.py")

    def finding(self, line: int, text: str) -> Finding:
        """A finding in this file."""
        return Finding(self.path, line, text)


@dataclass(frozen=True)
class Checkout:
    """A checkout by its root folder."""

    root: Path

    @cached_property
    def text_files(self) -> list[Path]:
        """Every text file, sorted; files of tools (hidden ones, environments, caches) left out, `.ci` kept."""
        return sorted(path for path in _walk(self.root) if path.suffix in _TEXT_SUFFIXES)

    @cached_property
    def sources(self) -> list[PythonSource]:
        """Every Python module of hpc_train, tests, tools and the two data folders.

        Raises: SyntaxError for a file that does not parse.
        """
        tops = {"hpc_train", "tests", "tools", "sbatch_templates", "site_configs"}
        found = []
        for path in self.text_files:
            relative = path.relative_to(self.root)
            if path.suffix == ".py" and relative.parts[0] in tops:
                text = path.read_text(encoding="utf-8")
                found.append(PythonSource(relative.as_posix(), text, ast.parse(text, filename=str(relative))))
        return found

    @property
    def package(self) -> list[PythonSource]:
        """The modules that ship."""
        return [source for source in self.sources if source.path.startswith("hpc_train/")]


def _walk(folder: Path) -> Iterator[Path]:
    for path in folder.iterdir():
        if path.is_symlink() or path.name in _FOREIGN or path.name.endswith(".egg-info"):
            continue
        if path.name.startswith(".") and path.name not in {".ci", ".gitignore"}:
            continue
        if path.is_dir():
            yield from _walk(path)
        else:
            yield path
