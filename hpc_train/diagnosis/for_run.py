"""Advice for a run: what its person types, where the advice for a plain job names sbatch or submitting again. Pure.

Apart from the entries, which are written for any job, so that one rule holds everywhere: a repaired run goes on by
`hpc-train requeue RUN`, one that needs another request by `hpc-train resume RUN`; only a plain job is submitted again.
Standard library only.
"""

from __future__ import annotations

import re

__all__ = ["advise_run", "name_run"]

_OF_RUN = re.compile(r"\b(hpc-train (?:checkpoint )?[a-z]+ )RUN\b")
_SBATCH = re.compile(
    r"(?:submit again: )?sbatch --(mem|time|exclude|gpus-per-node)=([^\s;,)]+)(?: SCRIPT|, or --gres=gpu:N[^);]*)?"
)
_FLAGS = {
    "mem": ("--memory", "SIZE"),
    "time": ("--walltime", "TIME"),
    "exclude": ("--exclude", "NODES"),
    "gpus-per-node": ("--gpus-per-rank", "N"),
}
_RULES = (
    (re.compile(r"scancel \S+ and submit again"), "hpc-train cancel {run}, then: hpc-train resume {run} OPTIONS"),
    (re.compile(r"scancel [^\s;,)]+"), "hpc-train cancel {run}"),
    (re.compile(r"scontrol release [^\s;,)]+"), "hpc-train requeue {run}"),
    (re.compile(r"\bthen (?:submit (?:it )?again|run again(?! with))"), "then: hpc-train requeue {run}"),
    (re.compile(r"\bsubmit (?:it )?again\b"), "hpc-train requeue {run}"),
    (re.compile(r"where sbatch was typed"), "where hpc-train submit was typed"),
)
# On this machine alone: a program is called without srun, there is no limit of memory, and nobody else to tell.
_SRUN = re.compile(r"\bsrun(?: -{1,2}[\w-]+(?:=\S+| \w[\w.-]*(?= \S))?)* (?=[\w./])")
_MORE_MEMORY = re.compile(
    r"ask for more(?: memory)?:? \(?hpc-train resume \S+ --memory [^\s,;)]+\)?(?: \([^)]*\))?(?:, or )?"
)
_NOT_HERE = re.compile(
    r"\b(?:srun|sbatch|sacct(?:mgr)?|scontrol|scancel|squeue|sinfo|sshare|slurm\w*|ReqMem)\b| --exclude "
    r"|^(?:else )?(?:tell|ask) the site",
    re.IGNORECASE,
)


def advise_run(text: str, run: str, *, is_local: bool = False) -> str:
    """What to do, as it is said of the run with this name.

    Args:  is_local: it runs on this machine alone: what only Slurm or a site's staff could do is left out.
    """

    def ours(match: re.Match[str]) -> str:
        flag, place = _FLAGS[match[1]]
        return f"hpc-train resume {run} {flag} {place if match[2] == '…' else match[2]}"

    text = _SBATCH.sub(ours, name_run(text, run))
    for found, instead in _RULES:
        text = found.sub(instead.format(run=run).replace("\\", r"\\"), text)
    if not is_local:
        return text
    text = _MORE_MEMORY.sub("", _SRUN.sub("", text))
    clauses = [clause for clause in text.split("; ") if clause and not _NOT_HERE.search(clause)]
    return "; ".join(clauses) or f"read what it printed: hpc-train logs {run}"


def name_run(text: str, run: str) -> str:
    """A text with the run's name in the commands that it tells to type for RUN: who wrote it did not know the run."""
    return _OF_RUN.sub(lambda match: f"{match[1]}{run}", text)
