"""What is said of a request that can run, but perhaps not as its user thinks.

Apart from planning, which refuses, so that `submit`, `resume` and their dry runs say the same.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from hpc_train.job.spec import JobSpec
from hpc_train.quantities import shown
from hpc_train.scheduler.inner_launchers import find_inner_launcher, starts_several
from hpc_train.scheduler.planning import is_missing
from hpc_train.scheduler.script import Plan
from hpc_train.site.spec import Site
from hpc_train.site.tables import printable, user_config_dir

__all__ = ["remarks_on", "warn_left_behind", "warn_shared_cores"]

# Keys of [job] that only a scheduler acts on, and what holds instead where it is not plain.
_IDLE_ON_LOCAL = {
    "account": "",
    "queue": "",
    "qos": "",
    "constraint": "",
    "reservation": "",
    "licenses": "",
    "gpus_per_rank": ", and every rank sees all of its GPUs",
    "memory": ", and nothing holds the ranks to it",
    "exclude": "",
    "extra_directives": "",
}
# What sbatch would read from the submitting shell, and the keys of [job] in their place.
_OF_SBATCH = {
    "SBATCH_ACCOUNT": "account",
    "SBATCH_PARTITION": "queue",
    "SBATCH_QOS": "qos",
    "SBATCH_CONSTRAINT": "constraint",
    "SBATCH_RESERVATION": "reservation",
    "SBATCH_TIMELIMIT": "walltime",
    "SBATCH_MEM_PER_NODE": "memory",
}
_WITHOUT_FLAG = ("constraint", "reservation")


def remarks_on(plan: Plan, environ: Mapping[str, str]) -> tuple[str, ...]:
    """One line for each thing that is worth a warning. Reads only what this machine's kernel says of its cores.

    Args:  environ: of the shell that submits.
    """
    return (
        *warn_shared_cores(plan.placement.ranks_per_node, plan.site.scheduler.kind),
        *_warn_missing(plan),
        *_warn_one_core(plan),
        *_warn_idle(plan, environ),
        *warn_left_behind(plan, environ),
        *_warn_unset(plan.job, environ),
        *_warn_unverified(plan.site),
    )


def warn_shared_cores(ranks: int, kind: str) -> tuple[str, ...]:
    """What to say of ranks that share the cores of this machine; () where each has one, or another machine runs them.

    Args:  kind: the site's scheduler.
    """
    cores = len(os.sched_getaffinity(0))
    if kind != "local" or ranks <= cores:
        return ()
    return (f"{ranks} ranks share the {cores} cores of this machine: fine for trying out, slow for training",)


def _warn_missing(plan: Plan) -> Iterator[str]:
    """A name that is nowhere on this machine, most often mistyped: the job would find out after hours in the queue."""
    if plan.site.scheduler.kind != "local" and is_missing(plan.job, plan.site, plan.python):
        head = shown(plan.job.program.command[0])
        yield (
            f"[program].command: there is no program {head} in this shell's PATH: the job fails as it starts unless "
            "its nodes have one"
        )


def _warn_one_core(plan: Plan) -> Iterator[str]:
    """Ranks that will want more than the one core that they get because nobody said how many. Plain ones may not."""
    job, resources = plan.job.job, plan.site.resources
    if plan.site.scheduler.kind == "local" or job.cpus_per_rank is not None or plan.placement.cpus_per_rank > 1:
        return
    command = plan.job.program.command
    launcher = find_inner_launcher(command)
    if launcher and starts_several(command):
        who = f"all processes that {launcher} starts there share it"
    elif job.gpus_per_rank and None in (resources.cores_per_node, resources.gpus_per_node):  # else it is its share
        who = "its threads and data workers share it, and its GPU waits for them"
    else:
        return
    yield (
        f"each rank gets 1 core, as neither [job].cpus_per_rank nor the site file says more: {who}; ask for more with "
        "--cpus-per-rank"
    )


def warn_left_behind(plan: Plan, environ: Mapping[str, str]) -> Iterator[str]:
    """What the submitting shell tells sbatch, and a run does not hear, where the request says nothing in its place.

    Args:  environ: of the shell that submits.
    """
    if plan.site.scheduler.kind != "slurm":
        return
    for name, key in _OF_SBATCH.items():
        if environ.get(name) and getattr(plan.job.job, key) is None:
            how = f"[job].{key}" if key in _WITHOUT_FLAG else f"--{key} or [job].{key}"
            yield (
                f"{name} = {shown(environ[name], limit=60)} of this shell has no effect: a run does not depend on the "
                f"shell; say it with {how}"
            )


def _warn_idle(plan: Plan, environ: Mapping[str, str]) -> Iterator[str]:
    """What was asked of this very request, and only a scheduler could give.

    Not what stands in the user's config or environment for all sites.
    """
    if plan.site.scheduler.kind != "local":
        return
    config = user_config_dir(environ)
    standing = ("default", "site ", "env ", *([f"{printable(config / 'config.toml')}: "] if config else []))
    for key, so in _IDLE_ON_LOCAL.items():
        origin = plan.origins.get(f"job.{key}", "default")
        if getattr(plan.job.job, key) and not origin.startswith(standing):
            yield (
                f"{origin} has no effect: site {plan.site.name!r} is this machine, without a scheduler{so}; leave it "
                "out, or name another site (hpc-train site list)"
            )


def _warn_unset(job: JobSpec, environ: Mapping[str, str]) -> tuple[str, ...]:
    names = [name for name in job.env.pass_names if name not in environ]
    if not names:
        return ()
    return (f"[env].pass names what is not set here, so the job will lack it: {', '.join(names)}",)


def _warn_unverified(site: Site) -> tuple[str, ...]:
    if site.status.verified:
        return ()
    return (f"site {site.name!r} is unverified: nobody has noted that jobs ran through its file (hpc-train site show)",)
