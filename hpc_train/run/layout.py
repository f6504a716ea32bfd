"""Every path of a run, in one place.

Apart so that no other module joins strings into file names: moving a record is one edit here. Standard library only.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hpc_train.files import read_json, why_unreadable

__all__ = [
    "FORMAT",
    "LAUNCH_FORMAT",
    "LAUNCH_VERSION",
    "VERSION",
    "AttemptDir",
    "RunDir",
    "SubmissionDir",
    "find_run_format",
]

FORMAT = "hpc-train-run"
VERSION = 1
LAUNCH_FORMAT = "hpc-train-launch"
LAUNCH_VERSION = 1

_ATTEMPT = re.compile(r"attempt-(\d{3,})")
_SUBMISSION = re.compile(r"submission-(\d{2,})")


@dataclass(frozen=True)
class SubmissionDir:
    """One submission: what was asked, of which site, and what became of it at the scheduler."""

    path: Path
    number: int

    @property
    def job(self) -> Path:
        """The job record as it was asked (JSON)."""
        return self.path / "job.json"

    @property
    def site(self) -> Path:
        """The site record as it was then (JSON)."""
        return self.path / "site.json"

    @property
    def placement(self) -> Path:
        """Nodes, ranks and limits that were planned (JSON)."""
        return self.path / "placement.json"

    @property
    def launch(self) -> Path:
        """What the launch shim needs, readable with the standard library (JSON)."""
        return self.path / "launch.json"

    @property
    def script(self) -> Path:
        """The batch script."""
        return self.path / "script.sbatch"

    @property
    def origins(self) -> Path:
        """Where each value of a later submission's request came from (JSON); the first one's stand in run.json."""
        return self.path / "origins.json"

    @property
    def submit(self) -> Path:
        """Job id and scheduler of this submission (JSON); absent until the scheduler took it."""
        return self.path / "submit.json"

    @property
    def jobs(self) -> Path:
        """Further jobs of this submission, one JSON object a line: successors, and which of them were not needed."""
        return self.path / "jobs.jsonl"

    @property
    def batch_log(self) -> Path:
        """Output of the batch shell over all attempts."""
        return self.path / "batch.log"


@dataclass(frozen=True)
class AttemptDir:
    """One attempt: exit marks, logs, the stop request and the decision."""

    path: Path
    number: int

    @property
    def run(self) -> RunDir:
        """The run that it belongs to."""
        return RunDir(self.path.parent)

    @property
    def exits(self) -> Path:
        """Directory of the ranks' exit marks."""
        return self.path / "exit"

    def error_file(self, rank: int) -> Path:
        """Where the rank's program, under torch's @record, writes why it failed (JSON, torchrun's format)."""
        return self.exits / f"error-{rank}.json"

    @property
    def ready(self) -> Path:
        """Directory with one file a rank whose shim is up; each holds the node's name."""
        return self.path / "ready"

    @property
    def finished(self) -> Path:
        """Directory with one file a rank whose program has ended cleanly."""
        return self.path / "finished"

    @property
    def waiting(self) -> Path:
        """Directory with one file a rank that waits for others while a peer has ended already."""
        return self.path / "waiting"

    @property
    def logs(self) -> Path:
        """Directory of the ranks' output."""
        return self.path / "logs"

    @property
    def launcher_log(self) -> Path:
        """What srun itself printed: not the ranks' output."""
        return self.path / "launcher.log"

    @property
    def stop(self) -> Path:
        """The stop request of the batch shell (JSON: reason, deadline)."""
        return self.path / "stop.json"

    @property
    def stopped(self) -> Path:
        """The words of a process that stopped on request under a launcher of its own, as torchrun (JSON)."""
        return self.path / "stopped.json"

    @property
    def rendezvous(self) -> Path:
        """Address of the store that rank 0 hosts (JSON)."""
        return self.path / "rendezvous.json"

    @property
    def done(self) -> Path:
        """Written once every rank has ended cleanly: by rank 0's monitor, or by the decision where that was killed."""
        return self.path / "DONE"

    @property
    def started(self) -> Path:
        """Where and when the batch shell started the attempt (JSON)."""
        return self.path / "started.json"

    @property
    def decision(self) -> Path:
        """What was decided at the end of the attempt (JSON)."""
        return self.path / "decision.json"

    @property
    def not_continued(self) -> Path:
        """Why no attempt was begun after this one, though its decision was to go on (text)."""
        return self.path / "not-continued.txt"


@dataclass(frozen=True)
class RunDir:
    """The directory of one run."""

    path: Path

    @property
    def name(self) -> str:
        """The run's name, which is its directory's."""
        return self.path.name

    @property
    def record(self) -> Path:
        """Format, version, name and origin of the run (JSON)."""
        return self.path / "run.json"

    @property
    def owner(self) -> Path:
        """Which attempt owns the run (JSON: attempt, token)."""
        return self.path / "owner"

    @property
    def cancelled(self) -> Path:
        """Mark of a run that its user cancelled; checked before any continuation."""
        return self.path / "cancelled"

    @property
    def claim(self) -> Path:
        """File that a command locks while it lets the run go on."""
        return self.path / ".claim.lock"

    @property
    def journal(self) -> Path:
        """Directory of the journal, one file a writer."""
        return self.path / "journal"

    @property
    def checkpoints(self) -> Path:
        """Default root of the run's checkpoints."""
        return self.path / "checkpoints"

    def submission(self, number: int) -> SubmissionDir:
        """Paths of one submission, whether it exists or not."""
        return SubmissionDir(self.path / f"submission-{number:02d}", number)

    def attempt(self, number: int) -> AttemptDir:
        """Paths of one attempt, whether it exists or not."""
        return AttemptDir(self.path / f"attempt-{number:03d}", number)

    def submissions(self) -> list[SubmissionDir]:
        """The submissions that exist, in order."""
        return [SubmissionDir(self.path / name, number) for number, name in self._numbered(_SUBMISSION)]

    def newest_submission(self) -> SubmissionDir | None:
        """The newest submission that is whole (launch.json is written last): its jobs alone may start attempts."""
        return next((each for each in reversed(self.submissions()) if each.launch.exists()), None)

    def attempts(self) -> list[AttemptDir]:
        """The attempts that exist, in order."""
        return [AttemptDir(self.path / name, number) for number, name in self._numbered(_ATTEMPT)]

    def _numbered(self, pattern: re.Pattern[str]) -> list[tuple[int, str]]:
        def matches() -> Iterator[tuple[int, str]]:
            for name in os.listdir(self.path):
                if match := pattern.fullmatch(name):
                    yield int(match[1]), name

        return sorted(matches())


def find_run_format(path: Path) -> str | None:
    """Why a directory is not a run of this version, in words for the user; None where it is one.

    Raises: nothing; an unreadable record is a reason too.
    """
    try:
        record = read_json(path / "run.json")
    except FileNotFoundError:
        return f"{path} holds no run (there is no run.json)"
    except (OSError, ValueError) as error:
        return f"{why_unreadable(path / 'run.json', error)}: without it this is no run, but its checkpoints stay whole"
    if not isinstance(record, dict) or record.get("format") != FORMAT:
        return f"{path}/run.json is not the record of an hpc-train run"
    if record.get("version") != VERSION:
        return (
            f"{path}: run format version {record.get('version')!r}, this hpc-train reads version {VERSION};"
            " use the hpc-train that wrote it"
        )
    return None
