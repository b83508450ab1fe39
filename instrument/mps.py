"""Processes that share a GPU: NVIDIA's Multi-Process Service for as long as they live (gpu/mps.h).

Without it their kernels take turns of milliseconds, and kernels that wait for each other would measure that.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from typing import TYPE_CHECKING

from efaprof.errors import UsageError
from efaprof.instrument.dispatch import binary

if TYPE_CHECKING:
    from collections.abc import Iterator

PIPE_DIRECTORY = "CUDA_MPS_PIPE_DIRECTORY"
_STOP_S = 30.0
# The helper is not what is being recorded.
_OF_RECORDERS = ("LD_PRELOAD", "CUDA_INJECTION64_PATH", "NVTX_INJECTION64_PATH")


@contextlib.contextmanager
def shared_gpus(ranks: int) -> Iterator[None]:
    """Processes started inside can share this machine's GPUs, `ranks` of them; this one must not touch CUDA itself.

    Nothing happens where each has a GPU, or the environment names a daemon. UsageError when there is no GPU, or a
    daemon is needed and does not start.
    """
    environment = {name: value for name, value in os.environ.items() if name not in _OF_RECORDERS}
    helper = subprocess.Popen(
        [str(binary()), "mps", str(ranks)], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, env=environment, process_group=0,
    )  # fmt: skip
    assert helper.stdin is not None
    assert helper.stdout is not None
    before = os.environ.get(PIPE_DIRECTORY)
    try:
        where = helper.stdout.readline()
        if not where:
            raise UsageError(helper.communicate()[1].strip() or "the MPS daemon did not start")
        if where.strip():
            os.environ[PIPE_DIRECTORY] = where.strip()
        yield
    finally:
        if before is None:
            os.environ.pop(PIPE_DIRECTORY, None)
        said = _end(helper)
        if said and helper.returncode == 0:
            sys.stderr.write(said)


def _end(helper: subprocess.Popen[str]) -> str:
    """End the daemon; what there was to say."""
    if helper.stdin is not None and helper.stdin.closed:
        return ""
    try:
        return helper.communicate(timeout=_STOP_S)[1]
    except subprocess.TimeoutExpired:
        helper.kill()
        helper.communicate()
        return "the MPS daemon did not end\n"
