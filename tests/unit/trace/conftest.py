"""Synthetic runs with one endpoint, ready to take operations."""

from __future__ import annotations

import pytest

from efaprof.trace import reader
from efaprof.trace.synth import SynthRun
from efaprof.trace.traffic import open_endpoint

EP, CQ = 0x1000, 0x2000


@pytest.fixture
def synth(tmp_path):
    """Builder of a run in an empty directory."""
    return SynthRun(tmp_path / "run")


@pytest.fixture
def ring(synth):
    """A ring of `synth` with an endpoint EP whose sends and receives complete on CQ."""
    made = synth.ring()
    open_endpoint(made, EP, CQ)
    return made


@pytest.fixture
def tables(synth):
    """Finish `synth` and read its tables."""

    def read(**options):
        return reader.open_tables(synth.finish(), **options)

    return read


@pytest.fixture
def ops(tables):
    """Finish `synth` and read its operations, one dict each, in order."""

    def read(**options):
        return tables(**options).ops.collect().to_dicts()

    return read
