"""efaprof: where each decoded token's time goes when a Mixture-of-Experts model dispatches over a NIC."""

from __future__ import annotations

from importlib import metadata

__version__ = metadata.version("efaprof")
