"""Gate: the metadata and settings name every package, room and pin that the tree has.

Apart from a test because a forgotten entry shows only in a built wheel or as a rule that is never applied.
"""

from __future__ import annotations

import configparser
import os
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from gates.checkout import Checkout, Finding

__all__ = ["check"]

_WITHOUT_CONTRACT = {"__init__", "__main__", "cli"}  # `cli` may import every room; the protected contract names it


def check(checkout: Checkout) -> Iterator[Finding]:
    """Findings in setup.cfg, pyproject.toml, tools/constraints.txt and the modes of the tools."""
    yield from _packages(checkout)
    yield from _rooms(checkout)
    yield from _pins(checkout.root / "tools" / "constraints.txt")
    yield from _modes(checkout.root)


def _packages(checkout: Checkout) -> Iterator[Finding]:
    config = configparser.ConfigParser()
    config.read(checkout.root / "setup.cfg", encoding="utf-8")
    listed = config.get("options", "packages", fallback="").split()
    mapping = dict(re.findall(r"^(\S+) *= *(\S+)$", config.get("options", "package_dir", fallback=""), re.MULTILINE))
    with_modules = {source.path.rpartition("/")[0] for source in checkout.package}
    expected = {folder.replace("/", ".") for folder in with_modules} | set(mapping)
    for name in sorted(expected - set(listed)):
        yield Finding("setup.cfg", 1, f"[options] packages lacks {name}: it would be missing in the wheel")
    for name in sorted(set(listed) - expected):
        yield Finding("setup.cfg", 1, f"[options] packages names {name}, which has no module")
    for folder in sorted(with_modules):
        if not (checkout.root / folder / "__init__.py").is_file():
            yield Finding(folder, 1, "package without __init__.py")


def _rooms(checkout: Checkout) -> Iterator[Finding]:
    settings = tomllib.loads((checkout.root / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = settings.get("tool", {}).get("importlinter", {}).get("contracts", [])
    ruled = {room for contract in contracts for room in contract.get("rooms", [])}
    present: dict[str, str] = {}
    for source in checkout.package:
        present.setdefault(source.path.split("/")[1].removesuffix(".py"), source.path)
    for room, path in sorted(present.items()):
        if room not in _WITHOUT_CONTRACT and not any(rule == room or rule.startswith(f"{room}.") for rule in ruled):
            yield Finding(path, 1, f"room {room} has no contract in pyproject.toml: say there what it may import")


def _pins(constraints: Path) -> Iterator[Finding]:
    for number, line in enumerate(constraints.read_text(encoding="utf-8").splitlines(), start=1):
        if line and not line.startswith("#") and not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", line):
            yield Finding("tools/constraints.txt", number, f"{line!r} is not an exact pin: name==version")


def _modes(root: Path) -> Iterator[Finding]:
    for path in sorted([*(root / "tools").iterdir(), *(root / ".ci").glob("*")]):
        if path.is_file() and path.read_bytes().startswith(b"#!") and not os.access(path, os.X_OK):
            yield Finding(path.relative_to(root).as_posix(), 1, "has a first line for running it and is not executable")
