"""Gate: public names are declared, documented, and documented truly.

Apart from ruff's own docstring rules because the project's docstrings name their parameters in running text after
`Args:`, which no ready-made rule compares with the signature.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from gates.checkout import Checkout, Finding, PythonSource

__all__ = ["check", "documented_parameters"]

Function = ast.FunctionDef | ast.AsyncFunctionDef
Definition = Function | ast.ClassDef

# `name:` or `name, other:` at the start of a line, after `Args:` or after two blanks.
_PARAMETER = re.compile(r"(?:^|\s{2,})((?:\*{0,2}[A-Za-z_]\w*)(?:, \*{0,2}[A-Za-z_]\w*)*):(?=\s)", re.MULTILINE)
_ARGS = re.compile(r"^\s*Args:(.*?)(?=^\s*[A-Z]\w+(?: \w+)?:|^\s*$|\Z)", re.MULTILINE | re.DOTALL)


def check(checkout: Checkout) -> Iterator[Finding]:
    """Findings for modules without docstring or `__all__`, false entries of `__all__`, and untrue docstrings."""
    classes = {
        node.name: node
        for source in checkout.sources
        for node in ast.walk(source.tree)
        if isinstance(node, ast.ClassDef)
    }
    for source in checkout.sources:
        if ast.get_docstring(source.tree) is None and source.text.strip():
            yield source.finding(1, "module without a docstring")
        for node in ast.walk(source.tree):
            if isinstance(node, Definition):
                yield from _untrue_parameters(source, node)
        if source.path.startswith("hpc_train/"):
            yield from _public_names(source, classes)


def _public_names(source: PythonSource, classes: dict[str, ast.ClassDef]) -> Iterator[Finding]:
    exported = _exported(source.tree)
    defined = {node.name: node for node in source.tree.body if isinstance(node, Definition)}
    # Examples are programs: nobody imports names from them.
    is_private = source.path.startswith("hpc_train/examples/") or any(
        part.startswith("_") and part != "__init__" for part in source.module.split(".")
    )
    if exported is None:
        if any(not name.startswith("_") for name in defined) and not is_private:
            yield source.finding(1, "public module without __all__")
        return
    # A module-level __getattr__ makes names on demand; a test asks for each of them.
    known = _top_level_names(source.tree)
    for name in [] if "__getattr__" in known else sorted(exported - known):
        yield source.finding(1, f"__all__ names {name}, which the module does not define")
    for name in sorted(exported & defined.keys()):
        node = defined[name]
        if ast.get_docstring(node) is None:
            yield source.finding(node.lineno, f"{name} is public and has no docstring")
        if isinstance(node, ast.ClassDef):
            yield from _undocumented_methods(source, node, classes)


def _undocumented_methods(
    source: PythonSource, node: ast.ClassDef, classes: dict[str, ast.ClassDef]
) -> Iterator[Finding]:
    about_class = ast.get_docstring(node) or ""
    for method in node.body:
        if not isinstance(method, Function) or method.name.startswith("_") or ast.get_docstring(method) is not None:
            continue
        decorators = {ast.unparse(decorator) for decorator in method.decorator_list}
        if any(text.endswith((".setter", "overload")) for text in decorators):
            continue
        is_attribute = "property" in decorators or "cached_property" in decorators
        if is_attribute and re.search(rf"\b{method.name}\b", about_class):
            continue  # told in the class docstring, as attributes are
        if not _is_documented_above(method.name, node, classes):
            yield source.finding(method.lineno, f"{node.name}.{method.name} is public and has no docstring")


def _is_documented_above(method: str, node: ast.ClassDef, classes: dict[str, ast.ClassDef]) -> bool:
    """True where a base class in the checkout documents the method (or, for an attribute, names it)."""
    for base in node.bases:
        above = classes.get(ast.unparse(base).rpartition(".")[2].partition("[")[0])
        if above is None or above is node:
            continue
        if re.search(rf"\b{method}\b", ast.get_docstring(above) or ""):
            return True
        own = [item for item in above.body if isinstance(item, Function) and item.name == method]
        if any(ast.get_docstring(item) is not None for item in own):
            return True
        if _is_documented_above(method, above, classes):
            return True
    return False


def _untrue_parameters(source: PythonSource, node: Definition) -> Iterator[Finding]:
    documented = documented_parameters(ast.get_docstring(node) or "")
    if not documented:
        return
    known = _parameters(node)
    if known is None:
        return
    for name in documented:
        if name not in known:
            yield source.finding(
                node.lineno, f"docstring of {node.name} documents {name!r}, which is no parameter of it"
            )


def documented_parameters(docstring: str) -> list[str]:
    """Parameter names that a docstring mentions after `Args:`, in order."""
    names: list[str] = []
    for section in _ARGS.finditer(docstring):
        for match in _PARAMETER.finditer(section.group(1)):
            names += [name.strip().lstrip("*") for name in match.group(1).split(",")]
    # A capital begins the next section on the same line, as in `Args:  x: ...   Returns: ...`.
    return [name for name in names if not name[0].isupper()]


def _parameters(node: Definition) -> set[str] | None:
    """Names that a call may use; None for a class whose parameters come from elsewhere."""
    if isinstance(node, Function):
        arguments = node.args
        extra = [item.arg for item in (arguments.vararg, arguments.kwarg) if item]
        return {item.arg for item in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]} | set(extra)
    for item in node.body:
        if isinstance(item, Function) and item.name == "__init__":
            return _parameters(item)
    fields = {
        item.target.id for item in node.body if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
    }
    return fields or None


def _exported(tree: ast.Module) -> set[str] | None:
    for node in tree.body:
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        if any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets):
            value = getattr(node, "value", None)
            items = ast.walk(value) if value is not None else ()
            return {item.value for item in items if isinstance(item, ast.Constant) and isinstance(item.value, str)}
    return None


def _top_level_names(tree: ast.Module) -> set[str]:
    """Names bound at module level, also inside `if`, `try` and `with`."""
    names: set[str] = set()
    pending: list[ast.stmt] = list(tree.body)
    while pending:
        node = pending.pop()
        if isinstance(node, Definition):
            names.add(node.name)
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {(alias.asname or alias.name).partition(".")[0] for alias in node.names}
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.stmt):
                pending.append(child)
            elif isinstance(child, ast.ExceptHandler):
                pending += child.body
            names |= {
                item.id for item in ast.walk(child) if isinstance(item, ast.Name) and isinstance(item.ctx, ast.Store)
            }
    return names
