"""Gate: the login side imports nothing heavy, and what every rank starts with imports the standard library only.

Apart from the import-linter contracts because those do not tell an import at module level, which costs every
command its time, from one inside a function, which costs only the caller.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable, Iterator

from gates.checkout import Checkout, Finding, PythonSource

__all__ = ["HEAVY", "LOGIN_SIDE", "STANDARD_LIBRARY_ONLY", "check", "module_level_imports"]

# What the extras bring, and what a login node may lack.
HEAVY = {"torch", "mpi4py", "h5py", "numpy", "isal", "safetensors", "transformers", "lightning"}
LOGIN_SIDE = (
    "hpc_train",  # the package itself: its public names are lazy
    "hpc_train.__main__",
    "hpc_train.job",
    "hpc_train.site",
    "hpc_train.topology",
    "hpc_train.run",
    "hpc_train.recovery.policy",
    "hpc_train.diagnosis",
    "hpc_train.scheduler",
    "hpc_train.checkpoint.catalogue",
    "hpc_train.cli",
)
# At module level; inside functions the import contracts of these rooms rule.
STANDARD_LIBRARY_ONLY = (
    "hpc_train",
    "hpc_train.__main__",
    "hpc_train.launch",
    "hpc_train.run.layout",
    "hpc_train.run.journal",
    "hpc_train.run.marks",
)


def check(checkout: Checkout) -> Iterator[Finding]:
    """Findings with the chain of modules that leads to each package that must not be imported."""
    modules = {source.module: source for source in checkout.package}
    for name in sorted(modules):
        if _is_listed(name, LOGIN_SIDE):
            yield from _reached(name, modules, HEAVY.__contains__, "the login side must not import")
        if _is_listed(name, STANDARD_LIBRARY_ONLY):
            yield from _reached(name, modules, _is_foreign, "what starts every rank must not import")


def module_level_imports(tree: ast.Module) -> dict[str, int]:
    """Dotted names that importing the module imports, with their lines; not those in functions or TYPE_CHECKING.

    `from a import b` gives a and a.b, since b may be a module.
    """
    found: dict[str, int] = {}
    pending: list[ast.AST] = list(tree.body)
    while pending:
        node = pending.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            pending += node.orelse
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name: node.lineno for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            found[node.module] = node.lineno
            found |= {f"{node.module}.{alias.name}": node.lineno for alias in node.names}
        pending += ast.iter_child_nodes(node)
    return found


def _is_listed(module: str, rooms: tuple[str, ...]) -> bool:
    return any(module == room or (room != "hpc_train" and module.startswith(f"{room}.")) for room in rooms)


def _is_foreign(package: str) -> bool:
    return package not in sys.stdlib_module_names and package != "hpc_train"


def _reached(
    start: str, modules: dict[str, PythonSource], is_bad: Callable[[str], bool], rule: str
) -> Iterator[Finding]:
    """Every bad package that importing `start` imports, by way of other modules of ours too."""
    chains = {start: [start]}
    pending = [start]
    bad: dict[str, list[str]] = {}
    while pending:
        name = pending.pop(0)
        for imported in [*_parents(name), *module_level_imports(modules[name].tree)]:
            if imported in modules and imported not in chains:
                chains[imported] = [*chains[name], imported]
                pending.append(imported)
            elif is_bad(package := imported.partition(".")[0]):
                bad.setdefault(package, [*chains[name], package])
    for package, chain in sorted(bad.items()):
        first = module_level_imports(modules[start].tree).get(chain[1], 1)
        yield modules[start].finding(first, f"{rule} {package} at module level: {' -> '.join(chain)}")


def _parents(module: str) -> list[str]:
    """Packages that Python imports before the module itself."""
    parts = module.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]
