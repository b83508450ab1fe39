"""A small Mixture-of-Experts server on one host, for recording: ranks are processes, experts are shared out over them.

    efaprof record -- python examples/serve.py --arm proxy --port 8000
    python examples/load.py --url http://127.0.0.1:8000 --concurrency 4 --requests 32 --isl 32 --osl 32 -o results/proxy

Weights are random and tokens are bytes: it answers nonsense, but it does what a server does. POST /v1/completions takes
OpenAI's `prompt` (text, or token numbers), `max_tokens` and `stream`; decoding is greedy. On an emulated EFA device:

    efaprof softefa -- efaprof record -- python examples/serve.py --arm gdaki

With `--device cuda` the model and the exchange of tokens are kernels on this machine's GPUs (docs/gpu.md), and decode
steps are CUDA graphs unless `--eager` is given.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import multiprocessing
import os
import queue
import signal
import sys
import tempfile
import threading
import time
import uuid
from dataclasses import replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import moe_rank
from batching import Batcher, Sequence
from moe_rank import VOCABULARY, Shape

from efaprof.errors import EfaprofError
from efaprof.instrument.mps import shared_gpus

STOP_S = 10.0  # longest time for the ranks to end
MODEL = "efaprof-moe"


class RankEnded(Exception):
    """A rank is gone; the message says which and how."""


class Ranks:
    """The processes of the ranks."""

    def __init__(self, job: moe_rank.Job) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes = []
        for rank in range(job.ranks):
            here, there = spawn.Pipe()
            process = spawn.Process(target=moe_rank.run, args=(job, rank, there), name=f"rank{rank}", daemon=True)
            process.start()
            there.close()
            self._pipes.append(here)
            self._processes.append(process)

    def start(self) -> None:
        """Bring them together; returns when all are ready."""
        contacts = self._from_all()
        self._to_all([contacts] * len(self._pipes))
        self._from_all()

    def step(self, steps: list[moe_rank.Step]) -> list[list[int]]:
        """One step of all; what each found."""
        self._to_all(steps)
        return [] if steps[0].kind is None else self._from_all()

    def stop(self) -> None:
        """Let them end; those that do not are killed."""
        for pipe in self._pipes:
            try:
                pipe.send(None)
            except OSError:
                continue  # it has ended
        until = time.monotonic() + STOP_S
        for process in self._processes:
            process.join(max(until - time.monotonic(), 0.1))
            if process.is_alive():
                process.kill()
                process.join()

    def _to_all(self, values: list[Any]) -> None:
        for pipe, value in zip(self._pipes, values, strict=True):
            try:
                pipe.send(value)
            except OSError:
                raise self._ended() from None

    def _from_all(self) -> list[Any]:
        found: dict[Connection, Any] = {}
        while len(found) < len(self._pipes):
            ready = wait([one for one in self._pipes if one not in found])
            for pipe in [one for one in self._pipes if one in ready]:
                try:
                    found[pipe] = pipe.recv()
                except (EOFError, OSError):
                    raise self._ended() from None
        return [found[pipe] for pipe in self._pipes]

    def _ended(self) -> RankEnded:
        """Which rank is to blame: the one that a signal killed, else the first that failed. The others soon follow."""
        until = time.monotonic() + STOP_S / 2
        while time.monotonic() < until and any(process.exitcode is None for process in self._processes):
            wait([process.sentinel for process in self._processes if process.exitcode is None], timeout=0.5)
        for process in sorted(self._processes, key=lambda one: one.exitcode or 0):
            if process.exitcode is not None and process.exitcode < 0:
                name = signal.Signals(-process.exitcode).name
                return RankEnded(f"{process.name} (pid {process.pid}) was killed by {name}")
        failed = next((process for process in self._processes if process.exitcode), self._processes[0])
        return RankEnded(f"{failed.name} (pid {failed.pid}) ended with exit code {failed.exitcode}")


class BadRequest(Exception):
    """What the client asked for cannot be."""


class Stepper(threading.Thread):
    """Makes one step after the other, in a thread of its own: what clients are sent does not hold the ranks up."""

    def __init__(self, ranks: Ranks, batcher: Batcher, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(name="steps", daemon=True)
        self.failed: asyncio.Future[None] = loop.create_future()  # RankEnded when a rank does not last
        self._ranks, self._batcher, self._loop = ranks, batcher, loop
        self._arrived: queue.SimpleQueue[Sequence | None] = queue.SimpleQueue()

    def add(self, sequence: Sequence) -> None:
        """Take a request in."""
        self._arrived.put(sequence)

    def stop(self) -> None:
        """Make no further step."""
        self._arrived.put(None)
        self.join(STOP_S)

    def run(self) -> None:
        """Steps as long as there are requests, else a pause."""
        try:
            while self._take_in():
                if self._batcher.has_work:
                    found = self._ranks.step(self._batcher.next_step())
                    self._loop.call_soon_threadsafe(_deliver, self._batcher.take(found))
                if not self._batcher.has_work and self._arrived.empty():
                    self._ranks.step(self._batcher.pause())
        except RankEnded as error:
            self._loop.call_soon_threadsafe(self.failed.set_exception, error)

    def _take_in(self) -> bool:
        """Requests that have come; waits for one where there is nothing else to do. False: it is over."""
        while not self._batcher.has_work or not self._arrived.empty():
            sequence = self._arrived.get()
            if sequence is None:
                return False
            self._batcher.add(sequence)
        return True


def _deliver(made: list[tuple[Sequence, int]]) -> None:
    for sequence, token in made:
        sequence.out.put_nowait(token)


class Server:
    """Requests in, tokens out."""

    def __init__(self, stepper: Stepper, shape: Shape) -> None:
        self._stepper, self._shape = stepper, shape

    async def handle(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, one request."""
        try:
            method, path, body = await _read(reader)
            if (method, path) == ("POST", "/v1/completions"):
                await self._complete(json.loads(body), writer)
            elif (method, path) == ("GET", "/health"):
                _answer(writer, "200 OK", {"status": "ok"})
            elif (method, path) == ("GET", "/v1/models"):
                _answer(writer, "200 OK", {"object": "list", "data": [{"id": MODEL, "object": "model"}]})
            else:
                _answer(writer, "404 Not Found", {"error": {"message": f"there is no {method} {path}"}})
        except (BadRequest, ValueError) as error:
            _answer(writer, "400 Bad Request", {"error": {"message": str(error)}})
        except (ConnectionError, asyncio.IncompleteReadError):
            return  # the client is gone
        finally:
            writer.close()

    async def _complete(self, asked: dict[str, Any], writer: asyncio.StreamWriter) -> None:
        sequence = self._sequence(asked)
        self._stepper.add(sequence)
        identity = f"cmpl-{uuid.uuid4().hex}"
        usage = {"prompt_tokens": len(sequence.prompt), "completion_tokens": sequence.most}
        try:
            if not asked.get("stream"):
                text = "".join([chr(await sequence.out.get()) for _ in range(sequence.most)])
                _answer(writer, "200 OK", _chunk(identity, text, "length") | {"usage": usage})
                return
            _begin(writer, "200 OK", "text/event-stream")
            for number in range(sequence.most):
                token = await sequence.out.get()
                reason = "length" if number + 1 == sequence.most else None
                _event(writer, json.dumps(_chunk(identity, chr(token), reason)))
                await writer.drain()
            if (asked.get("stream_options") or {}).get("include_usage"):
                _event(writer, json.dumps(_chunk(identity, "", None) | {"choices": [], "usage": usage}))
            _event(writer, "[DONE]")
            await writer.drain()
        finally:
            sequence.is_dropped = len(sequence.made) < sequence.most

    def _sequence(self, asked: dict[str, Any]) -> Sequence:
        prompt, most = asked.get("prompt"), asked.get("max_tokens", 16)
        tokens = list(prompt.encode()) if isinstance(prompt, str) else prompt
        if not isinstance(tokens, list) or not tokens:
            raise BadRequest("prompt must be text or a list of token numbers, and not empty")
        if any(not isinstance(token, int) or not 0 <= token < VOCABULARY for token in tokens):
            raise BadRequest(f"tokens are numbers below {VOCABULARY}")
        if not isinstance(most, int) or most < 1:
            raise BadRequest("max_tokens must be at least 1")
        if len(tokens) + most > self._shape.length:
            raise BadRequest(f"prompt and max_tokens are more than {self._shape.length} tokens")
        return Sequence(tokens, most)


async def _read(reader: asyncio.StreamReader) -> tuple[str, str, bytes]:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
    method, path, _ = head[0].split(" ", 2)
    fields = dict(line.lower().split(":", 1) for line in head[1:] if ":" in line)
    return method, path, await reader.readexactly(int(fields.get("content-length", 0)))


def _begin(writer: asyncio.StreamWriter, status: str, kind: str) -> None:
    writer.write(f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nConnection: close\r\n\r\n".encode())


def _answer(writer: asyncio.StreamWriter, status: str, document: dict[str, Any]) -> None:
    _begin(writer, status, "application/json")
    writer.write(json.dumps(document).encode())


def _event(writer: asyncio.StreamWriter, text: str) -> None:
    writer.write(f"data: {text}\n\n".encode())


def _chunk(identity: str, text: str, reason: str | None) -> dict[str, Any]:
    choice = {"index": 0, "text": text, "logprobs": None, "finish_reason": reason}
    return {
        "id": identity,
        "object": "text_completion",
        "created": int(time.time()),
        "model": MODEL,
        "choices": [choice],
    }


async def _main(options: argparse.Namespace, ranks: Ranks, shape: Shape) -> int:
    """Serve until a signal comes: its number. RankEnded when a rank does not last so long."""
    batcher = Batcher(ranks=options.ranks, slots=shape.slots, tokens=options.tokens)
    stepper = Stepper(ranks, batcher, asyncio.get_running_loop())
    server = Server(stepper, shape)
    stopped: asyncio.Queue[int] = asyncio.Queue()
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, stopped.put_nowait, int(number))
    listening = await asyncio.start_server(server.handle, "127.0.0.1", options.port)
    stepper.start()
    port = listening.sockets[0].getsockname()[1]
    where = f"{options.ranks} ranks" + (" on GPUs" if options.device == "cuda" else "")
    where += " · decode by CUDA graphs" if options.cuda_graphs else ""
    print(f"serve: http://127.0.0.1:{port} · arm {options.arm} · {where}", file=sys.stderr, flush=True)
    ended_by = asyncio.create_task(stopped.get())
    ends: list[asyncio.Future[Any]] = [ended_by, stepper.failed]
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    listening.close()
    if stepper.failed.done():
        stepper.failed.result()  # raises
    stepper.stop()
    return ended_by.result()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="A small Mixture-of-Experts server, for recording.")
    parser.add_argument("--arm", choices=("proxy", "gdaki", "dense"), default="proxy", help="how tokens reach experts")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where the model and its kernels run")
    how = parser.add_mutually_exclusive_group()
    how.add_argument(
        "--cuda-graphs", action="store_true", default=None, help="decode by CUDA graphs (default on a GPU)"
    )
    how.add_argument("--eager", dest="cuda_graphs", action="store_false", help="launch kernel by kernel")
    parser.add_argument("--port", type=int, default=8000, help="on 127.0.0.1; 0: any")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--provider", default=None, help="of libfabric: tcp (proxy), shm, efa, efa-direct (gdaki)")
    parser.add_argument("--channels", type=int, default=4, help="of a pair of ranks")
    parser.add_argument("--tokens", type=int, default=16, help="most tokens of a rank in one step")
    parser.add_argument("--timeout", type=int, default=60, metavar="S", help="longest wait for another rank")
    for name in ("layers", "hidden", "heads", "experts", "topk", "slots", "length", "seed"):
        parser.add_argument(f"--{name}", type=int, default=getattr(Shape(), name))
    options = parser.parse_args()
    if options.cuda_graphs and options.device != "cuda":
        parser.error("--cuda-graphs needs --device cuda")
    options.cuda_graphs = options.device == "cuda" and options.cuda_graphs is not False
    options.provider = options.provider or ("efa-direct" if options.arm == "gdaki" else "tcp")
    return options


def main() -> int:
    """Exit code; a signal that ended the server ends this process too."""
    options = _options()
    names = ("layers", "hidden", "heads", "experts", "topk", "slots", "length", "seed")
    shape = replace(Shape(), **{name: getattr(options, name) for name in names})
    if shape.slots > options.tokens:
        sys.exit(f"serve: --slots {shape.slots} is more than the {options.tokens} --tokens of a step")
    try:
        with shared_gpus(options.ranks) if options.device == "cuda" else contextlib.nullcontext():
            ended_by = _serve(options, shape)
    except RankEnded as error:
        print(f"serve: {error}; the others were stopped", file=sys.stderr)
        return 1
    except EfaprofError as error:
        print(f"serve: {error}", file=sys.stderr)
        return 2
    signal.signal(ended_by, signal.SIG_DFL)
    os.kill(os.getpid(), ended_by)
    return 128 + ended_by


def _serve(options: argparse.Namespace, shape: Shape) -> int:
    """Start the ranks, serve; the signal that ended it. RankEnded when a rank does not last so long."""
    with tempfile.TemporaryDirectory(prefix="serve-") as folder:
        job = moe_rank.Job(
            shape=shape, arm=options.arm, device=options.device, has_graphs=options.cuda_graphs, ranks=options.ranks,
            tokens=options.tokens, channels=options.channels, provider=options.provider, timeout_s=options.timeout,
            rendezvous=str(Path(folder) / "group"),
        )  # fmt: skip
        ranks = Ranks(job)
        try:
            ranks.start()
            return asyncio.run(_main(options, ranks, shape))
        except KeyboardInterrupt:  # before it served
            return signal.SIGINT
        finally:
            ranks.stop()


if __name__ == "__main__":
    sys.exit(main())
