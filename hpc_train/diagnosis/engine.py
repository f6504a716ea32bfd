"""From logs to what happened: the pattern that explains the end best, with the very line that says so.

Apart from the reading of logs and from what Slurm says. A cause comes before what other ranks say of it: an exception
of one rank before the NCCL time-out of another, however early that was printed. Standard library only.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from hpc_train.diagnosis.logs import MAX_SHOWN, Line, Log, last_start
from hpc_train.diagnosis.patterns import TIERS, Pattern, load_patterns
from hpc_train.diagnosis.tracebacks import Traceback, find_tracebacks

__all__ = ["EXCEPTION", "Finding", "diagnose", "fill_in"]

EXCEPTION = "python-exception"  # the pattern of an exception that no other pattern knows
MISSING_FILE = "file-missing"
MAX_CANDIDATES = 500  # lines of one needle in one stretch of a log that are looked at

_PATHS = ("dataset", "checkpoints", "path")  # groups that hold a whole path, and nothing else
_PLACE = re.compile(r"\{(\w{1,20})\}")
_OPTIONAL = re.compile(r"\[\[((?:(?!\[\[|\]\]).)*)\]\]")  # an innermost one
# Other tools' ways to say of which rank or host a line is.
_RANK = re.compile(r"\brank[ :=]?\s?(\d{1,7})\b", re.IGNORECASE)
_HOST = re.compile(r"^(?:srun: error: (?P<srun>[\w.-]{1,200}): tasks?|slurmstepd-(?P<stepd>[\w.-]{1,200}): |"
                   r"\[(?P<mpi>[\w.-]{1,200}):\d{1,9}\])")  # fmt: skip


@dataclass(frozen=True)
class Finding:
    """A pattern found in a log.

    Attributes:  place: FILE:LINE.   text: the line, cleaned and cut.   rank, host: of the line, None and "" if it does
    not tell.   values: groups of the pattern, to be filled in.   count: lines that fit in all logs.   lines_left: lines
    that follow in that log.
    """

    pattern: Pattern
    place: str
    text: str
    rank: int | None
    host: str
    values: dict[str, str] = field(default_factory=dict)
    count: int = 1
    lines_left: int = 0


class _Hit(NamedTuple):
    """A line that fits. `order`: log, part, place in it, and how much of the line was asked for."""

    pattern: Pattern
    line: Line
    at: int
    groups: dict[str, str | None]
    order: tuple[int, int, int, int]


def diagnose(logs: Sequence[Log], patterns: Sequence[Pattern] | None = None) -> list[Finding]:
    """What the logs say, best explanation first; each pattern once, with its first line.

    Args:  patterns: default: those that ship.
    Cost: bounded: a few seconds of CPU a log for the worst text, less than one for a usual one.
    """
    known = load_patterns() if patterns is None else patterns
    firsts: dict[str, _Hit] = {}
    lines: dict[str, set[tuple[int, int, int]]] = {}
    logs = [last_start(log) for log in logs]
    for number, log in enumerate(logs):
        tracebacks = find_tracebacks(log)
        found = _without_missing_files_of_ours(_scan(log, number, known), tracebacks)
        for hit in [*found, *_exceptions(log, number, found, known, tracebacks)]:
            name = hit.pattern.id
            firsts[name] = min(firsts.get(name, hit), hit, key=lambda each: each.order)
            lines.setdefault(name, set()).add(hit.order[:3])
    enough = [hit for hit in firsts.values() if len(lines[hit.pattern.id]) >= hit.pattern.least]
    hits = _without_doubles(sorted(enough, key=lambda hit: (TIERS.index(hit.pattern.tier), hit.order)))
    return [_finding(logs[hit.order[0]], hit, len(lines[hit.pattern.id])) for hit in hits]


def fill_in(text: str, finding: Finding | None, **values: str) -> str:
    """A pattern's words with {job}, {host}, {rank}, {file}, {line} and its own values.

    What is not known stays a word of its own, in capitals; a part in [[ ]] that needs it is left out.
    """
    known = {} if finding is None else dict(finding.values)
    known.update({name: value for name, value in values.items() if value})

    def part(match: re.Match[str]) -> str:
        return match[1] if all(known.get(name) for name in _PLACE.findall(match[1])) else ""

    while _OPTIONAL.search(text):
        text = _OPTIONAL.sub(part, text)
    return _PLACE.sub(lambda match: known.get(match[1]) or match[1].upper(), text)


def _without_doubles(hits: list[_Hit]) -> list[_Hit]:
    """One line is one event: only the best pattern of each line stays."""
    return list({hit.order[:3]: hit for hit in reversed(hits)}.values())[::-1]


def _without_missing_files_of_ours(hits: Iterable[_Hit], tracebacks: Sequence[Traceback]) -> list[_Hit]:
    """An error of ours tells more than the FileNotFoundError that it was raised from: of what the file is a part."""
    hits = list(hits)
    told = {hit.order[1:3] for hit in hits}
    dropped = {
        (traceback.part, line.start)
        for traceback in tracebacks
        if "hpc_train." in traceback.told.text and (traceback.part, traceback.told.start) in told
        for line in traceback.raised[:-1]
    }
    return [hit for hit in hits if hit.pattern.id != MISSING_FILE or hit.order[1:3] not in dropped]


def _scan(log: Log, number: int, patterns: Sequence[Pattern]) -> Iterator[_Hit]:
    for part, piece in enumerate(log.parts):
        for pattern in patterns:
            for match in pattern.lines:
                at, looked_at = piece.lower.find(match.needle), 0
                while at >= 0 and looked_at < MAX_CANDIDATES:
                    line = log.line_at(part, at)
                    looked_at += 1
                    if fits := match.regex.search(line.text):
                        # of several patterns for one line, the one that asks for more of it is the more telling
                        order = (number, part, line.start, -len(fits[0]))
                        yield _Hit(pattern, line, at, fits.groupdict(), order)
                    at = piece.lower.find(match.needle, max(line.end, at + 1))


def _finding(log: Log, hit: _Hit, count: int) -> Finding:
    line, part = hit.line, hit.order[1]
    values = {name: _value(name, value) for name, value in hit.groups.items() if value}
    told = values.get("rank") or (match[1] if (match := _RANK.search(line.text)) else "")
    host = values.get("host") or next(filter(None, _host_groups(line.text)), "") or log.host
    rank = line.rank if line.rank is not None else int(told) if told.isdecimal() else None
    if host:
        values["host"] = host
    if rank is not None:
        values["rank"] = str(rank)
    number = log.number(part, hit.at)
    values.update(file=_printable(shlex.quote(log.path or log.name)), line="G" if number is None else str(number))
    place, left = log.place(part, hit.at), log.lines_left(part, hit.at)
    return Finding(hit.pattern, place, _printable(line.text.strip()[:MAX_SHOWN]), rank, host, values, count, left)


def _value(name: str, text: str) -> str:
    """A group's text as it may stand in a command."""
    return _printable(shlex.quote(text) if name in _PATHS else text)


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else "?" for letter in text)


def _host_groups(text: str) -> tuple[str | None, ...]:
    match = _HOST.match(text)
    return match.groups() if match else ()


def _exceptions(
    log: Log, number: int, found: Sequence[_Hit], patterns: Sequence[Pattern], tracebacks: Sequence[Traceback]
) -> Iterator[_Hit]:
    """Exceptions that no pattern knows: those whose lines are known are told by that pattern already."""
    pattern = next((each for each in patterns if each.id == EXCEPTION), None)
    if pattern is None:
        return
    told = {hit.order[1:3] for hit in found if hit.pattern.tier in ("cause", "hint", "follower")}
    for traceback in tracebacks:
        if not _is_told(log, traceback, told):
            line = traceback.told
            yield _Hit(pattern, line, line.start, {}, (number, traceback.part, line.start, 0))


def _is_told(log: Log, traceback: Traceback, told: set[tuple[int, int]]) -> bool:
    for line in traceback.raised:
        if (traceback.part, line.start) in told:
            return True
        after = log.line_after(traceback.part, line)  # "RuntimeError: NCCL error in …" tells the kind on its next line
        if after and after.rank == line.rank and after.text and not after.text[0].isspace():
            is_more = line.text.rstrip().endswith((":", ",", "…")) or "NCCL" in line.text or "CUDA" in line.text
            if is_more and (traceback.part, after.start) in told:
                return True
    return False
