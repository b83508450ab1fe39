"""Perfetto trace files, written from numpy columns without protobuf."""
