"""Working ahead: an iterator runs in a thread and a bounded queue holds what it gave.

Apart from the stream because ending is the hard part: the thread ends with its consumer, its errors reach the
consumer, and neither a full queue nor the end of the interpreter leaves it hanging.
"""

from __future__ import annotations

import atexit
import contextlib
import queue
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

__all__ = ["Prefetcher"]

T = TypeVar("T")
_End = tuple[BaseException | None]


class Prefetcher(Generic[T]):
    """Runs `produce()` in a thread, at most `depth` results ahead.

    `get` gives the results in order, then None; it raises what the iterator raised. `close` may be called at any time.
    """

    def __init__(self, produce: Callable[[], Iterator[T]], *, depth: int, name: str) -> None:
        self._queue: queue.Queue[T | _End] = queue.Queue(maxsize=depth)
        self._stop = threading.Event()
        # A daemon, because the interpreter waits for other threads before it runs atexit; close() joins it there.
        # The thread must not hold this object, or it would keep its own owner alive.
        self._thread = threading.Thread(target=_run, args=(produce, self._queue, self._stop), name=name, daemon=True)
        self._thread.start()
        self._unregister = _close_at_exit(self)

    def get(self) -> T | None:
        """The next result, or None after the last. Blocks. Raises what the iterator raised."""
        item = self._queue.get()
        if not isinstance(item, tuple):
            return item
        self._queue.put(item)  # so that a further get does not wait for ever
        if item[0] is not None:
            raise item[0]
        return None

    def close(self) -> None:
        """Stop the thread and wait for it: at most for the one read it is in."""
        self._stop.set()
        while self._thread.is_alive():
            # The thread waits in put() at most once more: it looks at the event after each.
            with contextlib.suppress(queue.Empty):
                self._queue.get_nowait()
            self._thread.join(timeout=0.01)
        self._unregister()


def _run(produce: Callable[[], Iterator[T]], results: queue.Queue[T | _End], stop: threading.Event) -> None:
    end: _End = (None,)
    try:
        for item in produce():
            results.put(item)
            if stop.is_set():
                return
    except BaseException as error:  # noqa: BLE001 - carried to the consumer and raised there
        end = (error,)
    results.put(end)


def _close_at_exit(prefetcher: Prefetcher[T]) -> Callable[[], None]:
    reference = weakref.ref(prefetcher)

    def close() -> None:
        alive = reference()
        if alive is not None:
            alive.close()

    atexit.register(close)
    return lambda: atexit.unregister(close)
