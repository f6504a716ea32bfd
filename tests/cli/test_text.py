"""Texts of others, made fit for one line."""

from __future__ import annotations

import pytest

from hpc_train.cli.text import MAX_REASON, shortened

STACK = (
    "Exception raised from recvBytes at ../torch/csrc/distributed/c10d/Utils.hpp:670 (most recent call first): "
    + "".join(
        f"frame #{n}: c10::Error::Error(c10::SourceLocation, std::__cxx11::basic_string<char>) + 0x98 "
        f"(0x7f9d8b7b5fa8 in /opt/venv/lib/python3.11/site-packages/torch/lib/libc10.so) "
        for n in range(12)
    )
)
GLOO = "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.7]:31337"
NEXT = "goes on from the last checkpoint (1 of at most 3 failures in a row without a new checkpoint)"
PATHS = "; ".join(f"/scratch/u/runs/train-20260101/checkpoints/step-{n:09}/index.json: damaged" for n in range(9))


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("", ""),
        ("KeyError: 'x' (train.py:9); no new checkpoint", "KeyError: 'x' (train.py:9); no new checkpoint"),
        # a stack is what nobody reads: the whole rest fits without it
        (f"{GLOO} {STACK}(train.py:9); {NEXT}", f"{GLOO} (train.py:9); {NEXT}"),
        (f"{GLOO}\n{STACK[:400]}; {NEXT}", f"{GLOO}; {NEXT}"),  # cut short by whoever wrote it down
        ("x" * 900, "x" * (MAX_REASON - 2) + " …"),
    ],
)
def test_what_is_shown_of_a_text(text: str, shown: str) -> None:
    assert shortened(text) == shown


@pytest.mark.parametrize("text", [f"CheckpointError: /c: no checkpoint can be loaded, 9 tried: {PATHS}; {NEXT}"])
def test_a_long_text_keeps_its_beginning_and_what_follows(text: str) -> None:
    shown = shortened(text)
    assert len(shown) <= MAX_REASON
    assert shown.startswith("CheckpointError: /c: no checkpoint can be loaded, 9 tried: /scratch")
    assert shown.endswith(f" … {NEXT}")


@pytest.mark.parametrize("text", ["a b" * 4000, "; " * 5000, STACK * 9, "Exception raised from " * 900])
def test_no_text_is_longer_than_its_limit(text: str) -> None:
    for limit in (40, MAX_REASON):
        assert len(shortened(text, limit)) <= limit
