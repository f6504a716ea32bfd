"""Every pattern that ships finds what it is for, first, and nothing that only looks like it."""

from __future__ import annotations

import re
import time

import pytest

from hpc_train.diagnosis.engine import EXCEPTION, diagnose, fill_in
from hpc_train.diagnosis.logs import make_log
from hpc_train.diagnosis.patterns import Pattern, load_patterns

PATTERNS = load_patterns()
EXAMPLES = [(each, number) for each in PATTERNS for number in range(len(each.examples))]
OTHERS = [(each, text) for each in PATTERNS for text in each.others]


def found(text: str) -> list[str]:
    """Ids of what a log of this text says, best first."""
    return [finding.pattern.id for finding in diagnose([make_log(text.encode(), name="job.out")])]


@pytest.mark.parametrize(("pattern", "number"), EXAMPLES, ids=[f"{each.id}-{number}" for each, number in EXAMPLES])
def test_each_example_has_its_diagnosis_first(pattern: Pattern, number: int) -> None:
    assert found(pattern.examples[number])[:1] == [pattern.id]


@pytest.mark.parametrize(("pattern", "number"), EXAMPLES, ids=[f"{each.id}-{number}" for each, number in EXAMPLES])
def test_an_example_within_a_job_s_usual_output_keeps_its_diagnosis(pattern: Pattern, number: int) -> None:
    usual = "".join(f"step {step} loss 2.5 tokens/s 41000\n" for step in range(300))
    after = "" if pattern.id in ("node-failure", "preempted") else usual  # after these it would be the next start
    text = f"{usual}{pattern.examples[number].strip()}\n{after}srun: error: n9: task 9: Exited with exit code 1\n"
    assert found(text)[:1] == [pattern.id]


@pytest.mark.parametrize(("pattern", "text"), OTHERS, ids=[f"{each.id}: {text[:30]}" for each, text in OTHERS])
def test_what_only_looks_like_it_is_not_found(pattern: Pattern, text: str) -> None:
    assert pattern.id not in found(text)


def test_no_line_of_a_pattern_is_dead() -> None:
    # a needle that the lines of its own regex do not hold would never be looked at
    for pattern in PATTERNS:
        shown = [text for example in pattern.examples for text in example.lower().splitlines()]
        for line in pattern.lines:
            needle, literal = line.needle.decode(), re.sub(r"\\(.)", r"\1", line.regex.pattern).lower()
            is_shown = any(needle in text and line.regex.search(text) for text in shown)
            assert is_shown or needle in literal, f"{pattern.id}: {needle!r} is not in {line.regex.pattern!r}"
            assert (len(needle) >= 2 and needle == needle.strip()) or needle == "pmix error: ", pattern.id


def test_all_words_are_there_and_every_place_in_them_is_known() -> None:
    for pattern in PATTERNS:
        groups = {name for line in pattern.lines for name in line.regex.groupindex}
        for text in (pattern.meaning, pattern.next, pattern.run):
            places = set(re.findall(r"\{(\w+)\}", text))
            more = {"run"} if text == pattern.run else set()
            assert places <= groups | more | {"job", "host", "rank", "file", "line"}, f"{pattern.id}: {places}"
            assert len(text) <= 300 and "\n" not in text
        assert pattern.examples and (pattern.lines or pattern.id == EXCEPTION), pattern.id
        assert "{" not in fill_in(pattern.meaning + pattern.next, None)


HOSTILE = [
    "a" * 2000,
    " " * 2000,
    "1" * 2000,
    "1," * 1000,
    "[" * 2000,
    "a:" * 1000,
    "/a" * 1000,
    "a b" * 700,
    "'" * 2000,
]


def test_no_text_makes_a_pattern_slow() -> None:
    for pattern in PATTERNS:
        for line in pattern.lines:
            needle = line.needle.decode()
            for filler in HOSTILE:
                for text in (needle + filler, filler + needle, filler[:1000] + needle + filler[:1000], needle * 40):
                    began = time.process_time()
                    line.regex.search(text)
                    assert time.process_time() - began < 1, f"{pattern.id}: {line.regex.pattern} on {text[:50]!r}"
