"""Each gate of tools/check finds the breach it is there for, in a small made-up checkout; a sound one passes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from gates import budgets, docstrings, documents, light_imports, packages, safe_code
from gates.checkout import Checkout, Finding

ROOT = Path(__file__).parents[2]
MODULE = '"""A module."""\n\nfrom __future__ import annotations\n\n__all__: list[str] = []\n'
LONG_LINE = "x = 1\n"
# In parts, so that the gate does not find them here.
UNFINISHED = "TO" + "DO"
ONE_MACHINE = "/wo" + "rk/"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A checkout with one sound module."""
    write(tmp_path, {"hpc_train/__init__.py": MODULE, "hpc_train/files.py": MODULE})
    return tmp_path


def write(tree: Path, files: dict[str, str]) -> Checkout:
    """The checkout with these files."""
    for name, text in files.items():
        path = tree / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return Checkout(tree)


def texts(findings: list[Finding]) -> str:
    """All findings in one text."""
    return "\n".join(map(str, findings))


def function(num_lines: int) -> str:
    """A function of so many lines, `def` included."""
    return "def act():\n" + "    x = 1\n" * (num_lines - 1)


@pytest.mark.parametrize(
    ("text", "breach"),
    [
        (function(50), None),
        (function(51), "act has 51 lines"),
        (LONG_LINE * 400, None),
        (LONG_LINE * 401, "module of 401 lines"),
        ("def act(a, b, c, d, e, *, f): ...\n", None),
        ("def act(a, b, c, d, e, f): ...\n", "act has 6 positional parameters"),
        ("class A:\n    def act(self, a, b, c, d, e): ...\n", None),  # self is no choice of the caller
    ],
)
def test_budgets(tree: Path, text: str, breach: str | None) -> None:
    found = texts(list(budgets.check(write(tree, {"hpc_train/job.py": text}))))
    assert (breach in found) if breach else found == ""


@pytest.mark.parametrize(
    ("text", "breach"),
    [
        ('"""M."""\n__all__ = ["act"]\ndef act(): "It acts."\n', None),
        ('"""M."""\n__all__ = ["act"]\ndef act(): ...\n', "act is public and has no docstring"),
        ('"""M."""\n__all__ = ["gone"]\n', "__all__ names gone"),
        ('"""M."""\n__all__ = ["gone"]\ndef __getattr__(name): ...\n', None),  # made on demand; a test asks for it
        ('"""M."""\ndef act(): "It acts."\n', "public module without __all__"),
        ("__all__ = []\n", "module without a docstring"),
        ('"""M."""\n__all__ = ["A"]\nclass A:\n    "A."\n    def act(self): ...\n', "A.act is public"),
        ('"""M."""\n__all__ = ["A"]\nclass A:\n    "size: bytes."\n    @property\n    def size(self): ...\n', None),
        ('"""M."""\n__all__ = ["a"]\ndef a(x):\n    """A.\n\n    Args:  x: one.   y: two.\n    """\n', "'y'"),
        ('"""M."""\n__all__ = ["a"]\ndef a(x, *, y):\n    """A.\n\n    Args:  x: one.   y: two.\n    """\n', None),
        ('"""M."""\n__all__ = ["a"]\ndef a(x):\n    """A.\n\n    Args:  x: one.   Returns: two.\n    """\n', None),
    ],
)
def test_docstrings(tree: Path, text: str, breach: str | None) -> None:
    found = texts(list(docstrings.check(write(tree, {"hpc_train/job.py": text}))))
    assert (breach in found) if breach else found == ""


def test_a_method_documented_in_the_base_class_needs_no_second_docstring(tree: Path) -> None:
    base = '"""M."""\n__all__ = ["A"]\nclass A:\n    "A."\n    def act(self): "It acts."\n'
    derived = '"""M."""\n__all__ = ["B"]\nclass B(A):\n    "B."\n    def act(self): ...\n'
    checkout = write(tree, {"hpc_train/a.py": base, "hpc_train/b.py": derived})
    assert list(docstrings.check(checkout)) == []


@pytest.mark.parametrize(
    ("files", "breach"),
    [
        ({"hpc_train/cli/submit.py": "import numpy\n"}, "numpy at module level: hpc_train.cli.submit -> numpy"),
        ({"hpc_train/cli/submit.py": "def act():\n    import numpy\n"}, None),
        (
            {"hpc_train/cli/submit.py": "from hpc_train import plan\n", "hpc_train/plan.py": "from torch import nn\n"},
            "hpc_train.cli.submit -> hpc_train.plan -> torch",
        ),
        (
            {"hpc_train/run/layout.py": MODULE, "hpc_train/run/__init__.py": "import h5py\n"},
            "hpc_train.run.layout -> hpc_train.run -> h5py",  # a package's own __init__ comes first
        ),
        ({"hpc_train/cli/a.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import torch\n"}, None),
        ({"hpc_train/cli/a.py": "try:\n    import isal\nexcept ImportError:\n    pass\n"}, "isal"),
        ({"hpc_train/launch/shim.py": "import msgspec\n"}, "what starts every rank must not import msgspec"),
        ({"hpc_train/launch/shim.py": "import json, os.path\n"}, None),
        ({"hpc_train/data/reader.py": "import numpy, torch\n"}, None),
    ],
)
def test_light_imports(tree: Path, files: dict[str, str], breach: str | None) -> None:
    found = texts(list(light_imports.check(write(tree, files))))
    assert (breach in found) if breach else found == ""


@pytest.mark.parametrize(
    ("path", "text", "is_breach"),
    [
        ("hpc_train/a.py", "import pickle\n", True),
        ("hpc_train/a.py", "from yaml import safe_load\n", True),
        ("hpc_train/a.py", "eval('1')\n", True),
        ("hpc_train/a.py", "import runpy\n", True),
        ("hpc_train/launch/a.py", "import runpy\n", False),
        ("hpc_train/a.py", "torch.load(path)\n", True),
        ("hpc_train/a.py", "torch.load(path, weights_only=True)\n", False),
        ("hpc_train/a.py", "subprocess.run(text, shell=True)\n", True),
        ("hpc_train/a.py", "re.compile('x')\n", False),
        ("tests/a.py", "import pickle\n", False),  # a test makes hostile files
        ("docs/a.md", f"{UNFINISHED}: more\n", True),
        ("tools/a.py", f"path = '{ONE_MACHINE}shared'\n", True),
        ("site_configs/archer2.toml", f"run_root = '{ONE_MACHINE}project'\n", False),  # a real file system there
    ],
)
def test_safe_code(tree: Path, path: str, text: str, is_breach: bool) -> None:
    assert bool(list(safe_code.check(write(tree, {path: text})))) == is_breach


@pytest.mark.parametrize(
    ("text", "breach"),
    [
        ("[a](docs/a.md) [b](https://example.org/b) [c](#top)\n# Top\n", None),
        ("[a](docs/gone.md)\n", "docs/gone.md, which does not exist"),
        ("[a](docs/a.md#a-heading) [b](docs/a.md#a-heading-1)\n", None),
        ("[a](docs/a.md#other)\n", "no such heading"),
        ("```\n[a](gone.md)\n```\n`[b](gone.md)`\n", None),  # shown, not linked
    ],
)
def test_links(tree: Path, text: str, breach: str | None) -> None:
    checkout = write(tree, {"README.md": text, "docs/a.md": "# A heading!\n\n## A `heading`\n"})
    found = texts(list(documents.check_links(checkout)))
    assert (breach in found) if breach else found == ""


@pytest.mark.parametrize(
    ("line", "breach"),
    [
        ("hpc-train submit job.toml --site alpine", None),
        ("$ hpc-train site show alpine", None),
        ("hpc-train submit -- python train.py --lr 3", None),  # after `--` it is another program's
        ("hpc-train sumbit job.toml", "no command sumbit"),
        ("cd run && hpc-train site shwo", "no command shwo"),
        ("python -m hpc_train submit --sight x", "no flag --sight"),
    ],
)
def test_commands_in_documents(tree: Path, line: str, breach: str | None) -> None:
    submit = click.Command("submit", params=[click.Option(["--site"]), click.Argument(["job"])])
    site = click.Group("site", commands={"show": click.Command("show", params=[click.Argument(["name"])])})
    program = click.Group("hpc-train", commands={"submit": submit, "site": site})
    found = texts(list(documents.check_commands(write(tree, {"README.md": f"```\n{line}\n```\n"}), program)))
    assert (breach in found) if breach else found == ""


@pytest.mark.parametrize(
    ("files", "breach"),
    [
        ({}, None),
        ({"hpc_train/new/__init__.py": MODULE}, "packages lacks hpc_train.new"),
        ({"hpc_train/new/__init__.py": MODULE}, "room new has no contract"),
        ({"hpc_train/new/a.py": MODULE}, "package without __init__.py"),
        ({"tools/constraints.txt": "click>=8\n"}, "'click>=8' is not an exact pin"),
        ({"tools/check": "#!/bin/bash\n"}, "is not executable"),
    ],
)
def test_packages(tree: Path, files: dict[str, str], breach: str | None) -> None:
    sound = {
        "setup.cfg": "[options]\npackages =\n    hpc_train\n",
        "pyproject.toml": '[[tool.importlinter.contracts]]\nrooms = ["files"]\n',
        "tools/constraints.txt": "# Pins.\nclick==8.5.1\n",
    }
    found = texts(list(packages.check(write(tree, sound | files))))
    assert (breach in found) if breach else found == ""


@pytest.fixture
def linted(tree: Path) -> Path:
    """A checkout under the project's own import contracts, with few of its rooms."""
    shutil.copy(ROOT / "pyproject.toml", tree)
    names = ["__main__", "cli/__init__", "cli/main", "data/__init__", "checkpoint/__init__", "launch/__init__", "world"]
    write(tree, {f"hpc_train/{name}.py": MODULE for name in names})
    return tree


@pytest.mark.parametrize(
    ("files", "breach"),
    [
        ({}, None),  # rooms that do not exist yet break nothing
        (
            {"hpc_train/data/a.py": "from hpc_train import checkpoint\n"},
            "hpc_train.data.a imports hpc_train.checkpoint",
        ),
        ({"hpc_train/data/a.py": "def act():\n    import hpc_train.checkpoint\n"}, "hpc_train.data.a imports"),
        ({"hpc_train/data/a.py": "from hpc_train.world import World\nimport numpy\n"}, None),
        ({"hpc_train/launch/a.py": "def act():\n    import numpy\n"}, "hpc_train.launch.a imports numpy"),
        ({"hpc_train/launch/a.py": "def act():\n    from torch.distributed import TCPStore\n"}, None),
        ({"hpc_train/data/a.py": "from hpc_train import __version__\n"}, "hpc_train.data.a imports hpc_train"),
        ({"hpc_train/scheduler/__init__.py": "from hpc_train import __version__\n"}, None),
        ({"hpc_train/train/__init__.py": "import hpc_train.cli.main\n"}, "nothing imports cli"),
        (
            {"hpc_train/data/a.py": "import hpc_train.data.b\n", "hpc_train/data/b.py": "import hpc_train.data.a\n"},
            "no import cycles",
        ),
    ],
)
def test_import_contracts(linted: Path, files: dict[str, str], breach: str | None) -> None:
    write(linted, files)
    done = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache", "--no-logo"],
        cwd=linted,
        env={**os.environ, "PYTHONPATH": f"{linted}:{ROOT / 'tools'}", "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if breach is None:
        assert done.returncode == 0, done.stdout + done.stderr
    else:
        assert done.returncode == 1, done.stdout + done.stderr
        assert breach in done.stdout
