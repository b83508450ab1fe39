"""The libfabric of this machine that a program needs for a provider."""

from __future__ import annotations

from pathlib import Path

from efaprof.libfabric.find import ask, candidates


def libfabric_for(provider: str) -> Path | None:
    """The first libfabric here that offers `provider`; None when the loader takes it anyway, or when none does."""
    for candidate in candidates():
        library = ask(candidate)
        if provider in library.providers:
            return Path(library.path) if "/" in candidate else None
    return None
