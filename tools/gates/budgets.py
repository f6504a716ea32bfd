"""Gate: functions, modules and parameter lists stay small enough to be read in one go."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from gates.checkout import Checkout, Finding

__all__ = ["MAX_FUNCTION_LINES", "MAX_MODULE_LINES", "MAX_POSITIONAL", "check"]

MAX_FUNCTION_LINES = 50  # from `def` to the last line, docstring included
MAX_MODULE_LINES = 400
MAX_POSITIONAL = 5  # positional-or-keyword parameters; self and cls are not counted


def check(checkout: Checkout) -> Iterator[Finding]:
    """Findings for every module and function over its budget. Bash and templates are not counted."""
    for source in checkout.sources:
        num_lines = source.text.count("\n")
        if num_lines > MAX_MODULE_LINES:
            yield source.finding(
                1, f"module of {num_lines} lines; at most {MAX_MODULE_LINES}: split it by what it does"
            )
        for node in ast.walk(source.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                for text in _over_budget(node):
                    yield source.finding(node.lineno, text)


def _over_budget(function: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[str]:
    num_lines = (function.end_lineno or function.lineno) - function.lineno + 1
    if num_lines > MAX_FUNCTION_LINES:
        yield f"{function.name} has {num_lines} lines; at most {MAX_FUNCTION_LINES}"
    names = [argument.arg for argument in [*function.args.posonlyargs, *function.args.args]]
    num_positional = len(names) - (names[:1] in (["self"], ["cls"]))
    if num_positional > MAX_POSITIONAL:
        yield f"{function.name} has {num_positional} positional parameters; at most {MAX_POSITIONAL}, others after `*`"
