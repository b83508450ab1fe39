"""An iterator run ahead in a thread: while the caller works on one item, the next is made; numpy lets go of the GIL."""

from __future__ import annotations

import queue
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Iterator

T = TypeVar("T")
_POLL_S = 0.1


@dataclass(frozen=True, slots=True)
class _End:
    error: BaseException | None = None


def ahead(items: Iterator[T]) -> Iterator[T]:
    """The same items in the same order, at most one of them made in advance; errors come where they belong."""
    ready: queue.Queue[T | _End] = queue.Queue(1)
    is_left = threading.Event()

    def put(item: T | _End) -> bool:
        while not is_left.is_set():
            try:
                ready.put(item, timeout=_POLL_S)
            except queue.Full:
                continue
            return True
        return False

    def run() -> None:
        try:
            if all(put(item) for item in items):
                put(_End())
        except BaseException as error:  # noqa: BLE001 - raised in the caller's thread
            put(_End(error))

    thread = threading.Thread(target=run, name="read ahead", daemon=True)
    thread.start()
    try:
        while not isinstance(item := ready.get(), _End):
            yield item
        if item.error is not None:
            raise item.error
    finally:
        is_left.set()
        thread.join()
