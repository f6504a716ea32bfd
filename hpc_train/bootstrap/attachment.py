"""What ties a World to the run it works for: the fence, the journal and the watchdog's page.

Apart from the Worlds because all kinds share it, and outside a run it is absent. Standard library only.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from hpc_train.launch.page import Page, attached_page
from hpc_train.run.journal import Journal
from hpc_train.run.layout import RunDir
from hpc_train.run.ownership import check_ownership, read_ownership

__all__ = ["Attachment", "find_attachment"]


class Attachment:
    """The run, attempt and page of this process; every method does nothing outside a run.

    Args:  run: None outside a run.   writes: whether this rank writes the journal (rank 0).
    """

    def __init__(self, run: RunDir | None, attempt: int, *, token: str, page: Page | None, writes: bool) -> None:
        self.run = run
        self.attempt = attempt
        self._token = token
        self._page = page
        self._journal = Journal(run, "rank0", attempt) if run is not None and writes else None

    @property
    def run_dir(self) -> Path | None:
        """The run's directory, None outside a run."""
        return None if self.run is None else self.run.path

    def fence(self) -> None:
        """Raise Superseded if another attempt owns the run now."""
        if self.run is not None:
            check_ownership(self.run, self._token)

    def record(self, event: str, **fields: Any) -> None:
        """Append to the journal on rank 0. A step is not made durable: losing the last few tells nothing wrong."""
        if self._journal is not None:
            self._journal.append(event, durable=event != "step", **fields)

    @contextlib.contextmanager
    def phase(self, name: str, limit_s: float | None = None) -> Iterator[None]:
        """Tell the watchdog what this rank does now; an outer phase's limit goes on counting."""
        if self._page is None:
            yield
            return
        key = self._page.enter(name, limit_s)
        try:
            yield
        finally:
            self._page.leave(key)


def find_attachment(rank: int, environ: Mapping[str, str] | None = None) -> Attachment:
    """The attachment that the launch shim left in the environment; an empty one outside a run.

    Raises: Superseded if the run has another owner already; StorageError if its owner record cannot be read.
    """
    env = os.environ if environ is None else environ
    path = env.get("HPC_TRAIN_RUN_DIR")
    if not path:
        return Attachment(None, 0, token="", page=None, writes=False)
    run, attempt = RunDir(Path(path)), int(env["HPC_TRAIN_ATTEMPT"])
    token = env.get("HPC_TRAIN_TOKEN", "")
    if not token:  # the batch shell hands it down; a shell that did not: take it while it is surely ours
        owner = read_ownership(run)
        token = owner.token if owner is not None and owner.attempt == attempt else "-"
    check_ownership(run, token)
    return Attachment(run, attempt, token=token, page=attached_page(), writes=rank == 0)
