"""Load for a server with OpenAI's /v1/completions: so many requests at a time, exported as AIPerf exports them.

    python examples/load.py --url http://127.0.0.1:8000 --concurrency 4 --requests 32 --isl 32 --osl 32 -o results/proxy
    efaprof tax --arm proxy=results/proxy --arm dense=results/dense

A closed loop: whoever has its answer asks again. Times are this client's own, of the arrival of each chunk.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np

from efaprof.ingest.synth import Scripted, aiperf_failure, aiperf_record, aiperf_summary, write_document, write_lines

PATH = "/v1/completions"


@dataclass(frozen=True, slots=True)
class Outcome:
    """One request: what was measured, and what went wrong (None: nothing)."""

    measured: Scripted
    text: str
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What to ask for."""

    host: str
    port: int
    model: str
    concurrency: int
    requests: int
    warmup: int
    isl: int
    osl: int
    seed: int
    timeout_s: float

    def prompt(self, number: int) -> list[int]:
        """Tokens of a request: the same for the same seed, whatever the arm."""
        return [int(token) for token in np.random.default_rng([self.seed, number]).integers(0, 256, self.isl)]


async def request(load: Load, number: int) -> Outcome:
    """Ask once, and time every chunk."""
    asked = {
        "model": load.model, "prompt": load.prompt(number), "max_tokens": load.osl, "temperature": 0, "stream": True,
        "ignore_eos": True,
    }  # fmt: skip
    started_ns, begin = time.time_ns(), time.perf_counter()
    arrived: list[float] = []
    text, error = "", None
    try:
        async with asyncio.timeout(load.timeout_s):
            async for chunk in _chunks(load, asked):
                arrived.append(time.perf_counter())
                text += chunk
    except (OSError, ValueError, asyncio.IncompleteReadError) as problem:
        error = str(problem) or type(problem).__name__
    if error is None and len(arrived) < load.osl:
        error = f"the stream ended after {len(arrived)} of {load.osl} tokens"
    gaps = tuple(float(gap) for gap in np.diff(arrived) * 1e3)
    first_ms = (arrived[0] - begin) * 1e3 if arrived else 0.0
    return Outcome(Scripted(started_ns, first_ms, gaps, prompt=load.isl), text, error)


async def _chunks(load: Load, asked: dict[str, Any]) -> Any:
    reader, writer = await asyncio.open_connection(load.host, load.port)
    try:
        body = json.dumps(asked).encode()
        head = f"POST {PATH} HTTP/1.1\r\nHost: {load.host}\r\nContent-Type: application/json\r\n"
        writer.write(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
        status = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n", 1)[0].decode()
        if status.split(" ")[1] != "200":
            raise ValueError(f"{status}: {(await reader.read(300)).decode(errors='replace')}")
        async for line in reader:
            data = line.decode().strip().removeprefix("data: ")
            if data == "[DONE]":
                return
            choices = json.loads(data)["choices"] if data.startswith("{") else []
            if choices and choices[0]["text"]:
                yield choices[0]["text"]
    finally:
        writer.close()


async def run(load: Load, first: int, count: int) -> list[Outcome]:
    """`count` requests from number `first` on, `concurrency` at a time, in order of their numbers."""
    numbers = iter(range(first, first + count))
    outcomes: dict[int, Outcome] = {}

    async def client() -> None:
        for number in numbers:
            outcomes[number] = await request(load, number)

    await asyncio.gather(*(client() for _ in range(min(load.concurrency, count))))
    return [outcomes[number] for number in sorted(outcomes)]


def export(load: Load, outcomes: list[Outcome], warm: list[Outcome], started: datetime, folder: Path) -> None:
    """The two files that AIPerf leaves, and the answers beside them."""
    good = [one.measured for one in outcomes if one.error is None]
    records: list[Any] = [aiperf_record(one.measured, phase="warmup") for one in warm if one.error is None]
    for number, one in enumerate(outcomes):
        made = aiperf_record(one.measured, number=number) if one.error is None else aiperf_failure(one.measured)
        if one.error is not None:
            made["error"]["message"] = one.error
        records.append(made)
    write_lines(folder / "profile_export.jsonl", records)
    write_lines(folder / "answers.txt", [{"number": row, "text": one.text} for row, one in enumerate(outcomes)])
    if good:
        summary = aiperf_summary(
            good, concurrency=load.concurrency, start_time=started.replace(tzinfo=None).isoformat(),
            errors=len(outcomes) - len(good), model=load.model,
        )  # fmt: skip
        write_document(folder / "profile_export_aiperf.json", summary)


def _say(load: Load, outcomes: list[Outcome], seconds: float) -> None:
    good = [one.measured for one in outcomes if one.error is None]
    for error in sorted({one.error for one in outcomes if one.error is not None})[:3]:
        print(f"load: {error}", file=sys.stderr)
    tokens = sum(one.tokens for one in good)
    print(f"{len(good)} of {len(outcomes)} requests in {seconds:.2f} s, {tokens / seconds:.1f} tokens/s")
    if good and load.osl > 1:
        itl = np.array([np.mean(one.gaps_ms) for one in good])
        ttft = np.array([one.ttft_ms for one in good])
        print(f"inter-token latency {itl.mean():.2f} ms, time to first token {ttft.mean():.2f} ms (means)")


def main() -> int:
    """0 when every request was answered in full."""
    parser = argparse.ArgumentParser(description="Load for /v1/completions, exported in AIPerf's schema.")
    parser.add_argument("--url", required=True, help="such as http://127.0.0.1:8000")
    parser.add_argument("--model", default="efaprof-moe")
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--requests", type=int, default=32)
    parser.add_argument("--warmup", type=int, default=0, help="requests before them, exported as warm-up")
    parser.add_argument("--isl", type=int, default=32, help="tokens of a prompt")
    parser.add_argument("--osl", type=int, default=32, help="tokens of an answer")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=300.0, metavar="S", help="longest time of a request")
    parser.add_argument("-o", "--output", type=Path, metavar="DIR", help="where the exports go")
    options = parser.parse_args()
    url = urlsplit(options.url)
    load = Load(
        host=url.hostname or "127.0.0.1", port=url.port or 80, model=options.model, concurrency=options.concurrency,
        requests=options.requests, warmup=options.warmup, isl=options.isl, osl=options.osl, seed=options.seed,
        timeout_s=options.timeout,
    )  # fmt: skip
    warm = asyncio.run(run(load, load.requests, load.warmup)) if load.warmup else []
    started, begin = datetime.now(UTC), time.perf_counter()
    outcomes = asyncio.run(run(load, 0, load.requests))
    _say(load, outcomes, time.perf_counter() - begin)
    if options.output is not None:
        export(load, outcomes, warm, started, options.output)
    return 0 if all(one.error is None for one in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
