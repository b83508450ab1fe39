"""The program behind `bench dispatch --path dense`: starts the ranks of the control arm, and says what they did.

`python -m efaprof.instrument.dense_job --ranks 2 …`, with the flags of efaprof-dispatch as far as they mean something
here. Exits like it: 0, 1 after a failure, 2 when the options do not fit this machine and nothing ran.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import multiprocessing.connection
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.process import BaseProcess

    from efaprof.instrument.dense_rank import DenseJob, Done

AUTO, GLOO, NCCL = "auto", "gloo", "nccl"
PROVIDERS = (AUTO, GLOO, NCCL)  # auto: NCCL where every rank has a GPU of its own
FAILED, REFUSED = 1, 2
_END_S = 5.0  # for a rank to end when it is told to


def main(words: Sequence[str] | None = None) -> int:
    """Run the job; the exit code."""
    options = _parse(words)
    try:
        import torch
    except ImportError:
        _refuse("--path dense is torch's collectives, and torch is not there: pip install torch")
    gpus = torch.cuda.device_count() if options.device == "cuda" else 0
    if options.device == "cuda" and not gpus:
        _refuse("--device cuda: torch has no GPU here")
    backend = options.provider
    if backend == AUTO:
        backend = NCCL if gpus >= options.ranks else GLOO
    if backend == NCCL and gpus < options.ranks:
        _refuse(f"--provider nccl: {options.ranks} ranks cannot share {gpus} GPUs; use --provider gloo")
    with tempfile.TemporaryDirectory(prefix="efaprof-dense-") as folder:
        return _run(_job(options, backend, Path(folder) / "ranks"), as_json=options.json)


def _parse(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="efaprof.instrument.dense_job", description=__doc__)
    for name in ("ranks", "layers", "tokens", "hidden", "topk", "experts", "compute-us", "steps", "warmup", "seed"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtype", choices=("f32", "bf16"), default="f32")
    parser.add_argument("--provider", choices=PROVIDERS, default=AUTO)
    parser.add_argument("--late", action="append", default=[], metavar="RANK=NSns")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(words)
    if options.topk > options.experts or options.experts % options.ranks:
        _refuse(f"{options.experts} experts: their number must be a multiple of {options.ranks} ranks, and ≥ --topk")
    return options


def _refuse(text: str) -> NoReturn:
    sys.stderr.write(f"efaprof: {text}\n")
    sys.exit(REFUSED)


def _job(options: argparse.Namespace, backend: str, rendezvous: Path) -> DenseJob:
    from efaprof.instrument.dense_rank import DenseJob

    late = [0.0] * options.ranks
    for text in options.late:
        rank, _, delay = text.removesuffix("ns").partition("=")
        if int(rank) >= options.ranks:
            _refuse(f"--late {text}: there is no rank {rank}")
        late[int(rank)] = int(delay) / 1e3
    return DenseJob(
        device=options.device, dtype=options.dtype, ranks=options.ranks, layers=options.layers, tokens=options.tokens,
        hidden=options.hidden, topk=options.topk, experts=options.experts, compute_us=options.compute_us,
        steps=options.steps, warmup=options.warmup, seed=options.seed, late_us=tuple(late), backend=backend,
        rendezvous=str(rendezvous),
    )  # fmt: skip


def _run(job: DenseJob, *, as_json: bool) -> int:
    from efaprof.instrument import dense_rank

    context = multiprocessing.get_context("spawn")
    pipes, ranks = [], []
    for rank in range(job.ranks):
        ours, theirs = context.Pipe()
        ranks.append(context.Process(target=dense_rank.run, args=(job, rank, theirs), name=f"rank {rank}"))
        pipes.append((ours, theirs))
    for sign in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(sign, lambda number, _: sys.exit(128 + number))
    try:
        for process, (_, theirs) in zip(ranks, pipes, strict=True):
            process.start()
            theirs.close()
        ended = _wait(ranks)
        if ended is not None:
            sys.stderr.write(f"efaprof: {ended.name} {_ending(ended)}; the others were stopped\n")
            return FAILED
        found: list[Done] = [ours.recv() for ours, _ in pipes]
    finally:
        _stop(ranks)
    _say(job, found, as_json=as_json)
    return 0


def _wait(ranks: Sequence[BaseProcess]) -> BaseProcess | None:
    """The first rank that did not end well; None when all did."""
    left = {process.sentinel: process for process in ranks}
    while left:
        for sentinel in multiprocessing.connection.wait(list(left)):
            process = left.pop(int(str(sentinel)))
            process.join()
            if process.exitcode != 0:
                return process
    return None


def _ending(process: BaseProcess) -> str:
    code = process.exitcode or 0
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"failed (exit code {code})"


def _stop(ranks: Sequence[BaseProcess]) -> None:
    running = [process for process in ranks if process.is_alive()]
    for process in running:
        process.terminate()
    due = time.monotonic() + _END_S
    for process in running:
        process.join(max(due - time.monotonic(), 0))
        if process.is_alive():
            process.kill()
            process.join()


def _say(job: DenseJob, found: Sequence[Done], *, as_json: bool) -> None:
    wall, verified = max(one.wall_ns for one in found), sum(one.verified for one in found)
    step_us = wall / 1e3 / job.steps
    collectives = 2 * job.layers * (job.warmup + job.steps)  # of a rank: a gather and a scatter per layer
    if as_json:
        words = {"path": "dense", "ranks": job.ranks, "provider": job.backend, "device": job.device,
                 "layers": job.layers, "steps": job.steps, "warmup": job.warmup, "wall_ns": wall, "step_us": step_us,
                 "collectives": collectives, "verified_tokens": verified}  # fmt: skip
        sys.stdout.write(json.dumps(words) + "\n")
        return
    sys.stdout.write(
        f"{job.ranks} ranks over {job.backend} (all-gather, reduce-scatter): {job.steps} steps of {job.layers} layers, "
        f"{step_us:.1f} us a step; {collectives} collectives a rank; all {verified} tokens verified\n"
    )


if __name__ == "__main__":
    sys.exit(main())
