"""A request that the site cannot serve is refused at submit, with the limit and what to do; others become numbers."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpc_train.errors import SpecError
from hpc_train.job.spec import DataSection, JobSection, JobSpec, ProgramSection, RecoverySection
from hpc_train.site.spec import Launch, Queue, Resources, Scheduler, Signal, Site
from hpc_train.topology.placement import Placement, placement_from_json, placement_to_json, plan_placement

ALPINE = Site(
    name="alpine",
    scheduler=Scheduler(kind="slurm"),
    launch=Launch(launcher="srun", mpi="pmix"),
    continuation="requeue",
    queues=(
        Queue(name="gpu", default=True, max_nodes=16, max_walltime="1-0"),
        Queue(name="debug", max_nodes=2, max_walltime="30", max_gpus_per_node=2, requeue=False),
    ),
    resources=Resources(gpus_per_node=4, gpu_request="gpus_per_node", cores_per_node=64),
)
LOCAL = Site(name="local", scheduler=Scheduler(kind="local"), launch=Launch(launcher="mpirun", mpi="mpirun"))


def ask(stop_lead: str | None = None, requeue: bool = True, **job: Any) -> JobSpec:
    return JobSpec(
        job=JobSection(**job),
        program=ProgramSection(command=("a",)),
        recovery=RecoverySection(stop_lead=stop_lead, requeue=requeue),
    )


def test_a_request_becomes_numbers() -> None:
    job = ask(nodes=4, ranks_per_node=4, gpus_per_rank=1, memory="480G", walltime="2:00:00", exclude="n[3,7-8]")
    assert plan_placement(job, ALPINE) == Placement(
        num_nodes=4,
        ranks_per_node=4,
        num_ranks=16,
        cpus_per_rank=16,
        gpus_per_node=4,
        memory_bytes=480 << 30,
        queue="gpu",
        walltime_s=7200,
        walltime_asked=True,
        stop_lead_s=300,
        exclude=("n3", "n7", "n8"),
        may_requeue=True,
    )


@pytest.mark.parametrize(
    ("job", "message"),
    [
        (ask(nodes=17), r"\[job\].nodes = 17, but queue 'gpu' of site 'alpine' allows at most 16; ask for 16 or fewer"),
        (ask(nodes=3, queue="debug"), "queue 'debug' of site 'alpine' allows at most 2"),
        (ask(queue="gpus"), r"\[job\].queue = 'gpus': site 'alpine' has no such queue; it has: gpu, debug"),
        (ask(walltime="1-0:01"), r"\[job\].walltime = '1-0:01', but queue 'gpu' of site 'alpine' allows 1-00:00:00"),
        (ask(walltime="UNLIMITED"), "allows 1-00:00:00"),
        (ask(walltime="0"), "allows 1-00:00:00"),  # zero means no limit
        (
            ask(ranks_per_node=3, gpus_per_rank=2),
            r"3 ranks_per_node x 2 gpus_per_rank = 6 GPUs per node, .* has 4 per node",
        ),
        (ask(ranks_per_node=4, gpus_per_rank=1, queue="debug"), "queue 'debug' of site 'alpine' has 2 per node"),
        (ask(ranks_per_node=8, cpus_per_rank=9), r"8 ranks_per_node x 9 cpus_per_rank = 72 cores per node, .* has 64"),
        (ask(ranks_per_node=65), "site 'alpine' has 64"),
        (
            ask(stop_lead="31m", walltime="60"),
            r"stop_lead = '31m' is more than half of the wall time 0-01:00:00; set 30m",
        ),
        (ask(stop_lead="2h", walltime="60"), "more than half"),
        (ask(walltime="0:01"), "leave no time"),
        (ask(exclude="n[1-2"), r"\[job\].exclude: host list 'n\[1-2': a bracket is not closed"),
    ],
)
def test_what_the_site_cannot_serve_is_refused_with_the_limit(job: JobSpec, message: str) -> None:
    with pytest.raises(SpecError, match=message) as caught:
        plan_placement(job, ALPINE)
    assert caught.value.exit_code == 78


def test_the_origin_of_the_value_is_said() -> None:
    with pytest.raises(SpecError, match=r"^flag --nodes = 17, but"):
        plan_placement(ask(nodes=17), ALPINE, origins={"job.nodes": "flag --nodes"})


def test_the_local_site_is_one_machine() -> None:
    with pytest.raises(SpecError, match="is one machine; ask for 1 node"):
        plan_placement(ask(nodes=2), LOCAL)
    assert plan_placement(ask(ranks_per_node=4), LOCAL).num_ranks == 4


def test_a_site_without_memory_requests_refuses_one() -> None:
    site = msgspec.structs.replace(ALPINE, resources=Resources(memory_mode="none"))
    with pytest.raises(SpecError, match="takes no memory requests"):
        plan_placement(ask(memory="1G"), site)
    assert plan_placement(ask(), site).memory_bytes is None


def test_limits_that_a_site_does_not_know_are_not_checked() -> None:
    site = msgspec.structs.replace(ALPINE, queues=(), resources=Resources())
    placement = plan_placement(
        ask(nodes=9999, queue="any", ranks_per_node=8, gpus_per_rank=2, walltime="UNLIMITED"), site
    )
    assert (placement.queue, placement.walltime_s, placement.walltime_asked) == ("any", None, True)
    assert plan_placement(ask(), site).walltime_asked is False


@pytest.mark.parametrize(
    ("job", "lead", "expected_s"),
    [
        (ask(walltime="60"), None, 300),  # the built-in
        (ask(walltime="60"), "10m", 600),  # the site's
        (ask(walltime="60", stop_lead="15m"), "10m", 900),  # the job's
        (ask(walltime="2"), None, 60),  # a default is cut to half of the wall time
        (ask(walltime="0:05"), "10m", 2),
        (ask(walltime="60", stop_lead="30m"), None, 1800),  # exactly half is allowed
        (ask(), None, 300),
    ],
)
def test_the_warning_leaves_at_least_half_of_the_wall_time(job: JobSpec, lead: str | None, expected_s: int) -> None:
    site = msgspec.structs.replace(ALPINE, signal=Signal(lead=lead))
    assert plan_placement(job, site).stop_lead_s == expected_s


@pytest.mark.parametrize(
    ("job", "continuation", "way"),
    [
        (ask(), "requeue", "requeue"),
        (ask(requeue=False), "requeue", ""),
        (ask(queue="debug"), "requeue", "successor"),  # the queue forbids it
        (ask(queue="debug", requeue=False), "requeue", ""),
        (ask(), "none", ""),
        (ask(queue="debug"), "none", ""),
        (ask(), "successor", "successor"),
        (ask(requeue=False), "successor", ""),
    ],
)
def test_how_a_job_goes_on_is_said_by_job_queue_and_site(job: JobSpec, continuation: Any, way: str) -> None:
    placement = plan_placement(job, msgspec.structs.replace(ALPINE, continuation=continuation))
    assert (placement.may_requeue, placement.may_succeed) == (way == "requeue", way == "successor")


def test_a_queues_time_of_grace_is_known() -> None:
    queues = (Queue(name="spare", preempt_grace="2m"), Queue(name="gpu"))
    site = msgspec.structs.replace(ALPINE, queues=queues)
    assert [plan_placement(ask(queue=queue.name), site).preempt_grace_s for queue in queues] == [120, 0]


@given(
    st.integers(1, 16),
    st.integers(1, 64),
    st.integers(0, 4),
    st.none() | st.integers(1, 64),
    st.none() | st.integers(2, 1440),
)
def test_no_placement_exceeds_the_site(
    nodes: int, ranks: int, gpus: int, cpus: int | None, minutes: int | None
) -> None:
    walltime = None if minutes is None else str(minutes)
    job = ask(nodes=nodes, ranks_per_node=ranks, gpus_per_rank=gpus, cpus_per_rank=cpus, walltime=walltime)
    try:
        placement = plan_placement(job, ALPINE)
    except SpecError:
        assert ranks * gpus > 4 or ranks * (cpus or 1) > 64
        return
    assert placement.gpus_per_node <= 4
    assert placement.ranks_per_node * placement.cpus_per_rank <= 64
    assert placement.num_ranks == nodes * ranks
    assert placement.walltime_s is None or 2 * placement.stop_lead_s <= placement.walltime_s
    assert placement_from_json(placement_to_json(placement)) == placement


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"format": "hpc-train-placement", "version": 2}',
        '{"format": "hpc-train-placement", "version": 1}',
    ],
)
def test_other_json_is_not_taken_for_a_placement(text: str) -> None:
    with pytest.raises(SpecError, match=r"^placement\.json: "):
        placement_from_json(text)


@pytest.mark.parametrize(
    ("batch", "nodes", "ranks_per_node", "allowed"),
    [
        (512, 2, 3, "1, 2, 4, 8, 16, 32, 64, 128, 256, 512; asked 6 (2 nodes x 3 ranks_per_node)"),
        (4, 8, 1, "1, 2, 4; asked 8"),  # more ranks than samples
        (7, 1, 2, "1, 7; asked 2"),
        (512, 2, 4, ""),
        (1, 1, 1, ""),
        (None, 2, 3, ""),
    ],
)
def test_a_global_batch_that_the_ranks_cannot_share_is_refused_with_the_sizes_that_can(
    batch: int | None, nodes: int, ranks_per_node: int, allowed: str
) -> None:
    job = msgspec.structs.replace(ask(nodes=nodes, ranks_per_node=ranks_per_node), data=DataSection(global_batch=batch))
    site = msgspec.structs.replace(ALPINE, queues=(), resources=Resources())
    if not allowed:
        assert plan_placement(job, site).num_ranks == nodes * ranks_per_node
        return
    with pytest.raises(SpecError) as caught:
        plan_placement(job, site, origins={"data.global_batch": "job.toml: [data].global_batch"})
    assert str(caught.value).startswith(f"job.toml: [data].global_batch: global batch {batch}: allowed ranks {allowed}")
