"""Why Slurm lets a job wait, in plain words: who must act, and what to type.

Apart because Slurm has some 150 words for it, and the table is data (reasons.toml). Standard library only.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

__all__ = [
    "Reason",
    "explain_reason",
    "is_failed_launch",
    "is_held_by_site",
    "is_of_waiting",
    "load_reasons",
    "why_not_started",
]


@dataclass(frozen=True)
class Reason:
    """One reason, or a family of them.

    Attributes:  names: whole words.   starts: beginnings of words.   meaning: after "it waits:".   who: you, site or
    wait.   next: a command, {job} to be filled in.   never: as it is, the job never starts.
    """

    meaning: str
    who: str
    next: str
    names: tuple[str, ...] = ()
    starts: tuple[str, ...] = ()
    never: bool = False


@lru_cache(maxsize=1)
def load_reasons() -> tuple[Reason, ...]:
    """The whole table."""
    text = files("hpc_train.diagnosis").joinpath("reasons.toml").read_text(encoding="utf-8")
    return tuple(
        Reason(
            meaning=entry["meaning"],
            who=entry["who"],
            next=entry["next"],
            names=tuple(entry.get("names", ())),
            starts=tuple(entry.get("starts", ())),
            never=entry.get("never", False),
        )
        for entry in tomllib.loads(text)["reason"]
    )


def explain_reason(said: str) -> Reason | None:
    """What squeue's reason means; None for one that is not known here.

    Args:  said: as squeue or sacct print it: "Priority", "ReqNodeNotAvail, UnavailableNodes:n[1-2]".
    """
    text = said.strip().lower()
    word = text.partition(",")[0].partition(":")[0].strip()
    if not word:
        return None
    best, found = 0, None
    for reason in load_reasons():
        lengths = [len(name) + 1 for name in reason.names if name.lower() == word]
        lengths += [len(start) for start in reason.starts if text.startswith(start.lower())]
        if lengths and max(lengths) > best:
            best, found = max(lengths), reason
    return found


def why_not_started(said: str) -> Reason | None:
    """The reason why a job never started that has ended now; None where it only says why it still waited.

    Whoever cancels a held job wants its end, not its release.
    """
    reason = explain_reason(said)
    is_hold = any(word in said.lower() for word in ("held", "hold"))
    return reason if reason is not None and not is_hold and (reason.never or reason.who == "site") else None


def is_of_waiting(said: str) -> bool:
    """Whether a reason only says why a job waited: Slurm keeps it for a job that was cancelled then."""
    reason = explain_reason(said)
    return reason is not None and reason.who == "wait" and not reason.never


def is_failed_launch(said: str) -> bool:
    """Whether a job is held because a node could not start it; its user may release it."""
    return said.strip().lower().replace("_", " ").startswith("launch failed")


def is_held_by_site(said: str) -> bool:
    """Whether a held job's reason is one that only the site can lift."""
    reason = explain_reason(said)
    return reason is not None and reason.who == "site" and not is_failed_launch(said)
