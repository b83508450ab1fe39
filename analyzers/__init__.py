"""The analyses of METHOD.md: tables in, results out; no I/O."""

if __name__ != "efaprof.analyzers":
    raise ImportError("import efaprof.analyzers, not analyzers: one module must not exist twice")
