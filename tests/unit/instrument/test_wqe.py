"""Work queue entries as an EFA device reads them, doorbells in turn, completions by phase and by count."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from protocol_library import ffi, load

META, IMM, WRITE = 0x80, 0x10, 2
PHASE, WHOLE = 0x01, 0x04 | 0x08 | 0x10


@pytest.fixture(scope="module")
def lib(build_dir):
    return load(build_dir)


@given(
    place=st.integers(0, 2**40), source=st.integers(0, 2**64 - 1), offset=st.integers(0, 2**32),
    base=st.integers(0, 2**63), size=st.integers(0, 2**32 - 1), imm=st.integers(0, 2**32 - 1), has_imm=st.booleans(),
    req_id=st.integers(0, 2**16 - 1),
)  # fmt: skip
def test_an_entry_has_every_field_where_the_device_looks_for_it(
    lib, place, source, offset, base, size, imm, has_imm, req_id
):
    out = ffi.new("uint8_t[64]")
    lib.test_wqe(place, 64, source, offset, base, size, imm, has_imm, req_id, out)
    wqe = bytes(out)
    there = base + offset
    expected = struct.pack(
        "<HBBHHIHBBI12x", req_id, META | WRITE | (IMM if has_imm else 0), WHOLE | (place // 64 & 1), 0x5566, 1, imm,
        0x7788, 0, 0, 0x11223344,
    )  # fmt: skip
    assert wqe[:32] == expected
    assert wqe[32:48] == struct.pack("<IIQ", size, 0xAABBCCDD, there % 2**64)
    assert wqe[48:] == struct.pack("<IIQ", size, 0x123456, source)


def test_an_entry_is_written_again_only_when_it_was_read(lib):
    assert [bool(lib.test_has_space(place, 0, 16)) for place in (0, 15, 16)] == [True, True, False]
    assert lib.test_has_space(2**33 + 15, 2**33, 16)
    assert not lib.test_has_space(2**33 + 16, 2**33, 16)


@pytest.mark.parametrize(("threads", "batch", "count"), [(1, 1, 4), (2, 1, 8), (3, 4, 16), (4, 8, 64)])
def test_posters_ring_in_the_order_of_their_places(lib, threads, batch, count):
    assert lib.test_turns(threads, batch, count) == 0


@given(lap=st.integers(0, 5), at=st.integers(0, 31), there=st.integers(0, 32), status=st.sampled_from([0, 13]))
def test_completions_are_found_by_their_phase_in_every_lap(lib, lap, at, there, status):
    ended = ffi.new("uint32_t *")
    assert lib.test_completions(lap * 32 + at, 32, there, status, ended) == there
    assert ended[0] == there


@given(before=st.integers(0, 2**40), more=st.integers(0, 2**31 - 1), errors=st.integers(0, 9))
def test_a_counter_of_31_bits_counts_on_past_its_largest_value(lib, before, more, errors):
    failed = ffi.new("uint64_t *")
    assert lib.test_counter(before, before + more, errors, failed) == before + more
    assert failed[0] == errors
