"""What is known of texts in logs: one record a pattern, read from the TOML files in patterns/.

Apart from the engine so that a new message is an entry with an example, and no code. Standard library only.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.resources import files
from typing import Any

from hpc_train.errors import InternalError

__all__ = ["ACTORS", "CLASSES", "TIERS", "LineMatch", "Pattern", "load_patterns"]

# How well a text explains an end, best first: a cause says why; an exception nobody knows more of; a hint that is often
# but not always the cause; a follower is what other ranks say of the first one's end; a summary is a launcher's word.
TIERS = ("cause", "exception", "hint", "follower", "summary")
ACTORS = ("you", "site", "wait")
# The classes of `why`; docs/commands.md says what follows from each in a run.
CLASSES = (
    "out_of_memory", "no_space", "io", "data", "config", "launch", "permission", "program", "crash", "killed", "hang",
    "peer_lost", "infrastructure", "node_fail", "timeout", "preempted", "cancelled",
)  # fmt: skip
_KEYS = {"id", "class", "tier", "lines", "meaning", "who", "next", "examples"}
_MORE_KEYS = {"least", "others", "run"}


@dataclass(frozen=True)
class LineMatch:
    """One text to look for.

    Attributes:  needle: lower-case bytes that every such line holds: found fast in a large log.   regex: what the line
    must fit then; its groups `rank`, `host` and others are the finding's values.
    """

    needle: bytes
    regex: re.Pattern[str]


@dataclass(frozen=True)
class Pattern:
    """One thing that logs say.

    Attributes:  failure: one of CLASSES.   tier: one of TIERS.   lines: any of them.   meaning: one sentence for a
    person.   who: one of ACTORS.   next: what to do, mostly a command; {job}, {host} and the groups of `lines` are
    filled in.   run: the same where the job is a run of hpc-train, with {run}; "" where `next` says it, in the words of
    `for_run`.   least: so many lines must fit.   examples: excerpts of logs in which this is the first diagnosis.
    others: excerpts in which it is not found at all.
    """

    id: str
    failure: str
    tier: str
    lines: tuple[LineMatch, ...]
    meaning: str
    who: str
    next: str
    run: str = ""
    least: int = 1
    examples: tuple[str, ...] = field(default=(), repr=False)
    others: tuple[str, ...] = field(default=(), repr=False)


@lru_cache(maxsize=1)
def load_patterns() -> tuple[Pattern, ...]:
    """All patterns that ship, in the order of their files' names. Raises: InternalError for an entry that is wrong."""
    folder = files("hpc_train.diagnosis").joinpath("patterns")
    found: list[Pattern] = []
    for file in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if file.name.endswith(".toml"):
            entries = tomllib.loads(file.read_text(encoding="utf-8")).get("pattern", [])
            found += [_parse(entry, file.name) for entry in entries]
    doubled = sorted({one.id for one in found if sum(each.id == one.id for each in found) > 1})
    if doubled:
        raise InternalError(f"patterns/: two entries have the id {', '.join(doubled)}")
    return tuple(found)


def _parse(entry: dict[str, Any], where: str) -> Pattern:
    name = f"patterns/{where}: {entry.get('id', '?')}"
    if entry.keys() - _KEYS - _MORE_KEYS or _KEYS - entry.keys():
        raise InternalError(
            f"{name}: has the keys {sorted(entry)}; needed: {sorted(_KEYS)}; allowed: {sorted(_MORE_KEYS)}"
        )
    for key, allowed in (("class", CLASSES), ("tier", TIERS), ("who", ACTORS)):
        if entry[key] not in allowed:
            raise InternalError(f"{name}: {key} = {entry[key]!r}; allowed: {', '.join(allowed)}")
    return Pattern(
        id=entry["id"],
        failure=entry["class"],
        tier=entry["tier"],
        lines=tuple(_line_match(line, name) for line in entry["lines"]),
        meaning=entry["meaning"],
        who=entry["who"],
        next=entry["next"],
        run=entry.get("run", ""),
        least=entry.get("least", 1),
        examples=tuple(entry["examples"]),
        others=tuple(entry.get("others", ())),
    )


def _line_match(line: str | dict[str, str], name: str) -> LineMatch:
    """A text alone is both the needle and all that the line must hold."""
    has, regex = (line, re.escape(line)) if isinstance(line, str) else (line["has"], line["re"])
    if not has.isascii():
        raise InternalError(f"{name}: {has!r} is not ASCII: it is looked for in bytes")
    return LineMatch(has.lower().encode(), re.compile(regex, re.IGNORECASE))
