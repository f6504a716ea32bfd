"""Placement: how many nodes, ranks, cores and seconds a job gets on a site, checked before anything is queued.

Apart from job and site because it is the one place where both meet: limits that would otherwise come back from the
scheduler hours later, or never, are said at submit. Pure: data in, data or one SpecError out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from hpc_train.errors import SpecError
from hpc_train.files import parse_record, record_text
from hpc_train.job.spec import JobSpec
from hpc_train.quantities import (
    divisors,
    format_counts,
    format_duration,
    format_walltime,
    parse_duration,
    parse_memory,
    parse_walltime,
)
from hpc_train.site.spec import Queue, Site
from hpc_train.topology.hostlist import expand

__all__ = [
    "PLACEMENT_FORMAT",
    "PLACEMENT_VERSION",
    "Placement",
    "placement_from_json",
    "placement_to_json",
    "plan_placement",
]

PLACEMENT_FORMAT = "hpc-train-placement"
PLACEMENT_VERSION = 1
DEFAULT_LEAD = "5m"  # time for the step in progress and one save; cut to half of short wall times


class Placement(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What is asked of the scheduler, in numbers.

    Attributes:  num_ranks: num_nodes x ranks_per_node.   memory_bytes: of each node; 0: all of it; None: not asked.
    queue: None where neither job nor site names one.   walltime_s: None where nothing limits the job or the queue's
    own default does.   walltime_asked: a time limit belongs into the script (with walltime_s None: no limit).
    stop_lead_s: seconds between the warning and the time limit.   exclude: node names, unfolded.
    may_requeue: job, queue and site all allow that the same job starts again.   may_succeed: where they do not, job
    and site allow that a new job goes on.   preempt_grace_s: between the first SIGTERM of a preemption and the end.
    """

    num_nodes: int
    ranks_per_node: int
    num_ranks: int
    cpus_per_rank: int
    gpus_per_node: int
    memory_bytes: int | None
    queue: str | None
    walltime_s: int | None
    walltime_asked: bool
    stop_lead_s: int
    exclude: tuple[str, ...]
    may_requeue: bool
    may_succeed: bool = False
    preempt_grace_s: int = 0


def plan_placement(job: JobSpec, site: Site, *, origins: Mapping[str, str] | None = None) -> Placement:
    """What the job gets on the site, or the first reason why it cannot.

    Args:  origins: where each dotted key of the job came from (LoadedJob.origins); errors then say it.
    Raises: SpecError naming the key, the limit, and the queue and site it belongs to.
    Deterministic. Defaults resolved here: the queue's, cores in proportion to GPUs, the warning's lead.
    """
    plan = _Plan(job, site, origins or {})
    queue_name, queue = plan.queue()
    walltime_s = plan.walltime_s(queue)
    num_nodes = plan.num_nodes(queue)
    plan.check_batch(num_nodes * job.job.ranks_per_node)
    gpus_per_node = plan.gpus_per_node(queue)
    may_continue = job.recovery.requeue and site.continuation != "none"
    may_requeue = may_continue and site.continuation == "requeue" and (queue is None or queue.requeue)
    return Placement(
        num_nodes=num_nodes,
        ranks_per_node=job.job.ranks_per_node,
        num_ranks=num_nodes * job.job.ranks_per_node,
        cpus_per_rank=plan.cpus_per_rank(gpus_per_node),
        gpus_per_node=gpus_per_node,
        memory_bytes=plan.memory_bytes(),
        queue=queue_name,
        walltime_s=walltime_s,
        walltime_asked=job.job.walltime is not None,
        stop_lead_s=plan.stop_lead_s(walltime_s),
        exclude=plan.exclude(),
        may_requeue=may_requeue,
        preempt_grace_s=parse_duration(queue.preempt_grace) if queue is not None and queue.preempt_grace else 0,
        may_succeed=may_continue and not may_requeue and site.scheduler.kind == "slurm",
    )


def placement_to_json(placement: Placement) -> str:
    """The placement as the JSON record placement.json, with format and version."""
    return record_text(PLACEMENT_FORMAT, PLACEMENT_VERSION, msgspec.to_builtins(placement))


def placement_from_json(text: str, where: str = "placement.json") -> Placement:
    """The inverse of `placement_to_json`.

    Raises: SpecError for anything that is not such a record.
    """
    record = parse_record(text, where, kind=PLACEMENT_FORMAT, version=PLACEMENT_VERSION, error=SpecError)
    try:
        return msgspec.convert(record, Placement)
    except msgspec.ValidationError as cause:
        raise SpecError(f"{where}: {cause}") from cause


@dataclass(frozen=True)
class _Plan:
    """The request and the site, with one method for each number of the placement."""

    job: JobSpec
    site: Site
    origins: Mapping[str, str]

    def said(self, dotted: str) -> str:
        """Where the user (or site) said it, for the start of an error."""
        table, _, key = dotted.rpartition(".")
        origin = self.origins.get(dotted, "default")
        return f"[{table}].{key}" if origin == "default" else origin

    def on(self, queue: Queue | None) -> str:
        return f"site {self.site.name!r}" if queue is None else f"queue {queue.name!r} of site {self.site.name!r}"

    def queue(self) -> tuple[str | None, Queue | None]:
        name = self.job.job.queue if self.job.job.queue is not None else self.site.default_queue()
        queue = self.site.queue(name)
        if name is not None and queue is None and self.site.queues:
            listed = ", ".join(each.name for each in self.site.queues)
            raise SpecError(
                f"{self.said('job.queue')} = {name!r}: site {self.site.name!r} has no such queue; it has: {listed}"
            )
        return name, queue

    def num_nodes(self, queue: Queue | None) -> int:
        nodes = self.job.job.nodes
        if self.site.scheduler.kind == "local" and nodes != 1:
            raise SpecError(
                f"{self.said('job.nodes')} = {nodes}, but site {self.site.name!r} is one machine; ask for 1 node and "
                "more ranks_per_node, or name a Slurm site (`hpc-train site list`)"
            )
        if queue is not None and queue.max_nodes is not None and nodes > queue.max_nodes:
            raise SpecError(
                f"{self.said('job.nodes')} = {nodes}, but {self.on(queue)} allows at most {queue.max_nodes}; ask for "
                f"{queue.max_nodes} or fewer, or another queue"
            )
        return nodes

    def check_batch(self, num_ranks: int) -> None:
        batch = self.job.data.global_batch
        if batch is not None and batch % num_ranks:
            job = self.job.job
            raise SpecError(
                f"{self.said('data.global_batch')}: global batch {batch}: allowed ranks "
                f"{format_counts(divisors(batch))}; asked {num_ranks} ({job.nodes} nodes x {job.ranks_per_node} "
                "ranks_per_node)"
            )

    def gpus_per_node(self, queue: Queue | None) -> int:
        gpus = self.job.job.ranks_per_node * self.job.job.gpus_per_rank
        of_queue = queue.max_gpus_per_node if queue is not None else None
        limits = [limit for limit in (self.site.resources.gpus_per_node, of_queue) if limit is not None]
        if limits and gpus > min(limits):
            raise SpecError(
                f"{self.said('job.gpus_per_rank')}: {self.job.job.ranks_per_node} ranks_per_node x "
                f"{self.job.job.gpus_per_rank} gpus_per_rank = {gpus} GPUs per node, but {self.on(queue)} has "
                f"{min(limits)} per node; ask for {min(limits)} or fewer, or add nodes"
            )
        return gpus

    def cpus_per_rank(self, gpus: int) -> int:
        ranks, asked = self.job.job.ranks_per_node, self.job.job.cpus_per_rank
        cores = self.site.resources.cores_per_node
        if cores is not None and ranks * (asked or 1) > cores:
            raise SpecError(
                f"{self.said('job.cpus_per_rank')}: {ranks} ranks_per_node x {asked or 1} cpus_per_rank = "
                f"{ranks * (asked or 1)} cores per node, but site {self.site.name!r} has {cores}; ask for fewer"
            )
        if asked is not None:
            return asked
        # A rank that is given one core by default starves its GPU; with GPUs asked, their share of the node is fair.
        of_node = self.site.resources.gpus_per_node
        share = cores * gpus // of_node if cores and of_node else 0
        return max(1, share // ranks)

    def memory_bytes(self) -> int | None:
        memory = self.job.job.memory
        if memory is None:
            return None
        if self.site.resources.memory_mode == "none":
            raise SpecError(
                f"{self.said('job.memory')} = {memory!r}, but site {self.site.name!r} takes no memory requests"
            )
        return parse_memory(memory)

    def walltime_s(self, queue: Queue | None) -> int | None:
        text = self.job.job.walltime
        seconds = parse_walltime(text) if text is not None else None
        limit = parse_walltime(queue.max_walltime) if queue is not None and queue.max_walltime is not None else None
        if text is not None and limit is not None and (seconds is None or seconds > limit):
            raise SpecError(
                f"{self.said('job.walltime')} = {text!r}, but {self.on(queue)} allows {format_walltime(limit)}; "
                "ask for that or less (the run goes on in further attempts), or another queue"
            )
        return seconds

    def stop_lead_s(self, walltime_s: int | None) -> int:
        asked = self.job.recovery.stop_lead
        lead = parse_duration(asked or self.site.signal.lead or DEFAULT_LEAD)
        if walltime_s is None:
            return lead
        if walltime_s < 2:
            raise SpecError(f"{self.said('job.walltime')}: {walltime_s} s leave no time to save and stop; ask for more")
        if asked is not None and lead > walltime_s // 2:
            raise SpecError(
                f"{self.said('recovery.stop_lead')} = {asked!r} is more than half of the wall time "
                f"{format_walltime(walltime_s)}; set {format_duration(walltime_s // 2)} or less, or more wall time"
            )
        return min(lead, walltime_s // 2)

    def exclude(self) -> tuple[str, ...]:
        if self.job.job.exclude is None:
            return ()
        try:
            return tuple(dict.fromkeys(expand(self.job.job.exclude)))
        except SpecError as cause:
            raise SpecError(f"{self.said('job.exclude')}: {cause}") from cause
