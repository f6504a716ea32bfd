"""Gate: nothing in the package can run what it reads, and nothing unfinished or of one machine stays in the text.

Apart from ruff's security rules because those know some of these calls but not our exceptions to them.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from gates.checkout import Checkout, Finding, PythonSource

__all__ = ["check"]

_FORBIDDEN_MODULES = {
    "cPickle", "cloudpickle", "dill", "joblib", "jsonpickle", "marshal", "pickle", "ruamel", "shelve", "yaml",
}  # fmt: skip
_FORBIDDEN_CALLS = {"eval", "exec", "compile", "__import__", "os.system", "os.popen"}
# The shim runs the user's program in process: that is its purpose.
_ALLOWED = dict.fromkeys(("runpy", "exec", "compile"), "hpc_train/launch/")

# Put together here so that this file does not find itself.
_UNFINISHED = re.compile(r"\b(" + "TO" + "DO|FIX" + r"ME)\b")
_ONE_MACHINE = re.compile("/wo" + r"rk/(?!<)|/tmp/" + r"brief|\." + r"library\b|/ro" + r"ot/\.")
# /work is a real file system of some machines; their site files may name it.
_NAMES_REAL_MACHINES = ("site_configs/", "docs/sites")


def check(checkout: Checkout) -> Iterator[Finding]:
    """Findings for code that can be made to run data, marks of unfinished work, and paths of one machine."""
    for source in checkout.package:
        for node in ast.walk(source.tree):
            yield from _dangerous(source, node)
    for path in checkout.text_files:
        relative = path.relative_to(checkout.root).as_posix()
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
            if match := _UNFINISHED.search(line):
                yield Finding(relative, number, f"{match.group()}: do it, or say it in the docs")
            if (match := _ONE_MACHINE.search(line)) and not relative.startswith(_NAMES_REAL_MACHINES):
                yield Finding(relative, number, f"{match.group()!r}: a path of one machine; say it in general words")


def _dangerous(source: PythonSource, node: ast.AST) -> Iterator[Finding]:
    names: list[str] = []
    if isinstance(node, ast.Import):
        names = [alias.name for alias in node.names]
    elif isinstance(node, ast.ImportFrom):
        names = [node.module or ""]
    for name in names:
        package = name.partition(".")[0]
        if package in _FORBIDDEN_MODULES:
            yield source.finding(node.lineno, f"imports {package}: what it reads can run code")  # type: ignore[attr-defined]
        if package == "runpy" and not source.path.startswith(_ALLOWED[package]):
            yield source.finding(node.lineno, f"imports {package}, which only {_ALLOWED[package]} may")  # type: ignore[attr-defined]
    if isinstance(node, ast.Call):
        yield from _dangerous_call(source, node)


def _dangerous_call(source: PythonSource, call: ast.Call) -> Iterator[Finding]:
    name = ast.unparse(call.func)
    keywords = {keyword.arg: ast.unparse(keyword.value) for keyword in call.keywords}
    if name in _FORBIDDEN_CALLS and not source.path.startswith(_ALLOWED.get(name, "/")):
        yield source.finding(call.lineno, f"calls {name}(): text must not become code")
    if name == "torch.load" and keywords.get("weights_only") != "True":
        yield source.finding(call.lineno, "calls torch.load() without weights_only=True: a pickle can run code")
    if keywords.get("allow_pickle") == "True":
        yield source.finding(call.lineno, f"calls {name}(allow_pickle=True): a pickle can run code")
    if keywords.get("shell") == "True":
        yield source.finding(call.lineno, f"calls {name}(shell=True): give a list of arguments")
