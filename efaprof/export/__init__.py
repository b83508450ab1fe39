"""Traces for other programs: Perfetto, parquet, CSV."""
