"""Frameworks that bring their own loop: a callback each, so that their runs stop, commit and go on as ours do.

Apart because a framework saves in its own way and format; this room adds what the run needs to know of it: when a
checkpoint is complete on all ranks, which one to resume from, and how to leave. Importing the room imports none of
them: `hpc_train.integrations.huggingface`, `hpc_train.integrations.lightning`.
"""

from __future__ import annotations

from hpc_train.integrations.completion import newest_checkpoint

__all__ = ["newest_checkpoint"]
