"""`python -m efaprof.libfabric.describe PATH`: what `find.ask` reads, as one line of JSON."""

from __future__ import annotations

import json
import sys

from efaprof.libfabric.errors import FabricError
from efaprof.libfabric.library import Libfabric


def describe(path: str) -> str:
    """Version and providers of the libfabric at `path`, or why they cannot be had."""
    answer = {"path": path, "version": "", "providers": [], "problem": ""}
    try:
        library = Libfabric(path)
        answer |= {"path": library.path, "version": "{}.{}".format(*library.version)}
        answer["providers"] = library.provider_names()
    except FabricError as error:
        answer["problem"] = error.message
    return json.dumps(answer)


if __name__ == "__main__":
    sys.stdout.write(describe(sys.argv[1]) + "\n")
