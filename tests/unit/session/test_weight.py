from __future__ import annotations

import subprocess
import sys

HEAVY = ("numpy", "polars", "torch", "google.protobuf", "email", "multiprocessing", "asyncio")
CODE = f"""
import sys
import efaprof.cli.app, efaprof.cli.record, efaprof.session.record
efaprof.__version__
print([name for name in {HEAVY!r} if name in sys.modules])
"""


def test_a_recorder_starts_without_what_only_analysis_needs():
    found = subprocess.run([sys.executable, "-c", CODE], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"
