"""Refusals as text: what other versions and sites say, and that keys and flags are those there are."""

from __future__ import annotations

import pytest

from hpc_train.cli.submit import command as submit
from hpc_train.diagnosis.refusals import explain_refusal, load_refusals, place
from hpc_train.job.spec import JobSpec
from hpc_train.site.tables import key_types

FAILED = "sbatch failed with code 1: sbatch: error: Batch job submission failed: "


@pytest.mark.parametrize(
    ("said", "advice"),
    [
        ("Invalid qos specification", "--qos or [job].qos"),
        ("Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)", "a limit of your"),
        ("User's group not permitted to use this partition", "--queue or [job].queue"),
        ("Requested partition configuration not available now", "closed"),
        ("No partition specified or system default partition", "name one"),
        ("Time limit specification required, but not provided", "--walltime"),
        ("CPU count per node can not be satisfied", "--cpus-per-rank"),
        ("Invalid generic resource (gres) specification", "gpu_request"),
        ("Access denied to requested reservation", "[job].reservation"),
        ("Pathname of a file, directory or other parameter too long", "too long"),
        ("sbatch: unrecognized option '--segment=4'", "does not take '--segment'"),
        # of two lines the special one: the second is true of any request
        ("sbatch: error: Memory specification can not be satisfied … Requested node configuration is not available",
         "--memory"),
    ],
)  # fmt: skip
def test_what_other_clusters_say_is_told_too(said: str, advice: str) -> None:
    told = explain_refusal(FAILED + said)
    assert told is not None and advice in told


def test_unknown_words_are_not_guessed_at() -> None:
    assert explain_refusal(FAILED + "The Moon is in the wrong phase") is None
    assert explain_refusal("") is None


def test_values_that_were_asked_for_stand_with_their_keys() -> None:
    told = explain_refusal("Invalid partition name specified", {"job.queue": "it's"})
    assert told is not None and '--queue or [job].queue (now "it\'s")' in told
    assert "now" not in str(explain_refusal("Invalid partition name specified", {"job.queue": None}))


def test_every_key_exists_and_has_the_flag_that_submit_has() -> None:
    flags = {str(each.name).replace("__", "."): each.opts[0] for each in submit.params}
    known = set(key_types(JobSpec))
    for refusal in load_refusals():
        for key in refusal.keys:
            assert key in known or key.startswith("site file"), key
            assert (
                place(key).startswith(f"{flags[key]} or ") == (key in flags) if key in flags else "--" not in place(key)
            )
