"""Renders a submission: the batch script, and the record that the launch shim reads. Pure: records in, text out.

Apart from submitting, so that `--dry-run` prints exactly what would run, and golden files hold it still.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from hpc_train import __version__
from hpc_train.job.spec import JobSpec
from hpc_train.run.layout import LAUNCH_FORMAT, LAUNCH_VERSION, RunDir, SubmissionDir
from hpc_train.scheduler.directives import make_directives, submission_token
from hpc_train.scheduler.mpi import MpiChoice
from hpc_train.site.spec import Site
from hpc_train.topology.placement import Placement

if TYPE_CHECKING:
    from jinja2 import Template

__all__ = ["KILL_WAIT_S", "Plan", "launch_record", "render_script"]

KILL_WAIT_S = 10.0  # a local job's time between SIGTERM and SIGKILL; Slurm's own is 30 s by default
# How often the batch shell asks Slurm for a requeue, how long each asking may take, and the pause between two [s]: one
# minute where the controller refuses the connection at once, four where it does not answer.
ASK_TRIES, ASK_TIMEOUT_S, ASK_PAUSE_S = 20, 10, 3
# A site's own words on it; with PE=4 in --map-by, Open MPI would refuse ours.
_BINDS = re.compile(r"bind|PE=|cpu|rankfile", re.IGNORECASE)
_RUN, _DIR, _PYTHON = '"$hpc_train_run"', "$hpc_train_dir", '"$hpc_train_python"'


@dataclass(frozen=True)
class Plan:
    """Everything that one submission is made of.

    Attributes:  python: interpreter that runs the shim and the ranks.   mpi: how the ranks are started and find each
    other.   workdir: absolute directory in which the program runs.   origins: where each value of the request came
    from, as of LoadedJob; empty where it is asked once more.
    """

    job: JobSpec
    site: Site
    placement: Placement
    run: RunDir
    submission: SubmissionDir
    python: str
    mpi: MpiChoice
    workdir: str
    origins: Mapping[str, str] = field(default_factory=dict)


def launch_record(plan: Plan) -> dict[str, Any]:
    """What the launch shim, the decision and the local supervisor need, as plain JSON values."""
    job, placement = plan.job, plan.placement
    is_local = plan.site.scheduler.kind == "local"
    # What the job sets wins: the shim sets these last, when the script's own exports are already there.
    of_site = {name: text for name, text in plan.site.env.set.items() if name not in job.env.set}
    return {
        "format": LAUNCH_FORMAT,
        "version": LAUNCH_VERSION,
        "command": list(job.program.command),
        "python": plan.python,
        "workdir": plan.workdir,
        "rendezvous": job.program.rendezvous,
        "interfaces": list(plan.site.rendezvous.interfaces),
        "launcher": plan.site.launch.launcher,
        "mpi": plan.mpi.protocol,
        "mpi_flavour": plan.mpi.flavour,
        "relays_stop": not plan.mpi.forwards_signals,
        "num_ranks": placement.num_ranks,
        "ranks_per_node": placement.ranks_per_node,
        "cpus_per_rank": placement.cpus_per_rank,
        "environment": of_site,
        "hang_timeout_s": job.recovery.hang_timeout_s,
        "max_failures": job.recovery.max_failures,
        "max_attempts": job.recovery.max_attempts,
        "can_continue": placement.may_requeue or placement.may_succeed or (job.recovery.requeue and is_local),
        "can_move": not is_local,
        "backoff_s": job.recovery.backoff_s,
        "walltime_s": placement.walltime_s,
        "stop_lead_s": placement.stop_lead_s,
        "preempt_grace_s": placement.preempt_grace_s,
        "kill_wait_s": KILL_WAIT_S,
    }


def render_script(plan: Plan) -> str:
    """The batch script: the same body for every scheduler; only directives, launcher and continuation differ.

    Raises: SpecError for a value that sbatch's parser cannot take (directives.py).
    """
    is_slurm = plan.site.scheduler.kind == "slurm"
    token = submission_token(plan.run, plan.submission)
    directives = (
        make_directives(plan.job, plan.site, plan.placement, token=token, log=str(plan.submission.batch_log))
        if is_slurm
        else []
    )
    return _template().render(
        directives=directives,
        version=__version__,
        run_name=plan.run.name,
        submission=plan.submission.number,
        submission_name=plan.submission.path.name,
        next_submission_name=plan.run.submission(plan.submission.number + 1).path.name,
        scheduler=plan.site.scheduler.kind,
        has_successor=plan.placement.may_succeed,
        run=str(plan.run.path),
        python=plan.python,
        num_ranks=plan.placement.num_ranks,
        walltime_s=plan.placement.walltime_s,
        stop_lead_s=plan.placement.stop_lead_s,
        interfaces=plan.site.rendezvous.interfaces,
        site_prologue=plan.site.prologue,
        unset=plan.site.env.unset,
        exports=sorted(plan.job.env.set.items()),
        modules=(*plan.site.env.modules, *plan.job.env.modules),
        setup=plan.job.program.setup,
        workdir=plan.workdir,
        launch=_launch_lines(plan),
        forwards_signals=plan.mpi.forwards_signals,
        ask_tries=ASK_TRIES,
        ask_timeout_s=ASK_TIMEOUT_S,
        ask_pause_s=ASK_PAUSE_S,
    )


@lru_cache(maxsize=1)
def _template() -> Template:
    from jinja2 import Environment, StrictUndefined  # 34 ms that other commands need not pay

    # A shell script: values are quoted by `sh`, HTML escaping would break them.
    environment = Environment(
        undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, keep_trailing_newline=True
    )
    environment.filters["sh"] = lambda value: shlex.quote(str(value))
    source = files("hpc_train.sbatch_templates").joinpath("batch.sh.j2")
    return environment.from_string(source.read_text(encoding="utf-8"))


def _launch_lines(plan: Plan) -> list[str]:
    # -u: the program runs in this interpreter, whose output a variable would no longer change; mpirun may not pass one.
    shim = [_PYTHON, "-u", "-m", "hpc_train", "run", _RUN]
    shim += ["--submission", '"$hpc_train_submission"', "--attempt", '"$hpc_train_attempt"']
    extra = [shlex.quote(argument) for argument in plan.site.launch.extra]
    placement = plan.placement
    if plan.site.launch.launcher == "srun":
        argv = [
            "srun",
            "--kill-on-bad-exit=1",
            "--wait=0",  # a site's WaitTime would kill ranks that still save when the first has ended
            f"--mpi={plan.mpi.protocol}",
            f"--nodes={placement.num_nodes}",
            f"--ntasks={placement.num_ranks}",
            f"--ntasks-per-node={placement.ranks_per_node}",
            f"--cpus-per-task={placement.cpus_per_rank}",  # since 22.05 srun does not inherit it from sbatch
            "--export=ALL",
            *extra,
            *_log_options(plan.run),
            *shim,
        ]
        # srun's own words are evidence: which tasks it saw end tells which node went away
        return [*_fresh_step_lines(plan.mpi.protocol), " ".join([*argv, f'2>"{_DIR}/launcher.log"', "&"])]
    return _mpirun_lines(plan, [*extra, *shim])


def _log_options(run: RunDir) -> list[str]:
    """Where srun lets each host write what its ranks print."""
    if "%" not in str(run.path):
        return [f'--output="{_DIR}/logs/%N.log"']
    # A '%%N' in the path is expanded twice, by srun and by slurmstepd (seen on 22.05.8), and no doubling helps. What a
    # relative pattern is relative to is not expanded; ranks change to the program's directory themselves.
    return [f'--chdir="{_DIR}"', "--output=logs/%N.log"]


def _mpirun_lines(plan: Plan, rest: list[str]) -> list[str]:
    num_ranks, flavour = str(plan.placement.num_ranks), plan.mpi.flavour
    argv = [shlex.quote(plan.mpi.mpirun), "-n", num_ranks]
    before: list[str] = []
    if flavour in ("openmpi", ""):
        before = [
            "# Open MPI refuses to run as root unless told that it is meant: as in containers.",
            '[ "$(id -u)" -ne 0 ] || export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1',
        ]
    if flavour == "mpich":
        argv += ["-ppn", str(plan.placement.ranks_per_node)]  # it deals ranks out one by one otherwise
        if plan.site.scheduler.kind == "slurm":
            before = [
                "# This mpiexec starts its helpers with srun. If that brings PMIx along (MpiDefault), the ranks find",
                "# two process managers and MPI_Init ends them (MPICH 5.0.2).",
                "export SLURM_MPI_TYPE=none",
            ]
    of_flavour = getattr(plan.site.launch.extra_of, flavour, ())
    if flavour == "openmpi" and not any(map(_BINDS.search, (*of_flavour, *plan.site.launch.extra))):
        # By itself it ties each of two ranks to one core, whatever cpus_per_rank says, and so all threads and data
        # workers of a rank. MPICH's ties none.
        argv += ["--bind-to", "none"]
    argv += [*map(shlex.quote, of_flavour), *rest]
    return [
        *before,
        "hpc_train_node=$(uname -n)",
        " ".join([*argv, f'>>"{_DIR}/logs/${{hpc_train_node%%.*}}.log"', "2>&1", "&"]),
    ]


def _fresh_step_lines(protocol: str) -> list[str]:
    """Lines that use up the step numbers of a job's earlier starts."""
    if protocol != "pmix":
        return []
    return [
        "# A requeued job keeps its id and counts its steps from 0 again. Where a killed step left its PMIx socket in",
        "# the node's spool, a step of that number cannot start there again (seen on 22.05.8: \"Cannot bind() UNIX",
        '# socket ...stepd.slurm.pmix.66.0: Address already in use"). So the N-th restart runs as step N.',
        "for ((hpc_train_n = 0; hpc_train_n < ${SLURM_RESTART_COUNT:-0}; hpc_train_n++)); do",
        "  timeout 60 srun --mpi=none --nodes=1 --ntasks=1 true || break",
        "done",
    ]
