"""`python -m efaprof`."""

from __future__ import annotations

from efaprof.cli.app import main

if __name__ == "__main__":
    main()
