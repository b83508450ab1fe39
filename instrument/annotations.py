"""Annotations: a program names stretches of its own time, and says where its decode steps are.

Outside of `efaprof record` they do nothing and load nothing. Under it they write into the thread's own ring through
libefaprof.so, which is loaded without cffi: its calls keep the GIL, so that no other thread gets its turn there.
Whatever goes wrong, the program goes on unrecorded.
"""

from __future__ import annotations

import ctypes
import functools
import inspect
import os
from abc import ABC, abstractmethod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeAlias, TypeVar, cast, overload

from efaprof import env
from efaprof.errors import EfaprofError
from efaprof.libraries import ABI_VERSION, lib_path
from efaprof.trace.layers import Layer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Generator
    from types import TracebackType

    Function = TypeVar("Function", bound=Callable[..., Any])
    StepKind: TypeAlias = Literal["decode", "prefill", "mixed", "warm-up"]

_RANGE, _STEP = 1, 3  # enum efaprof_span_what
_KINDS: Final = {None: 0, "decode": 1, "prefill": 2, "mixed": 3, "warm-up": 4}  # enum efaprof_step_kind
_OTHER: Final = 5
_UNSAID: Final = 0xFFFFFFFF  # a count that the program did not give
_LAYERS: Final = {layer.value: 1 + row for row, layer in enumerate(Layer)}
_STEP_NAME: Final = "step"


def _load() -> Any:
    """The core, under record; else None. What is wrong with it stands in the run's log."""
    if not os.environ.get(env.RING_DIR):
        return None
    try:
        core = _opened(str(lib_path()))
    except (EfaprofError, OSError, AttributeError) as error:
        _log(f"annotations of process {os.getpid()} are not recorded: {error}")
        return None
    return core


def _opened(path: str) -> Any:
    core = ctypes.PyDLL(path)
    core.efaprof_abi.restype = ctypes.c_uint32
    if core.efaprof_abi() >> 16 != ABI_VERSION:
        raise EfaprofError(f"{path} is of another version")
    core.efaprof_begin.restype = ctypes.c_uint64
    core.efaprof_begin.argtypes = (ctypes.c_uint32, ctypes.c_char_p, ctypes.c_uint64)
    core.efaprof_end.restype = None
    core.efaprof_end.argtypes = (
        ctypes.c_uint64, ctypes.c_uint32, ctypes.c_char_p, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint64,
    )  # fmt: skip
    core.efaprof_stop.restype = None
    core.efaprof_stop.argtypes = (ctypes.c_int,)
    core.efaprof_set_producer(b"python")
    return core


def _log(text: str) -> None:
    """A line in the run's log, when it can be written."""
    run = os.environ.get(env.RUN_DIR)
    try:
        if run:
            with (Path(run) / "log.txt").open("a", encoding="utf-8") as log:
                log.write(text + "\n")
    except OSError:
        return


_core: Any = _load()


class _Nothing:
    """An annotation that is not recorded: the same object each time."""

    __slots__ = ("batch", "kind", "tokens")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def __call__(self, function: Function) -> Function:
        return function


_NOTHING: Final = _Nothing()


class Annotation(ABC):
    """A named stretch: what happens between entering and leaving it, or in each call of what it decorates."""

    __slots__ = ("_begin", "_name")
    _what = _RANGE

    def __init__(self, name: str) -> None:
        self._name = name.encode(errors="replace")

    def _category(self) -> int:
        return 0

    def _payload(self) -> int:
        return 0

    @abstractmethod
    def _again(self) -> Annotation:
        """Another one like this, for a call of a decorated function."""

    def __enter__(self) -> Self:
        self._begin = _core.efaprof_begin(self._what, self._name, len(self._name))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        name = self._name
        _core.efaprof_end(self._begin, self._what, name, len(name), self._category(), self._payload())

    def __call__(self, function: Function) -> Function:
        """The function, annotated at each call; generators and coroutines from their first step to their last."""
        return _decorated(function, self)


class Span(Annotation):
    """A stretch with a name; `layer` says what the program does there."""

    __slots__ = ("_layer",)

    def __init__(self, name: str, layer: str | None = None) -> None:
        super().__init__(name)
        self._layer = layer

    def _category(self) -> int:
        return _LAYERS.get(self._layer, 0) if self._layer is not None else 0

    def _again(self) -> Span:
        return Span(self._name.decode(), self._layer)


class Step(Annotation):
    """A step; what it is may still be set while it runs."""

    __slots__ = ("batch", "kind", "tokens")
    _what = _STEP

    def __init__(self, name: str, kind: str | None, tokens: int | None, batch: int | None) -> None:
        super().__init__(name)
        self.kind, self.tokens, self.batch = kind, tokens, batch

    def _category(self) -> int:
        return _KINDS.get(self.kind, _OTHER)

    def _payload(self) -> int:
        return _count(self.batch) << 32 | _count(self.tokens)

    def _again(self) -> Step:
        return Step(self._name.decode(), self.kind, self.tokens, self.batch)


def _count(value: int | None) -> int:
    """A count as it is recorded; one that is none, or out of range, was not given."""
    return value if isinstance(value, int) and 0 <= value < _UNSAID else _UNSAID


def _decorated(function: Function, annotation: Annotation) -> Function:
    again = annotation._again
    made: Callable[..., Any]
    if inspect.iscoroutinefunction(function):

        async def awaited(*args: Any, **options: Any) -> Any:
            with again():
                return await function(*args, **options)

        made = awaited
    elif inspect.isasyncgenfunction(function):

        async def streamed(*args: Any, **options: Any) -> AsyncIterator[Any]:
            with again():
                async for value in function(*args, **options):
                    yield value

        made = streamed
    elif inspect.isgeneratorfunction(function):

        def generated(*args: Any, **options: Any) -> Generator[Any, Any, Any]:
            with again():
                return (yield from function(*args, **options))

        made = generated
    else:

        def called(*args: Any, **options: Any) -> Any:
            with again():
                return function(*args, **options)

        made = called
    return cast("Function", functools.wraps(function)(made))


@overload
def step(
    name: str = ..., *, kind: StepKind | None = ..., tokens: int | None = ..., batch: int | None = ...
) -> Step: ...
@overload
def step(name: Function) -> Function: ...
def step(
    name: Any = _STEP_NAME, *, kind: str | None = None, tokens: int | None = None, batch: int | None = None
) -> Any:
    """One step of the model, as a context manager or a decorator.

    `kind` is decode, prefill, mixed or warm-up; only decode steps are analysed, and a step without a kind is one when
    it communicates as much as the others do. `tokens` are all tokens that the step accepts, `batch` the sequences that
    it serves (without it, one): tokens / batch is what each sequence advances by. All three may be set on what `with`
    gives while it runs. Steps within steps are part of the outer one.
    """
    if _core is None:
        return name if callable(name) else _NOTHING
    if callable(name):
        return Step(_STEP_NAME, None, None, None)(name)
    return Step(name, kind, tokens, batch)


@overload
def span(name: str, *, layer: str | None = ...) -> Span: ...
@overload
def span(name: Function) -> Function: ...
def span(name: Any, *, layer: str | None = None) -> Any:
    """A named stretch of this thread's time, as a context manager or a decorator.

    `layer="compute"` says that the program computes there: in the split of a step, that time is then compute.
    """
    if _core is None:
        return name if callable(name) else _NOTHING
    if callable(name):
        return Span(getattr(name, "__qualname__", _STEP_NAME))(name)
    return Span(name, layer)


def stop() -> None:
    """Record nothing of this process from here on, operations included, until `start()`."""
    if _core is not None:
        _core.efaprof_stop(1)


def start() -> None:
    """Record again after `stop()`. It does not start a recording: `efaprof record` does."""
    if _core is not None:
        _core.efaprof_stop(0)


def is_recording() -> bool:
    """Whether something would be recorded now."""
    return _core is not None and bool(_core.efaprof_recording())
