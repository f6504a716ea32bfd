"""Makes run directories and marks for tests of what reads them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hpc_train.files import write_json
from hpc_train.run.layout import FORMAT, VERSION, AttemptDir, RunDir
from hpc_train.run.marks import ExitMark
from hpc_train.run.ownership import take_ownership


def make_run(path: Path, **launch: Any) -> RunDir:
    """A run with one submission and no attempt."""
    run = RunDir(path)
    path.mkdir(parents=True)
    run.journal.mkdir()
    write_json(run.record, {"format": FORMAT, "version": VERSION})
    run.submission(0).path.mkdir()
    record = {"num_ranks": 4, "ranks_per_node": 2, "max_failures": 3, "max_attempts": 50, "can_continue": True}
    write_json(run.submission(0).launch, {**record, **launch})
    return run


def start_attempt(run: RunDir, nodes: dict[int, str]) -> AttemptDir:
    """The next attempt, with ranks that have started on nodes."""
    attempt = run.attempt(take_ownership(run).attempt)
    for rank, node in nodes.items():
        (attempt.ready / str(rank)).write_text(node)
    return attempt


def finish(attempt: AttemptDir, *ranks: int, abrupt: bool = False) -> None:
    """These ranks have ended cleanly."""
    for rank in ranks:
        record = {"node": f"n{rank // 2}", "time": 100.0 + rank, "abrupt": abrupt}
        (attempt.finished / str(rank)).write_text(json.dumps(record))


def mark(failure: str, rank: int = 1, **changes: Any) -> ExitMark:
    """A mark that a rank wrote of itself."""
    values = {"writer": rank, "rank": rank, "node": f"n{rank // 2}", "failure": failure, "cause": failure, "code": 1}
    return ExitMark(**{**values, "step": 3, "time": 100.0, **changes})
