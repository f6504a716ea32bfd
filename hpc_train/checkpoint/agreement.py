"""One outcome for all ranks: a failure anywhere becomes the same error everywhere.

Apart because save and load are a row of local steps with an agreement after each: no rank walks on, or waits in a
collective, after another has failed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from hpc_train import errors
from hpc_train.errors import CheckpointError, HpcTrainError, NoSpaceError, from_os_error
from hpc_train.world import World

__all__ = ["DamagedCheckpoint", "agree", "attempt", "together"]

T = TypeVar("T")


class DamagedCheckpoint(CheckpointError):
    """The stored bytes are not what was saved: an older checkpoint may be tried."""


def attempt(act: Callable[[], T], doing: str) -> tuple[T | None, HpcTrainError | None]:
    """Run a local step: (its result, None) or (None, the typed error)."""
    try:
        return act(), None
    except HpcTrainError as error:
        return None, error
    except OSError as error:
        return None, from_os_error(error, doing)
    except MemoryError:
        return None, CheckpointError(f"{doing}: out of memory")
    except Exception as error:  # noqa: BLE001 - any failure of one rank must reach the others
        failure = CheckpointError(f"{doing}: {type(error).__name__}: {error}")
        failure.__cause__ = error
        return None, failure


def agree(world: World, error: HpcTrainError | None) -> None:
    """Raise the same error on all ranks if any rank has one. Collective.

    A full disk wins over what it caused elsewhere; else damage; else the lowest rank's error. The text names the rank.
    """
    verdicts = world.allgather(None if error is None else (type(error).__name__, str(error)))
    failed = [(rank, *verdict) for rank, verdict in enumerate(verdicts) if verdict is not None]
    if not failed:
        return
    order = [NoSpaceError.__name__, DamagedCheckpoint.__name__]
    failed.sort(key=lambda item: (order.index(item[1]) if item[1] in order else len(order), item[0]))
    rank, name, text = failed[0]
    where = "" if world.size == 1 else f"rank {rank} of {world.size}: "
    others = "" if len(failed) == 1 else f" ({len(failed) - 1} other ranks failed too)"
    kind = DamagedCheckpoint if name == DamagedCheckpoint.__name__ else getattr(errors, name, CheckpointError)
    raise kind(f"{where}{text}{others}") from error


def together(world: World, act: Callable[[], T], doing: str) -> T:
    """`attempt` on every rank, then `agree`. Collective.

    Returns: this rank's result. Raises: the same error on all ranks.
    """
    result, error = attempt(act, doing)
    agree(world, error)
    return result  # type: ignore[return-value]  # no error: it is the result
