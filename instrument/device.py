"""Where a dispatch run's kernels are, what they move, and how its proxies are tuned: the part that a GPU adds."""

from __future__ import annotations

from dataclasses import dataclass

from efaprof.errors import UsageError

DEVICES = ("cpu", "cuda")
DTYPES = {"cpu": ("f32",), "cuda": ("bf16", "fp8")}  # the first is the default


@dataclass(frozen=True, slots=True, kw_only=True)
class Tuning:
    """What can be switched to see what it is worth; efaprof-dispatch --help says what each does."""

    drain: int = 32  # commands posted before completions get their turn
    more: bool = False  # posts that follow each other share a doorbell
    pin: bool = False  # threads stay on the GPU's NUMA node
    stamps: bool = True  # in the GPU's kernels

    def arguments(self) -> list[str]:
        """Arguments of efaprof-dispatch; none for what is as usual."""
        words = [] if self.drain == Tuning().drain else ["--drain", str(self.drain)]
        flags = {"--more": self.more, "--pin": self.pin, "--no-stamps": not self.stamps}
        return [*words, *(flag for flag, is_set in flags.items() if is_set)]


AS_USUAL = Tuning()


def dtype_for(device: str, dtype: str | None) -> str:
    """The type of a token's elements; UsageError when the device does not move it."""
    if device not in DEVICES:
        raise UsageError(f"--device {device} is no device", hint=f"use one of {', '.join(DEVICES)}")
    known = DTYPES[device]
    if dtype is not None and dtype not in known:
        raise UsageError(f"--device {device} does not move --dtype {dtype}", hint=f"use {' or '.join(known)}")
    return dtype or known[0]


def emulated(device: str) -> str:
    """What of the kernel's side is not the real thing."""
    if device == "cuda":
        return "payload: in pinned host memory, not in the GPU's"
    return "kernel: a CPU thread"
