"""The `#SBATCH` lines of a job. Pure.

Apart from the script's body because quoting differs: these lines are read by sbatch's own parser, never by a shell. It
knows quotes and backslashes, but a backslash before a blank does not hold it, and an unquoted blank or '#' cuts the
value short.
"""

from __future__ import annotations

import re

from hpc_train.errors import SpecError
from hpc_train.files import refuse_control_characters
from hpc_train.job.spec import JobSpec
from hpc_train.quantities import format_walltime
from hpc_train.run.layout import RunDir, SubmissionDir
from hpc_train.site.directives import check_directive_text
from hpc_train.site.spec import Site
from hpc_train.topology.hostlist import fold
from hpc_train.topology.placement import Placement

__all__ = ["directive", "make_directives", "output_pattern", "run_token", "submission_token", "successor_token"]

_PLAIN = re.compile(r"[A-Za-z0-9_./:@=,+%&|*()\[\]-]+")


def run_token(run: RunDir) -> str:
    """What the comments of all jobs of a run begin with: "hpc-train:RUN/"."""
    return f"hpc-train:{run.name}/"


def submission_token(run: RunDir, submission: SubmissionDir) -> str:
    """The text in a job's comment by which a submission is found again: "hpc-train:RUN/00"."""
    return f"{run_token(run)}{submission.number:02d}"


def successor_token(run: RunDir, submission: SubmissionDir, attempt: int) -> str:
    """The comment of the job that goes on after an attempt of the submission: "hpc-train:RUN/00+003"."""
    return f"{submission_token(run, submission)}+{attempt:03d}"


def directive(key: str, value: str | int | None = None) -> str:
    """One sbatch option as its parser reads it back byte for byte.

    Raises: SpecError for control characters, and for the words that sbatch takes for a separator of jobs.
    Source: tests/slurm/test_sbatch_reads_our_directives.py, against sbatch itself.
    """
    if value is None:
        return f"--{key}"
    text = refuse_control_characters(str(value), f"sbatch option --{key}")
    check_directive_text(text, f"sbatch option --{key}", SpecError)
    if _PLAIN.fullmatch(text):
        return f"--{key}={text}"
    # Within double quotes only these two are special; outside, a backslash does not even hold a blank.
    quoted = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'--{key}="{quoted}"'


def output_pattern(path: str) -> str:
    """A file name for --output that Slurm does not expand: every '%' doubled.

    Raises: SpecError for a backslash, which switches Slurm's expansion rules for the whole name.
    """
    if "\\" in path:
        raise SpecError(f"run directory {path!r}: Slurm cannot write logs below a path with a backslash; use another")
    return path.replace("%", "%%")


def make_directives(job: JobSpec, site: Site, placement: Placement, *, token: str, log: str) -> list[str]:
    """All options of a job in a fixed order: what, where, how much, how long, how it ends, the site's, the job's own.

    Args:  token: goes into the comment, so that a submission is found again.   log: the batch shell's output file.
    """
    lines = [
        directive("job-name", job.name),
        directive("comment", token),
        directive("output", output_pattern(log)),
        directive("open-mode", "append"),
    ]
    asked = {
        "account": job.job.account,
        "partition": placement.queue,
        "qos": job.job.qos,
        "constraint": job.job.constraint,
        "reservation": job.job.reservation,
        "licenses": job.job.licenses,
        "exclude": fold(placement.exclude) if placement.exclude else None,
    }
    lines += [directive(key, value) for key, value in asked.items() if value is not None]
    lines += [
        directive("nodes", placement.num_nodes),
        directive("ntasks-per-node", placement.ranks_per_node),
        directive("cpus-per-task", placement.cpus_per_rank),
        *_gpu_directives(site, placement),
    ]
    if placement.memory_bytes is not None and site.resources.memory_mode == "node":
        # in KiB, rounded up: Slurm takes whole numbers only
        lines.append(directive("mem", f"{-(-placement.memory_bytes // 1024)}K" if placement.memory_bytes else "0"))
    if placement.walltime_asked:
        lines.append(directive("time", format_walltime(placement.walltime_s)))
    if placement.walltime_s is not None and placement.stop_lead_s:
        # B: the batch shell alone; a step that starts or imports would die of it. USR2, not USR1: NCCL may use USR1.
        lines.append(directive("signal", f"B:USR2@{placement.stop_lead_s}"))
    lines.append(directive("requeue" if placement.may_requeue else "no-requeue"))
    return lines + [_own(text) for text in (*site.always_directives, *job.job.extra_directives)]


def _gpu_directives(site: Site, placement: Placement) -> list[str]:
    count, request = placement.gpus_per_node, site.resources.gpu_request
    if not count or request == "none":
        return []
    if request == "gpus_per_node":
        return [directive("gpus-per-node", count)]
    kind = f"gpu:{site.resources.gpu_type}:" if request == "gres_typed" else "gpu:"
    return [directive("gres", f"{kind}{count}")]


def _own(text: str) -> str:
    key, has_value, value = text.removeprefix("--").partition("=")
    return directive(key, value if has_value else None)
