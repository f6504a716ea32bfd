"""srun's own words tell which node went away when no rank could write a mark."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpc_train.recovery.evidence import decide_attempt
from hpc_train.recovery.launcher_log import ranks_seen_to_end
from tests.run.records import make_run, start_attempt

# Printed by Slurm 22.05.8 when host n3, with tasks 4 and 5, was crashed under a step of 8 tasks.
NODE_CRASH = """srun: Job step aborted: Waiting up to 7 seconds for job step to finish.
srun: error: n4: tasks 6-7: Killed
srun: launch/slurm: _step_signal: Terminating StepId=13.0
srun: error: n1: tasks 0-1: Killed
srun: error: n2: tasks 2-3: Killed
srun: error: Timed out waiting for job step to complete
"""


@pytest.mark.parametrize(
    ("text", "ranks"),
    [
        (NODE_CRASH, {0, 1, 2, 3, 6, 7}),
        ("srun: error: n2: task 3: Exited with exit code 137\n", {3}),
        ("srun: error: n2: tasks 0,4-5,9: Out Of Memory\n", {0, 4, 5, 9}),
        ("", set()),
        # a program's own words, or a torn line, are no evidence
        ("rank says srun: error: n2: task 3: Killed\nsrun: error: n2: tasks 4-: Killed\nsrun: error: n2: tas", set()),
    ],
)
def test_the_tasks_that_srun_names_are_read(text: str, ranks: set[int]) -> None:
    assert ranks_seen_to_end(text) == ranks


def test_a_range_of_any_length_is_read_in_bounded_time() -> None:
    assert len(ranks_seen_to_end("srun: error: n2: tasks 0-99999999999999: Killed\n")) <= 10_000_001


def test_where_all_ranks_are_silent_the_node_that_srun_did_not_hear_of_is_named(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    attempt = start_attempt(run, {rank: f"n{rank // 2 + 1}" for rank in range(8)})
    attempt.launcher_log.write_text(NODE_CRASH)
    decision = decide_attempt(run, attempt, submission=0, launcher_code=14)
    assert (decision.failure, decision.node, decision.rank) == ("node_fail", "n3", 4)


def test_where_srun_heard_of_all_no_node_is_named(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    attempt = start_attempt(run, {0: "n1", 1: "n1", 2: "n1", 3: "n1"})
    attempt.launcher_log.write_text("srun: error: n1: tasks 0-3: Killed\n")
    assert decide_attempt(run, attempt, submission=0, launcher_code=137).failure == "unknown"
