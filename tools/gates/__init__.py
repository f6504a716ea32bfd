"""Checks of our own that `tools/check` runs beside ruff, mypy and import-linter."""
