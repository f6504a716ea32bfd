"""Renders a submission: the batch script, and the record that the launch shim reads. Pure: records in, text out.

Apart from submitting, so that `--dry-run` prints exactly what would run, and golden files hold it still.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from hpc_train import __version__
from hpc_train.job.spec import JobSpec
from hpc_train.run.layout import RunDir, SubmissionDir
from hpc_train.scheduler.directives import make_directives
from hpc_train.scheduler.slurm.commands import submission_token
from hpc_train.site.spec import Site
from hpc_train.topology.placement import Placement

if TYPE_CHECKING:
    from jinja2 import Template

__all__ = ["Plan", "launch_record", "render_script"]


@dataclass(frozen=True)
class Plan:
    """Everything that one submission is made of.

    Attributes:  python: interpreter that runs the shim and the ranks.   mpirun: path of mpirun where the site starts
    ranks with it, else "".   workdir: absolute directory in which the program runs.
    """

    job: JobSpec
    site: Site
    placement: Placement
    run: RunDir
    submission: SubmissionDir
    python: str
    mpirun: str
    workdir: str


def launch_record(plan: Plan) -> dict[str, Any]:
    """What the launch shim, the decision and the local supervisor need, as plain JSON values."""
    job, placement = plan.job, plan.placement
    return {
        "format": "hpc-train-launch",
        "version": 1,
        "command": list(job.program.command),
        "python": plan.python,
        "workdir": plan.workdir,
        "rendezvous": job.program.rendezvous,
        "interfaces": list(plan.site.rendezvous.interfaces),
        "launcher": plan.site.launch.launcher,
        "mpi": plan.site.launch.mpi,
        "num_ranks": placement.num_ranks,
        "ranks_per_node": placement.ranks_per_node,
        "cpus_per_rank": placement.cpus_per_rank,
        "environment": dict(plan.site.env.set),
        "hang_timeout_s": job.recovery.hang_timeout_s,
        "max_failures": job.recovery.max_failures,
        "max_attempts": job.recovery.max_attempts,
        "can_continue": job.recovery.requeue and (placement.may_requeue or plan.site.scheduler.kind == "local"),
        "backoff_s": job.recovery.backoff_s,
        "walltime_s": placement.walltime_s,
        "stop_lead_s": placement.stop_lead_s,
    }


def render_script(plan: Plan) -> str:
    """The batch script: the same body for every scheduler; only directives, launcher and continuation differ."""
    is_slurm = plan.site.scheduler.kind == "slurm"
    token = submission_token(plan.run, plan.submission)
    directives = (
        make_directives(plan.job, plan.site, plan.placement, token=token, log=str(plan.submission.batch_log))
        if is_slurm
        else []
    )
    again, hold = _slurm_continuation() if is_slurm else _local_continuation()
    return _template().render(
        directives=directives,
        version=__version__,
        run_name=plan.run.name,
        submission=plan.submission.number,
        run=str(plan.run.path),
        python=plan.python,
        num_ranks=plan.placement.num_ranks,
        walltime_s=plan.placement.walltime_s,
        interfaces=plan.site.rendezvous.interfaces,
        again=again,
        hold=hold,
        site_prologue=plan.site.prologue,
        unset=plan.site.env.unset,
        exports=sorted(plan.job.env.set.items()),
        modules=(*plan.site.env.modules, *plan.job.env.modules),
        setup=plan.job.program.setup,
        workdir=plan.workdir,
        launch=_launch_lines(plan),
    )


@lru_cache(maxsize=1)
def _template() -> Template:
    from jinja2 import Environment, StrictUndefined  # noqa: PLC0415 - 34 ms that other commands need not pay

    environment = Environment(  # noqa: S701 - a shell script: values are quoted by `sh`, HTML escaping would break them
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters["sh"] = lambda value: shlex.quote(str(value))
    return environment.from_string(files("hpc_train.sbatch_templates").joinpath("batch.sh.j2").read_text())


def _launch_lines(plan: Plan) -> list[str]:
    shim = ['"$PY"', "-m", "hpc_train", "run", '"$RUN"', "--submission", '"$SUBMISSION"', "--attempt", '"$ATTEMPT"']
    extra = [shlex.quote(argument) for argument in plan.site.launch.extra]
    placement = plan.placement
    if plan.site.launch.launcher == "srun":
        argv = [
            "srun",
            "--kill-on-bad-exit=1",
            "--wait=0",  # a site's WaitTime would kill ranks that still save when the first has ended
            f"--mpi={plan.site.launch.mpi}",
            f"--nodes={placement.num_nodes}",
            f"--ntasks={placement.num_ranks}",
            f"--ntasks-per-node={placement.ranks_per_node}",
            f"--cpus-per-task={placement.cpus_per_rank}",  # since 22.05 srun does not inherit it from sbatch
            "--export=ALL",
            *extra,
            '--output="${DIR//%/%%}/logs/%N.log"',
            *shim,
        ]
        return [" ".join([*argv, "&"])]
    argv = [shlex.quote(plan.mpirun), "-n", str(placement.num_ranks), *extra, *shim]
    return [
        "# Open MPI refuses to run as root unless told that it is meant: as in containers.",
        '[ "$(id -u)" -ne 0 ] || export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1',
        " ".join([*argv, '>>"$DIR/logs/$(hostname -s).log"', "2>&1", "&"]),
    ]


def _slurm_continuation() -> tuple[list[str], list[str]]:
    again = [
        'scontrol requeue "$SLURM_JOB_ID" || { say "Slurm does not requeue this job; go on with: hpc-train requeue '
        '$(basename "$RUN")"; return 75; }',
        "# Slurm takes the list only once the job is no longer running: within the time that its steps end.",
        '[ -z "$1" ] || scontrol update jobid="$SLURM_JOB_ID" ExcNodeList="$1" || say "could not exclude $1"',
    ]
    return again, ['scontrol requeuehold "$SLURM_JOB_ID" || return 75']


def _local_continuation() -> tuple[list[str], list[str]]:
    # The supervisor looks for these marks when the script has ended.
    return ['touch "$RUN/submission-$(printf %02d "$SUBMISSION")/again"'], [
        'touch "$RUN/submission-$(printf %02d "$SUBMISSION")/hold"'
    ]
