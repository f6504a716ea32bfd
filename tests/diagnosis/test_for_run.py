"""Advice for plain jobs, as it is given for runs: with hpc-train's commands, and on one machine without Slurm's."""

from __future__ import annotations

import re

import pytest

from hpc_train.diagnosis.engine import fill_in
from hpc_train.diagnosis.for_run import advise_run, name_run
from hpc_train.diagnosis.patterns import Pattern, load_patterns
from hpc_train.diagnosis.reasons import load_reasons

OF_JOBS = re.compile(r"\bsbatch\b|\bscancel\b|\bsubmit (?:it )?again|scontrol release")
OF_SLURM = re.compile(r"\b(?:s(?:run|batch|acct|acctmgr|control|cancel|queue|info|share)|Slurm|SLURM_\w+)\b")


@pytest.mark.parametrize(
    ("text", "on_slurm", "on_local"),
    [
        ("repair it, then submit again", "repair it, then: hpc-train requeue r", None),
        ("wait (srun -w n7 ls P), then run again; tell the site", "wait (srun -w n7 ls P), then: hpc-train requeue r; "
         "tell the site", "wait (ls P), then: hpc-train requeue r"),
        ("run again with X=1", "run again with X=1", None),
        ("submit again; if it stays, tell the site", "hpc-train requeue r; if it stays, tell the site", None),
        ("submit again: sbatch --exclude=n7 SCRIPT; x", "hpc-train resume r --exclude n7; x", "x"),
        ("see: sinfo; then scancel 7 and submit again",
         "see: sinfo; then hpc-train cancel r, then: hpc-train resume r OPTIONS",
         "then hpc-train cancel r, then: hpc-train resume r OPTIONS"),
        ("D= (starts it), or scancel 7", "D= (starts it), or hpc-train cancel r", None),
        ("look (sacct -j 7), then: scontrol release 7", "look (sacct -j 7), then: hpc-train requeue r",
         "read what it printed: hpc-train logs r"),
        ("more: sbatch --mem=48M SCRIPT", "more: hpc-train resume r --memory 48M", None),
        ("ask for more (sbatch --mem=…), or load less", "ask for more (hpc-train resume r --memory SIZE), "
         "or load less", "load less"),
        ("srun -N1 -w n7 ls -ld /x y; srun --jobid=7 df -h; srun bash -c 'ulimit'",
         "srun -N1 -w n7 ls -ld /x y; srun --jobid=7 df -h; srun bash -c 'ulimit'",
         "ls -ld /x y; df -h; bash -c 'ulimit'"),
        ("hpc-train checkpoint inspect RUN shows it", "hpc-train checkpoint inspect r shows it", None),
    ],
)  # fmt: skip
def test_what_a_run_is_told(text: str, on_slurm: str, on_local: str | None) -> None:
    assert advise_run(text, "r") == on_slurm
    assert advise_run(text, "r", is_local=True) == (on_slurm if on_local is None else on_local)


@pytest.mark.parametrize("pattern", load_patterns(), ids=lambda each: each.id)
def test_no_advice_for_a_run_is_that_for_a_plain_job(pattern: Pattern) -> None:
    text = fill_in(pattern.run or pattern.next, None, run="r", job="7", host="n7")
    assert not OF_JOBS.search(advise_run(text, "r"))
    alone = advise_run(text, "r", is_local=True)
    assert alone and not OF_SLURM.search(alone) and not OF_JOBS.search(alone), alone


def test_no_reason_of_slurm_tells_a_run_to_submit_again() -> None:
    for reason in load_reasons():
        text = advise_run(fill_in(reason.next, None, job="7"), "r")
        assert not OF_JOBS.search(text), text


def test_only_the_run_of_a_command_is_named() -> None:
    text = "hpc-train resume RUN --memory SIZE; RUN; hpc-train data verify RUN; hpc-train checkpoint list RUNS"
    named = "hpc-train resume a\\1 --memory SIZE; RUN; hpc-train data verify RUN; hpc-train checkpoint list RUNS"
    assert name_run(text, "a\\1") == named
