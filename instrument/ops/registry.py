"""Which engine a number in a torch operator means: operators take tensors and numbers, not objects."""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING, Protocol

from efaprof.errors import UsageError

if TYPE_CHECKING:
    from efaprof.instrument.ops.engine import EngineOptions


class Registered(Protocol):
    """What every kernel of the operators, whatever its device, can rely on."""

    options: EngineOptions


_engines: dict[int, Registered] = {}
_numbers = itertools.count(1)
_lock = threading.Lock()


def add(engine: Registered) -> int:
    """Number of the engine until `remove`."""
    with _lock:
        number = next(_numbers)
        _engines[number] = engine
    return number


def find(number: int) -> Registered:
    """The engine with this number; UsageError when it is closed."""
    try:
        return _engines[number]
    except KeyError:
        raise UsageError(f"there is no open engine {number}", hint="give the handle of an Engine") from None


def remove(number: int) -> None:
    """Forget the number, if there is one."""
    with _lock:
        _engines.pop(number, None)
