"""An import-linter contract: one explicit list of what a room may import of hpc_train.

Apart from import-linter's own kinds of contract because those name what is forbidden, and a new module would be
allowed by default; and because they stop with an error at a room that does not exist yet.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from importlinter import Contract, ContractCheck, fields, output

if TYPE_CHECKING:
    from grimp import ImportGraph

__all__ = ["AllowedImportsContract", "is_within"]


def is_within(module: str, packages: list[str]) -> bool:
    """True where the module is one of the packages or lies below one."""
    return any(module == package or module.startswith(f"{package}.") for package in packages)


class AllowedImportsContract(Contract):
    """Rooms import themselves, what `allowed` names, and packages outside hpc_train; imports in functions count.

    Options:  rooms, allowed: module names below the root package; "." in `allowed` is the root's own __init__.
    standard_library_only: of the packages outside hpc_train only the standard library, and `other_packages`.
    """

    type_name = "allowed_imports"

    rooms = fields.ListField(subfield=fields.StringField())
    allowed = fields.ListField(subfield=fields.StringField())
    standard_library_only = fields.BooleanField(required=False, default=False)
    other_packages = fields.ListField(subfield=fields.StringField(), required=False, default=())

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        """Compare every direct import of the rooms with the list.

        Returns: the check; its metadata holds one line of text per import that is not allowed.
        """
        root = self.session_options["root_packages"][0]
        rooms = [f"{root}.{room}" for room in _texts(self.rooms)]
        allowed = [f"{root}.{name}" for name in _texts(self.allowed)]
        findings: list[str] = []
        for module in sorted(graph.modules):
            own = [room for room in rooms if is_within(module, [room])]
            if not own:
                continue
            for imported in sorted(graph.find_modules_directly_imported_by(module)):
                if not self._is_allowed(imported, root=root, allowed=[*own, *allowed]):
                    details = graph.get_import_details(importer=module, imported=imported)
                    lines = ", ".join(str(detail["line_number"]) for detail in details)
                    findings.append(f"{module} imports {imported} (line {lines})")
        return ContractCheck(kept=not findings, metadata={"findings": findings})

    def _is_allowed(self, imported: str, *, root: str, allowed: list[str]) -> bool:
        if is_within(imported, [root]):
            return is_within(imported, allowed) or (imported == root and f"{root}.." in allowed)
        package = imported.partition(".")[0]
        is_usual = package in sys.stdlib_module_names or package in _texts(self.other_packages)
        return is_usual or not self.standard_library_only

    def render_broken_contract(self, check: ContractCheck) -> None:
        """Print the findings, and what the rooms may import."""
        for finding in check.metadata["findings"]:
            output.print_error(f"  {finding}", bold=False)
        only = " and the standard library only" if self.standard_library_only else ""
        output.print_error(f"  allowed: {', '.join(_texts(self.allowed))}{only}", bold=False)


def _texts(value: Any) -> list[str]:
    """A field's value: import-linter's descriptors hide its type."""
    return [str(item) for item in value]
