"""Which checkpoints to delete after a commit: a pure decision.

Apart because deleting the wrong one cannot be undone. Standard library only.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

__all__ = ["to_delete"]


def to_delete(committed: Sequence[int], *, keep: int | None, newest: int, damaged: Collection[int] = ()) -> list[int]:
    """Steps that may go, rising.

    Args:  committed: steps with a readable COMMIT.   keep: how many good ones stay (>= 1); None keeps all.
        newest: the step just committed, which always stays.   damaged: steps known not to load; they do not count
        as kept, and go once `keep` good ones are newer.
    """
    if keep is None:
        return []
    good = sorted((step for step in committed if step not in damaged or step == newest), reverse=True)
    kept = set(good[:keep]) | {newest}
    if len(kept) < keep:
        return []
    oldest = min(kept)
    return sorted(step for step in committed if step not in kept and step < oldest)
