"""Gate: what README and docs say exists: the files they link to, the commands and flags they show.

Apart from the docstring gate because it reads Markdown, and asks the command line itself which commands there are.
"""

from __future__ import annotations

import importlib
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from gates.checkout import Checkout, Finding

if TYPE_CHECKING:
    import click

__all__ = ["check", "check_commands", "check_links"]

_FENCE = re.compile(r"^\s*(```|~~~)")
_CODE_SPAN = re.compile(r"`[^`]*`")
_LINK = re.compile(r"\[[^\]]*\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
_HEADING = re.compile(r"^#{1,6}\s+(.*?)\s*#*\s*$")
_COMMAND = re.compile(r"(?:^|[$;&|(]\s*|\s)(?:hpc-train|python3? -m hpc_train)(\s[^#|;&)]*)")


def check(checkout: Checkout) -> Iterator[Finding]:
    """Findings in README.md, CHANGELOG.md and docs/."""
    yield from check_links(checkout)
    program = _program()
    if program is not None:
        yield from check_commands(checkout, program)


def check_links(checkout: Checkout) -> Iterator[Finding]:
    """Relative links whose file, or heading within it, does not exist."""
    for path in _documents(checkout):
        for number, line in _lines(path, fenced=False):
            for target in _LINK.findall(_CODE_SPAN.sub("", line)):
                if re.match(r"[a-z][a-z0-9+.-]*:", target):
                    continue
                name, _, anchor = target.partition("#")
                linked = (path.parent / name).resolve() if name else path
                if not linked.exists():
                    yield Finding(_relative(checkout, path), number, f"link to {target}, which does not exist")
                elif anchor and linked.suffix == ".md" and anchor not in _anchors(linked):
                    yield Finding(_relative(checkout, path), number, f"link to {target}: no such heading")


def check_commands(checkout: Checkout, program: click.Command) -> Iterator[Finding]:
    """Commands and flags shown in fenced blocks that `program` does not have."""
    for path in _documents(checkout):
        for number, line in _lines(path, fenced=True):
            for shown in _COMMAND.findall(line):
                problem = _problem(program, _words(shown))
                if problem:
                    yield Finding(_relative(checkout, path), number, f"hpc-train{shown.rstrip()}: {problem}")


def _program() -> click.Command | None:
    """The root command; None while there is no command line yet."""
    try:
        main = importlib.import_module("hpc_train.cli.main")
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.startswith("hpc_train"):
            return None
        raise
    import click

    groups = [value for value in vars(main).values() if isinstance(value, click.Group)]
    return groups[0] if groups else None


def _problem(program: click.Command, words: list[str]) -> str | None:
    import click

    command, context = program, click.Context(program, info_name="hpc-train")
    for word in words:
        if word == "--":
            break
        if word.startswith("--"):
            flags = {
                flag for parameter in command.get_params(context) for flag in parameter.opts + parameter.secondary_opts
            }
            if word.partition("=")[0] not in flags:
                return f"{context.command_path} has no flag {word.partition('=')[0]}"
        elif isinstance(command, click.Group) and re.fullmatch(r"[a-z][a-z-]*", word):
            found = command.get_command(context, word)
            if found is None:
                return (
                    f"{context.command_path} has no command {word}; it has {', '.join(command.list_commands(context))}"
                )
            command, context = found, click.Context(found, info_name=word, parent=context)
    return None


def _words(text: str) -> list[str]:
    try:
        return shlex.split(text)
    except ValueError:  # a quotation that goes on in the next line
        return text.split()


def _documents(checkout: Checkout) -> list[Path]:
    return [path for path in checkout.text_files if path.suffix == ".md"]


def _relative(checkout: Checkout, path: Path) -> str:
    return path.relative_to(checkout.root).as_posix()


def _lines(path: Path, *, fenced: bool) -> Iterator[tuple[int, str]]:
    is_inside = False
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if _FENCE.match(line):
            is_inside = not is_inside
        elif is_inside == fenced:
            yield number, line


def _anchors(path: Path) -> set[str]:
    """Anchors as GitHub makes them of headings: lower case, punctuation gone, blanks to hyphens, repeats numbered."""
    anchors: set[str] = set()
    for _, line in _lines(path, fenced=False):
        if match := _HEADING.match(line):
            plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", match.group(1)).lower()
            base = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
            repeat = 0
            while (anchor := f"{base}-{repeat}" if repeat else base) in anchors:
                repeat += 1
            anchors.add(anchor)
    return anchors
