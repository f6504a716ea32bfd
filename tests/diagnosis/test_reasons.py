"""Every reason that Slurm has for a waiting job is known, with who must act and what to type."""

from __future__ import annotations

import re

import pytest

from hpc_train.diagnosis.reasons import explain_reason, load_reasons

# Names of Slurm 22.05 to 25.05. TRES families are spelled out below: Slurm makes a name for each kind.
NAMES = [
    "None", "Priority", "Dependency", "Resources", "PartitionNodeLimit", "PartitionTimeLimit", "PartitionDown",
    "PartitionInactive", "PartitionConfig", "JobHeldAdmin", "JobHeldUser", "BeginTime", "Licenses",
    "AssociationJobLimit", "AssociationResourceLimit", "AssociationTimeLimit", "Reservation", "ReservationDeleted",
    "RequiresReservation", "ReqNodeNotAvail", "FrontEndDown", "NodeDown", "BadConstraints", "SystemFailure",
    "JobLaunchFailure", "NonZeroExitCode", "TimeLimit", "InactiveLimit", "InvalidAccount", "InvalidQOS",
    "AccountNotAllowed", "QOSNotAllowed", "QOSUsageThreshold", "QOSJobLimit", "QOSResourceLimit", "QOSTimeLimit",
    "Cleaning", "Prolog", "DependencyNeverSatisfied", "AccountingPolicy", "JobHoldMaxRequeue", "JobArrayTaskLimit",
    "BurstBufferResources", "BurstBufferStageIn", "BurstBufferOperation", "FedJobLock", "OutOfMemory", "MaxMemPerLimit",
    "WaitingForScheduling", "DeadLine", "SchedDefer", "MaxPoweredUpNodes", "MpiPortsBusy", "PartitionMinNodes",
    "PartitionMaxNodes", "QOSGrpCpuLimit", "QOSGrpCPUMinutesLimit", "QOSGrpCPURunMinutesLimit", "QOSGrpJobsLimit",
    "QOSGrpMemLimit", "QOSGrpNodeLimit", "QOSGrpSubmitJobsLimit", "QOSGrpWallLimit", "QOSMaxCpuPerJobLimit",
    "QOSMaxCpuMinutesPerJobLimit", "QOSMaxNodePerJobLimit", "QOSMaxWallDurationPerJobLimit", "QOSMaxCpuPerUserLimit",
    "QOSMaxJobsPerUserLimit", "QOSMaxNodePerUserLimit", "QOSMaxSubmitJobPerUserLimit", "QOSMinCpuNotSatisfied",
    "QOSMaxCpuPerNode", "AssocGrpCpuLimit", "AssocGrpCPUMinutesLimit", "AssocGrpCPURunMinutesLimit",
    "AssocGrpJobsLimit", "AssocGrpMemLimit", "AssocGrpNodeLimit", "AssocGrpSubmitJobsLimit", "AssocGrpWallLimit",
    "AssocMaxJobsLimit", "AssocMaxCpuPerJobLimit", "AssocMaxCpuMinutesPerJobLimit", "AssocMaxNodePerJobLimit",
    "AssocMaxWallDurationPerJobLimit", "AssocMaxSubmitJobLimit", "AssocMaxCpuPerNode", "MaxJobsPerAccount",
    "MaxSubmitJobsPerAccount", "MaxCpuPerAccount",
]  # fmt: skip
KINDS = ["BB", "Billing", "Energy", "GRES", "License", "Mem", "Memory", "Node", "Unknown"]
FAMILIES = [
    "AssocGrp{}", "AssocGrp{}Minutes", "AssocGrp{}RunMinutes", "AssocMax{}PerJob", "AssocMax{}PerNode",
    "AssocMax{}MinutesPerJob", "QOSGrp{}", "QOSGrp{}Minutes", "QOSGrp{}RunMinutes", "QOSMax{}PerJob", "QOSMax{}PerNode",
    "QOSMax{}PerUser", "QOSMax{}MinutesPerJob", "QOSMin{}", "Max{}PerAccount",
]  # fmt: skip
TEXTS = [
    "launch failed requeued held", "launch_failed_requeued_held", "job requeued in held state",
    "job_requeued_in_held_state", "user env retrieval failed requeued held", "RaisedSignal:9(Killed)",
    "ReqNodeNotAvail, UnavailableNodes:n[1-2]", "ReqNodeNotAvail(Unavailable:n3)".replace("(", ", "),
    "Nodes required for job are DOWN, DRAINED or reserved for jobs in higher priority partitions",
]  # fmt: skip


def test_every_reason_is_known() -> None:
    made = [
        family.format(kind) for family in FAMILIES for kind in KINDS if (family, kind) != ("Max{}PerAccount", "Mem")
    ]
    assert [name for name in [*NAMES, *made, *TEXTS] if explain_reason(name) is None] == []


def test_every_entry_of_the_table_is_used_and_says_who_acts_and_what_to_type() -> None:
    made = [family.format(kind) for family in FAMILIES for kind in KINDS]
    used = {explain_reason(name) for name in [*NAMES, *made, *TEXTS]}
    for reason in load_reasons():
        assert reason in used, reason
        assert reason.who in ("you", "site", "wait") and reason.meaning and reason.next
        assert set(re.findall(r"\{(\w+)\}", reason.next)) <= {"job"}
        assert not (reason.never and reason.who == "wait")


@pytest.mark.parametrize(
    ("reason", "word", "never"),
    [
        ("BadConstraints", "cancel it", True),
        ("Priority", "priority", False),
        ("priority", "priority", False),
        ("Resources", "free nodes", False),
        ("QOSMaxJobsPerUserLimit", "limit of its quality of service", False),
        ("QOSGrpGRES", "all jobs of its quality of service", False),
        ("QOSMinGRES", "asks for less than", True),
        ("AssocGrpGRES", "limit of your account", False),
        ("ReqNodeNotAvail, UnavailableNodes:n[1-2]", "down or reserved", False),
        ("DependencyNeverSatisfied", "cancel it", True),  # not the shorter "Dependency"
        ("PartitionTimeLimit", "more time than the queue allows", True),
        ("ReservationDeleted", "is gone", True),
    ],
)
def test_a_reason_is_said_in_plain_words(reason: str, word: str, never: bool) -> None:
    found = explain_reason(reason)
    assert found is not None and word in found.meaning and found.never == never


@pytest.mark.parametrize("reason", ["", "(Priority)", "Prior", "Dependencies", "nonsense", ",", "QOS"])
def test_an_unknown_reason_is_not_guessed_at(reason: str) -> None:
    assert explain_reason(reason) is None
