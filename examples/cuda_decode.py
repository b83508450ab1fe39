"""A decode loop as servers run it on a GPU: one CUDA graph a token, sampling outside it; prints tokens per second.

    efaprof record --cuda graph -- python examples/cuda_decode.py --tokens 2000

Needs torch with CUDA. Weights are random; what is real is the launch pattern: a graph of some hundred kernels and a
few eager ones per step. `--profile` runs torch.profiler over the second half, as a user would.
"""

from __future__ import annotations

import argparse
import json
import time
from contextlib import nullcontext
from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of the model."""

    layers: int
    hidden: int
    batch: int
    vocabulary: int = 8192


class Model(torch.nn.Module):
    """Norm, projection, gated feed-forward per layer: the kernels of a decode step without attention over a cache."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        width = shape.hidden
        self.embed = torch.nn.Embedding(shape.vocabulary, width)
        self.mix = torch.nn.ModuleList(torch.nn.Linear(width, width, bias=False) for _ in range(shape.layers))
        self.up = torch.nn.ModuleList(torch.nn.Linear(width, 2 * width, bias=False) for _ in range(shape.layers))
        self.down = torch.nn.ModuleList(torch.nn.Linear(width, width, bias=False) for _ in range(shape.layers))
        self.head = torch.nn.Linear(width, shape.vocabulary, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Logits [batch, vocabulary] of the next token."""
        state = self.embed(tokens)
        for mix, up, down in zip(self.mix, self.up, self.down, strict=True):
            state = state + mix(torch.nn.functional.rms_norm(state, state.shape[-1:]))
            gate, value = up(torch.nn.functional.rms_norm(state, state.shape[-1:])).chunk(2, dim=-1)
            state = state + down(torch.nn.functional.silu(gate) * value)
        return self.head(torch.nn.functional.rms_norm(state, state.shape[-1:]))


class Decoder:
    """One captured graph that reads its tokens from `tokens` and leaves logits in `logits`."""

    def __init__(self, shape: Shape) -> None:
        torch.manual_seed(1)
        self.model = Model(shape).to("cuda", torch.bfloat16).eval()
        self.tokens = torch.zeros(shape.batch, dtype=torch.int64, device="cuda")
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                self.model(self.tokens)
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.logits = self.model(self.tokens)

    def step(self) -> None:
        """One token for every sequence of the batch."""
        self.graph.replay()
        self.tokens.copy_(self.logits.argmax(dim=-1))


def decode(decoder: Decoder, tokens: int) -> float:
    """Steps per second."""
    torch.cuda.synchronize()
    begin = time.perf_counter()
    for number in range(tokens):
        decoder.step()
        if number % 8 == 7:
            torch.cuda.synchronize()  # a server looks at its tokens; it does not run ahead without end
    torch.cuda.synchronize()
    return tokens / (time.perf_counter() - begin)


def main() -> None:
    """Decode and print one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=1000, help="decode steps")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--profile", action="store_true", help="torch.profiler over the second half")
    asked = parser.parse_args()
    with torch.inference_mode():
        decoder = Decoder(Shape(asked.layers, asked.hidden, asked.batch))
        decode(decoder, max(asked.tokens // 10, 1))
        steps_s = decode(decoder, asked.tokens)
        activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=activities) if asked.profile else nullcontext() as profiler:
            if asked.profile:
                decode(decoder, asked.tokens)
    seen = sum(event.device_type == torch.autograd.DeviceType.CUDA for event in profiler.events()) if profiler else None
    print(json.dumps({"steps_per_s": steps_s, "graph_launches": asked.tokens, "profiler_cuda_events": seen}))


if __name__ == "__main__":
    main()
