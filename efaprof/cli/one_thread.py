"""numpy without the threads of its linear algebra: starting them takes a tenth of a second, and they wait busily."""

from __future__ import annotations

import os
import sys

_THREADS = "OPENBLAS_NUM_THREADS"


def import_numpy() -> None:
    """Import numpy so, unless it is there already or the user said how many threads; nothing is left to children."""
    if "numpy" in sys.modules or _THREADS in os.environ:
        return
    os.environ[_THREADS] = "1"
    try:
        import numpy as np  # noqa: F401 - which reads it once
    finally:
        del os.environ[_THREADS]
