"""The instrumented dispatch paths and the annotation API."""

if __name__ != "efaprof.instrument":
    raise ImportError("import efaprof.instrument, not instrument: one module must not exist twice")
