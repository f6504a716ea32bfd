"""What sbatch says when it refuses a job, in terms of our keys and flags.

Apart because it is data (refusals.toml), and because Slurm speaks of its own options, which the user never wrote.
Standard library only.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files

__all__ = ["Refusal", "explain_refusal", "load_refusals", "place"]

# Keys of the job file that have a flag of `hpc-train submit`; tests/diagnosis/test_refusals.py compares them with it.
_FLAGS = {
    "job.queue": "--queue", "job.account": "--account", "job.qos": "--qos", "job.walltime": "--walltime",
    "job.nodes": "--nodes", "job.ranks_per_node": "--ranks-per-node", "job.gpus_per_rank": "--gpus-per-rank",
    "job.cpus_per_rank": "--cpus-per-rank", "job.memory": "--memory", "job.exclude": "--exclude", "job.name": "--name",
    "program.setup": "--setup",
}  # fmt: skip


@dataclass(frozen=True)
class Refusal:
    """One way in which sbatch refuses.

    Attributes:  says: found in its words.   keys: of the job file, to be changed.   say: the reason in our words.
    look: a command that shows what there is.
    """

    says: re.Pattern[str]
    keys: tuple[str, ...]
    say: str
    look: str


@lru_cache(maxsize=1)
def load_refusals() -> tuple[Refusal, ...]:
    """The whole table, special entries first."""
    text = files("hpc_train.diagnosis").joinpath("refusals.toml").read_text(encoding="utf-8")
    return tuple(
        Refusal(re.compile(entry["says"], re.IGNORECASE), tuple(entry["keys"]), entry["say"], entry["look"])
        for entry in tomllib.loads(text)["refusal"]
    )


def place(key: str, value: object = None) -> str:
    """How a person changes a key: "--queue or [job].queue (now 'gpu')"."""
    table, dot, name = key.rpartition(".")
    written = f"[{table}].{name}" if dot else key
    now = "" if value is None or value == () or value == [] else f" (now {value!r})"
    return (f"{_FLAGS[key]} or {written}" if key in _FLAGS else written) + now


def explain_refusal(said: str, asked: Mapping[str, object] | None = None) -> str | None:
    """What to change, in one sentence; None where these words are not known.

    Args:  said: what sbatch printed.   asked: values of the job's keys ("job.queue"), to be shown with them.
    """
    values = asked or {}
    for refusal in load_refusals():
        match = refusal.says.search(said)
        if match is not None:
            what = next((value for value in match.groupdict().values() if value), "it")
            keys = "; ".join(place(key, values.get(key)) for key in refusal.keys)
            change = f"; change {keys}" if keys else ""
            return f"{refusal.say.replace('{what}', repr(what))}{change} (see: {refusal.look})"
    return None
