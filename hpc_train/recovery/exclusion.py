"""What the next start's list of excluded hosts must be, asked of Slurm at the end of an attempt.

Apart from the choice, which is pure, and from the batch shell, which alone knows the moment in which Slurm takes a
list. Whatever else stands on the job's list (its user's `--exclude`, or what was added by hand) stays. Standard library
only.
"""

from __future__ import annotations

import os
import time
from collections.abc import Collection, Sequence
from pathlib import Path

from hpc_train.files import tell
from hpc_train.recovery.avoidance import Avoidance, Doubt, avoided_before, choose_avoided, find_doubts
from hpc_train.recovery.evidence import last_cleared_attempt
from hpc_train.recovery.predecessor import ask_slurm
from hpc_train.run.journal import Journal, read_journal
from hpc_train.run.layout import RunDir
from hpc_train.run.reserve import DECISION, with_reserve

__all__ = ["NO_CHANGE", "next_list"]

NO_CHANGE = "-"
# Each of these calls is one more before the job is asked to start again.
TIMEOUT_S = 5.0
# States of hosts that take no job before somebody acts (sinfo's %T); one that does not answer has a "*".
_UNUSABLE = ("down", "drain", "fail", "inval", "unk", "maint", "perfctrs")
_IMPOSSIBLE = "requested node configuration is not available"


def next_list(run: RunDir, attempt: int, *, submission: int, num_nodes: int) -> str:
    """What `scontrol update` must be told so that the job's list is right: "ExcNodeList=n1,n2"; "-" if nothing.

    Args:  attempt: that has just been decided.   num_nodes: that the job needs.
    Raises: OSError if the journal can neither be read nor written.
    """
    job_id = os.environ.get("SLURM_JOB_ID", "")
    events = read_journal(run, without=("step",))
    doubts = find_doubts(events, cleared=last_cleared_attempt(events), now=time.time())
    ours = avoided_before(events, submission)
    if not job_id.isdecimal() or not (doubts or ours):
        return NO_CHANGE
    listed, up = _listed(job_id), _hosts_up(os.environ.get("SLURM_JOB_PARTITION", ""))
    if listed is None or up is None:
        tell("hpc-train: the job's list of excluded hosts stays as it is: Slurm does not say what it holds")
        return NO_CHANGE
    of_user = listed - ours
    script = run.submission(submission).script
    chosen = _choose(doubts, of_user, up, num_nodes=num_nodes, script=script)
    for node in chosen.spared:
        tell(f"hpc-train: {node} is not avoided: the job needs {num_nodes} hosts, and too few others can take it")
    if set(chosen.nodes) != ours:
        nodes, spared = list(chosen.nodes), list(chosen.spared)
        journal = Journal(run, "decide", attempt)
        with_reserve(
            run, DECISION, lambda: journal.append("avoided", submission=submission, nodes=nodes, spared=spared)
        )
    wanted = of_user | set(chosen.nodes)
    return NO_CHANGE if wanted == listed else f"ExcNodeList={','.join(sorted(wanted))}"


def _choose(
    doubts: Sequence[Doubt], of_user: Collection[str], up: Collection[str], *, num_nodes: int, script: Path
) -> Avoidance:
    """As many as the queue's hosts allow, then fewer where Slurm says that this job could never start so.

    Which of the queue's hosts fit the job (features, GPUs, memory) only Slurm knows.
    """
    for known in (doubts, doubts[:1]):
        chosen = choose_avoided(known, of_user=of_user, up=up, num_nodes=num_nodes)
        if not chosen.nodes or _can_start({*of_user, *chosen.nodes}, script):
            dropped = {doubt.node for doubt in doubts[len(known) :]} - set(of_user)
            return Avoidance(chosen.nodes, tuple(sorted({*chosen.spared, *dropped})))
    return Avoidance((), tuple(sorted({doubt.node for doubt in doubts} - set(of_user))))


def _can_start(excluded: Collection[str], script: Path) -> bool:
    """Whether Slurm could ever start the job so; no answer says nothing against it."""
    argv = ("sbatch", "--test-only", f"--exclude={','.join(sorted(excluded))}", str(script))
    return _IMPOSSIBLE not in ask_slurm(*argv, timeout_s=TIMEOUT_S).said.lower()


def _listed(job_id: str) -> frozenset[str] | None:
    """The hosts that the job excludes now; None if Slurm does not say."""
    answer = ask_slurm("squeue", "--noheader", f"--jobs={job_id}", "--format=%x", timeout_s=TIMEOUT_S)
    hosts = "".join(answer.text.split())
    if not answer.is_good or not answer.text:  # a job that squeue lists has a line, if only an empty one
        return None
    if hosts in ("", "(null)"):
        return frozenset()
    expanded = ask_slurm("scontrol", "show", "hostnames", hosts, timeout_s=TIMEOUT_S)
    return frozenset(expanded.text.split()) if expanded.is_good else None


def _hosts_up(partition: str) -> frozenset[str] | None:
    """The queue's hosts that take jobs, busy ones too; None if Slurm does not say."""
    argv = ("sinfo", "--noheader", "--Node", f"--partition={partition}", "--format=%N %T")
    answer = ask_slurm(*argv, timeout_s=TIMEOUT_S)
    rows = [line.split() for line in answer.text.splitlines() if len(line.split()) == 2]
    if not answer.is_good or not rows:
        return None
    return frozenset(node for node, state in rows if not state.startswith(_UNUSABLE) and not state.endswith("*"))
