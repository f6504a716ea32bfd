"""[recovery] backoff on the real cluster: after a failure the job waits so long, whichever way it goes on."""

from __future__ import annotations

import re
import time
from datetime import datetime

import pytest

from tests.e2e.lab import Lab
from tests.e2e.test_slurm_successor import with_site

BACKOFF_S = 300


@pytest.mark.parametrize("continuation", ["requeue", "successor"])
def test_after_a_failure_the_job_waits_until_the_back_off_is_over(slurm_lab: Lab, continuation: str) -> None:
    lab = with_site(slurm_lab, f"waits-{continuation}", f'extends = "slurm-cluster"\ncontinuation = "{continuation}"\n')
    program = ("bash", "-c", "kill -SEGV $$")
    run = lab.submit("--rendezvous", "none", "--walltime", "10", "--backoff", f"{BACKOFF_S}s", "--", *program)
    lab.wait_decided(run, 0)
    decided = time.time()

    def waits() -> str:
        status = lab.status(run)
        assert len(run.attempts()) == 1, "it has started"
        return lab.hpc_train("why", run.path).stdout if status["reason"] == "BeginTime" else ""

    try:
        said = lab.wait_for("a job that waits for its time", run, waits, 60)
        start = re.search(r"Slurm expects to start it at (\d{4}-\S+T[\d:]+)", said)
        assert start is not None and "[recovery] backoff" in said, said
        # its own wait is 6 s here; what lies between the decision and the request may take some seconds
        assert BACKOFF_S - 60 < datetime.fromisoformat(start[1]).timestamp() - decided < BACKOFF_S + 60
    finally:
        lab.hpc_train("cancel", run.path)
