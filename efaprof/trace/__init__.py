"""The trace: its format, its run directory, and reading it into tables."""
