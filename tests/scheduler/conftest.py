"""The stage on which batch scripts are played."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.scheduler.batch_stage import INTERPRETER, Stage
from tests.scheduler.making import log_call, make_run, write_program


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    """A job of one rank on a Slurm site that warns; its run directory has an odd name."""
    run = make_run(tmp_path / "runs 50%" / "r-1")
    bin_dir = tmp_path / "bin"
    write_program(bin_dir, "sinfo", "exit 1")  # nobody knows how many nodes there are
    refuses = '[ ! -e "${0%/*}/$1.refused" ] || { echo "Invalid job id specified" >&2; exit 1; }'
    for name in ("scontrol", "squeue"):
        write_program(bin_dir, name, f"{log_call(bin_dir / 'calls')}\n{refuses}")
    write_program(
        bin_dir, "srun", log_call(bin_dir / "calls") + '\nwhile [ "${1:0:2}" = -- ]; do shift; done\nexec "$@"'
    )
    write_program(bin_dir, "python", INTERPRETER)
    made = Stage(run, bin_dir, run.submission(0).script)
    made.render()
    made.answers()
    yield made
    for process in made.running:
        if process.poll() is None:
            process.kill()
            process.communicate(timeout=10)
