"""Run gates: `python -m gates NAME ...`; all of them without a name."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

from gates.checkout import Checkout

GATES = ("budgets", "docstrings", "light_imports", "safe_code", "documents", "packages")


def main(argv: list[str]) -> int:
    """Findings of the named gates on standard output, one a line.

    Returns: 0 without findings, 1 with some, 2 for an unknown name.
    """
    unknown = sorted(set(argv) - set(GATES))
    if unknown:
        print(f"no gate named {', '.join(unknown)}; there are {', '.join(GATES)}", file=sys.stderr)
        return 2
    checkout = Checkout(Path(__file__).resolve().parents[2])
    findings = [
        finding
        for name in argv or GATES
        for finding in sorted(set(importlib.import_module(f"gates.{name}").check(checkout)))
    ]
    print(*findings, sep="\n", end="\n" if findings else "")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
