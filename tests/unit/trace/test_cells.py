"""Columns kept narrowly: whatever is put in comes back, in as few bytes as its range needs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from efaprof.trace.cells import narrowed

LOWEST, HIGHEST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


def back(values):
    cells, kept = narrowed(values)
    assert kept.nbytes == cells.size
    out = np.empty_like(values)
    cells.read(kept.tobytes(), out)
    return out


@pytest.mark.parametrize(
    ("values", "size"),
    [
        ([], 0), ([7, 7, 7], 0), ([LOWEST] * 2, 0), ([10**15, 10**15 + 255], 2), ([-3, 300], 4),
        ([LOWEST, LOWEST + 2**32 - 1], 8), ([LOWEST, LOWEST + 2**32], 16), ([LOWEST, HIGHEST], 16),
    ],
)  # fmt: skip
def test_whole_numbers_take_what_their_range_needs(values, size):
    given_ = np.array(values, np.int64)
    assert narrowed(given_)[0].size == size
    assert back(given_).tolist() == values


@pytest.mark.parametrize(("values", "size"), [([1.0, 0.25, -0.0], 12), ([1 / 3], 8), ([1e300], 8), ([math.nan], 8)])
def test_fractions_lose_nothing(values, size):
    given_ = np.array(values)
    assert narrowed(given_)[0].size == size
    assert back(given_).tobytes() == given_.tobytes()


@given(hnp.arrays(st.sampled_from([np.int64, np.int32, np.uint16, np.uint8, np.float64, np.bool_]), st.integers(0, 9)))
def test_every_column_comes_back(values):
    assert back(values).tobytes() == values.tobytes()
