from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import os
from efaprof.cli.one_thread import import_numpy
import_numpy()
import numpy
threads = int(next(line for line in open("/proc/self/status") if line.startswith("Threads")).split()[1])
print(threads, os.environ.get("OPENBLAS_NUM_THREADS"))
"""


def test_numpy_comes_without_threads_and_the_environment_stays():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["1", "None"]
