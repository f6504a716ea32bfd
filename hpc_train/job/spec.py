"""JobSpec: the frozen record of what one submission asks for.

Apart from the loader because the planner, the renderer and the run directory share the record, and none of them
reads job files, flags or the environment. Texts of times and sizes stay as the user wrote them; the properties
give numbers.
"""

from __future__ import annotations

from pathlib import PurePath
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from hpc_train.quantities import parse_duration

__all__ = [
    "JOB_FORMAT",
    "JOB_VERSION",
    "DataSection",
    "EnvSection",
    "JobSection",
    "JobSpec",
    "ProgramSection",
    "RecoverySection",
]

JOB_FORMAT = "hpc-train-job"
JOB_VERSION = 1

Count = Annotated[int, Meta(ge=1, le=10_000_000)]


class JobSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[job]`: what is asked of the scheduler."""

    name: Annotated[str | None, Meta(description="name of the run; default: the program's file name")] = None
    site: Annotated[str, Meta(description="site file by name: `hpc-train site list`")] = "local"
    account: Annotated[str | None, Meta(description="project that pays (`--account`)")] = None
    queue: Annotated[str | None, Meta(description="queue, Slurm's partition; default: the site's")] = None
    qos: Annotated[str | None, Meta(description="quality of service (`--qos`)")] = None
    constraint: Annotated[str | None, Meta(description="node features (`--constraint`)")] = None
    reservation: Annotated[str | None, Meta(description="reservation (`--reservation`)")] = None
    licenses: Annotated[str | None, Meta(description="licences (`--licenses`)")] = None
    walltime: Annotated[
        str | None, Meta(description="time limit of one attempt in Slurm's form: `90` (minutes), `2:00:00`, `1-12`")
    ] = None
    nodes: Annotated[Count, Meta(description="nodes")] = 1
    ranks_per_node: Annotated[Count, Meta(description="ranks (processes) on each node")] = 1
    gpus_per_rank: Annotated[int, Meta(ge=0, le=1024, description="GPUs for each rank")] = 0
    cpus_per_rank: Annotated[
        Count | None,
        Meta(description="cores for each rank; default: the node's cores in proportion to the GPUs asked, else 1"),
    ] = None
    memory: Annotated[
        str | None, Meta(description="memory of each node: integer and K, M, G or T (`480G`); `0`: all of it")
    ] = None
    run_root: Annotated[str, Meta(description="directory in which the run directory is made")] = "runs"
    exclude: Annotated[str | None, Meta(description="nodes not to use, a host list: `n[3,7-9]`")] = None
    extra_directives: Annotated[
        tuple[str, ...], Meta(description="further sbatch options, each one text: `--key` or `--key=value`")
    ] = ()


class EnvSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[env]`: the environment of the program."""

    venv: Annotated[str | None, Meta(description="virtual environment; its `bin/python` runs the ranks")] = None
    python: Annotated[str | None, Meta(description="Python that runs the ranks, instead of `venv`")] = None
    modules: Annotated[tuple[str, ...], Meta(description="modules loaded after the site's")] = ()
    pass_names: Annotated[tuple[str, ...], Meta(description="names of variables passed from the submitting shell")] = (
        msgspec.field(name="pass", default=())
    )
    set: Annotated[dict[str, str], Meta(description="variables and their values; no secrets")] = {}


class ProgramSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[program]`: what runs. The fields `command` and `setup` are code."""

    command: Annotated[tuple[str, ...], Meta(min_length=1, description="the program and its arguments")]
    setup: Annotated[
        tuple[str, ...],
        Meta(
            description="shell lines run once on the first node before the ranks. One that fails ends nothing, as in "
            "any script, and `status`, `why` and the batch log tell it; `|| exit 1` behind it ends the job. What they "
            "change of the shell itself (`set -e`, `IFS`, traps of ERR, DEBUG and RETURN) ends with them"
        ),
    ] = ()
    workdir: Annotated[str | None, Meta(description="working directory; default: where submit was typed")] = None
    rendezvous: Annotated[
        Literal["torch", "none"],
        Meta(description="`torch`: MASTER_ADDR, RANK and the rest are set for `env://`; `none`: not needed"),
    ] = "torch"


class DataSection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[data]`: what the program reads."""

    path: Annotated[
        tuple[str, ...], Meta(description="dataset directories that must be there when the job is submitted")
    ] = ()
    global_batch: Annotated[
        Count | None,
        Meta(
            description="samples of a global batch over all ranks; a number of ranks that does not divide it is refused"
        ),
    ] = None


class RecoverySection(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`[recovery]`: what happens when an attempt stops or fails."""

    max_failures: Annotated[
        int, Meta(ge=0, le=1000, description="failures in a row without a new checkpoint before the run is given up")
    ] = 3
    max_attempts: Annotated[int, Meta(ge=1, le=999, description="starts of one run, of whatever cause")] = 50
    hang_timeout: Annotated[str, Meta(description="a step that takes longer is ended as hung")] = "20m"
    stop_lead: Annotated[
        str | None,
        Meta(
            description="how long before the time limit the program is asked to save and stop, at most half of it; "
            "default: the site's, else `5m`, cut to half of the time limit"
        ),
    ] = None
    requeue: Annotated[bool, Meta(description="go on by itself after a stop or an infrastructure failure")] = True
    backoff: Annotated[
        str,
        Meta(
            description="wait before the next attempt after a failure (not after a stop or a preemption); never less "
            "than Slurm's own, mostly two minutes for a requeued job"
        ),
    ] = "10s"

    @property
    def hang_timeout_s(self) -> int:
        """`hang_timeout` in seconds."""
        return parse_duration(self.hang_timeout)

    @property
    def backoff_s(self) -> int:
        """`backoff` in seconds."""
        return parse_duration(self.backoff)


class JobSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One request: the job file's tables after flags, environment, user config and site defaults were laid over.

    `topology.placement.plan_placement` turns it and a Site into numbers of nodes, ranks, cores and seconds.
    """

    job: JobSection = JobSection()
    env: EnvSection = EnvSection()
    program: ProgramSection
    data: DataSection = DataSection()
    recovery: RecoverySection = RecoverySection()

    @property
    def name(self) -> str:
        """`job.name`, else the last part of `-m`'s module, the stem of the first `.py` argument, or the command's."""
        if self.job.name is not None:
            return self.job.name
        command = self.program.command
        if PurePath(command[0]).name.startswith("python") and "-m" in command[1:-1]:
            before = command[1 : command.index("-m")]
            if all(part.startswith("-") and part != "-c" for part in before):  # else it is the script's own option
                return command[len(before) + 2].rpartition(".")[2] or "run"
        scripts = [part for part in command if part.endswith(".py")]
        return PurePath((scripts or list(command))[0]).stem or "run"
