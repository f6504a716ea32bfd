"""sbatch options that a job or site file may add: which are well formed, and which are ours alone.

Apart because both files may add options, and an option slipped in there must not undo what recovery relies on: output
files, signal, requeue, the number of ranks. Pure.
"""

from __future__ import annotations

import re

from hpc_train.errors import HpcTrainError
from hpc_train.quantities import shown

__all__ = ["OWNED_OPTIONS", "check_directive", "check_directive_text"]

# Options we write ourselves, or that break submission, and what to use instead ("" : nothing, they are ours alone).
OWNED_OPTIONS: dict[str, str] = {
    "account": "[job].account",
    "array": "",
    "chdir": "[program].workdir",
    "clusters": "",
    "comment": "",  # the token by which a submission is found again
    "constraint": "[job].constraint",
    "cpus-per-task": "[job].cpus_per_rank",
    "dependency": "",
    "error": "",
    "exclude": "[job].exclude",
    "export": "[env].pass and [env].set",
    "export-file": "[env].pass and [env].set",
    "gpus-per-node": "[job].gpus_per_rank",
    "help": "",
    "input": "",
    "job-name": "[job].name",
    "licenses": "[job].licenses",
    "mem": "[job].memory",
    "no-requeue": "[recovery].requeue",
    "nodes": "[job].nodes",
    "ntasks": "[job].ranks_per_node",
    "ntasks-per-core": "[job].ranks_per_node",
    "ntasks-per-gpu": "[job].ranks_per_node",
    "ntasks-per-node": "[job].ranks_per_node",
    "ntasks-per-socket": "[job].ranks_per_node",
    "open-mode": "",
    "output": "",
    "parsable": "",
    "partition": "[job].queue",
    "qos": "[job].qos",
    "requeue": "[recovery].requeue",
    "reservation": "[job].reservation",
    "signal": "[recovery].stop_lead",
    "test-only": "",
    "time": "[job].walltime",
    "time-min": "[job].walltime",
    "usage": "",
    "version": "",
    "wait": "",
    "wrap": "[program].command",
}

# Complete options that are the beginning of one of ours: sbatch (getopt_long) takes them for themselves, every other
# beginning for an abbreviation.
_COMPLETE = {"gpus"}

_DIRECTIVE = re.compile(r"--([a-z0-9][a-z0-9-]*)(?:=(.*))?", re.ASCII)


def check_directive(text: str, where: str, error: type[HpcTrainError]) -> None:
    """Refuse anything but one long sbatch option, `--key` or `--key=value`, that is not ours.

    Abbreviations count as what sbatch takes them for: `--outp=x` is `--output=x`. Values are quoted by the renderer,
    so blanks and quotes are fine.
    Raises: `error`.
    """
    match = _DIRECTIVE.fullmatch(text)
    if match is None:
        raise error(f"{where} = {shown(text)}: write one long sbatch option, `--key` or `--key=value`")
    key = match[1]
    owned = key if key in OWNED_OPTIONS else _abbreviated(key)
    if owned is not None:
        instead = OWNED_OPTIONS[owned]
        remedy = f"use {instead}" if instead else "hpc-train sets it itself or cannot work with it"
        raise error(f"{where} = {shown(text)}: --{owned} is not allowed here; {remedy}")
    check_directive_text(text, where, error)


def check_directive_text(text: str, where: str, error: type[HpcTrainError]) -> None:
    """Refuse texts that sbatch misreads inside a directive however they are quoted.

    Any `#SBATCH` line that contains "hetjob" or "packjob" starts a new component of a heterogeneous job, even where the
    word is part of a path (esm-tools/esm_tools#933).
    """
    for word in ("hetjob", "packjob"):
        if word in text:
            raise error(f"{where} = {shown(text)}: sbatch takes the word {word!r} for a separator of jobs; rename it")


def _abbreviated(key: str) -> str | None:
    """The option of ours that sbatch would take a shortened key for, or None."""
    if key in _COMPLETE:
        return None
    return next((owned for owned in sorted(OWNED_OPTIONS) if owned.startswith(key)), None)
