"""The probes that record can use."""

from __future__ import annotations

from enum import StrEnum

from efaprof.errors import UsageError

INTERPOSER = "libefaprof-fi.so"  # beside libefaprof.so; preloaded into the program
NVTX_LIBRARY = "libefaprof-nvtx.so"  # beside it; loaded by NVTX itself
CUPTI_LIBRARY = "libefaprof-cupti.so"  # beside it; loaded by the CUDA driver, and preloaded


class ProbeName(StrEnum):
    """What can record."""

    LIBFABRIC = "libfabric"  # operations and completions, by the preloaded interposer
    NIC = "nic"  # counters of the NICs
    NVTX = "nvtx"  # ranges, marks and domains, by the library that NVTX loads
    CUDA = "cuda"  # kernels, graphs and their launches, by the library that the CUDA driver loads
    CPU = "cpu"  # run-queue delay and throttling
    PYTHON = "python"  # Python stacks, sampled by py-spy; only when asked for (record --python)


DEFAULT_PROBES = frozenset(ProbeName) - {ProbeName.PYTHON}


def parse_probes(text: str) -> frozenset[ProbeName]:
    """The probes in a comma-separated list; `auto` means all but those to be asked for, an empty text none."""
    words = [word.strip() for word in text.split(",") if word.strip()]
    if words == ["auto"]:
        return DEFAULT_PROBES
    for word in words:
        if word not in set(ProbeName):
            raise UsageError(
                f"there is no probe {word!r}",
                hint=f"the probes are {', '.join(ProbeName)}; efaprof doctor tells about them",
            )
    return frozenset(ProbeName(word) for word in words)
