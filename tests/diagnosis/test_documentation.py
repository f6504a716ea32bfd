"""docs/diagnosis.md lists exactly what is known; WRITE_GOLDEN=1 writes its tables anew."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from hpc_train.diagnosis.patterns import TIERS, load_patterns
from hpc_train.diagnosis.reasons import load_reasons
from hpc_train.diagnosis.refusals import load_refusals

PAGE = Path(__file__).parents[2] / "docs" / "diagnosis.md"
COMMANDS = PAGE.with_name("commands.md")


def cell(text: str) -> str:
    """Text inside of a Markdown table."""
    return text.replace("|", "\\|")


def patterns_table() -> list[str]:
    """All patterns, by tier and name."""
    rows = sorted(load_patterns(), key=lambda each: (TIERS.index(each.tier), each.id))
    lines = [f"| `{each.id}` | {each.tier} | {each.failure} | {each.who} | {cell(each.meaning)} |" for each in rows]
    return ["| id | tier | class | who | meaning |", "|---|---|---|---|---|", *lines]


def reasons_table() -> list[str]:
    """All reasons, in the order of the data."""
    lines = []
    for each in load_reasons():
        words = ", ".join([f"`{name}`" for name in each.names] + [f"`{start}…`" for start in each.starts])
        lines.append(f"| {words} | {each.who} | {'**' * each.never}{cell(each.meaning)}{'**' * each.never} |")
    return ["| reason | who | meaning |", "|---|---|---|", *lines]


def refusals_table() -> list[str]:
    """All refusals, in the order of the data."""
    lines = [f"| {cell(each.say)} | {', '.join(f'`{key}`' for key in each.keys)} |" for each in load_refusals()]
    return ["| what `submit` says | keys to change |", "|---|---|", *lines]


TABLES = {"patterns": patterns_table, "reasons": reasons_table, "refusals": refusals_table}


@pytest.mark.parametrize("name", TABLES)
def test_the_page_lists_what_is_known(name: str) -> None:
    text = PAGE.read_text(encoding="utf-8")
    match = re.search(rf"(<!-- {name}: [^\n]*-->\n)(.*?)(<!-- end of {name} -->)", text, re.DOTALL)
    assert match is not None
    expected = "\n".join(TABLES[name]()) + "\n"
    if os.environ.get("WRITE_GOLDEN") == "1":
        PAGE.write_text(text[: match.start(2)] + expected + text[match.end(2) :], encoding="utf-8")
        return
    assert match[2] == expected


def test_every_class_that_can_be_told_is_in_the_list_of_classes() -> None:
    text = COMMANDS.read_text(encoding="utf-8")
    missing = [each.failure for each in load_patterns() if not re.search(rf"^\| [^|]*\b{each.failure}\b", text, re.M)]
    assert missing == []
