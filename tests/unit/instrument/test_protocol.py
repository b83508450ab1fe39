"""The rules of the ring and of the wire, as the C++ headers keep them."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from protocol_library import ffi, load

TURN, HELD, REPEATED, BEYOND = range(4)


@pytest.fixture(scope="module")
def lib(build_dir):
    return load(build_dir)


@pytest.mark.parametrize("capacity", [2, 8, 64, 1024])
def test_every_command_comes_out_as_it_went_in_over_many_laps(lib, capacity):
    assert lib.test_ring(capacity, max(20_000, capacity * 50)) == 0


@pytest.mark.parametrize("capacity", [4, 16])
def test_a_ring_takes_no_more_than_it_holds_in_any_lap(lib, capacity):
    waiting = ffi.new("uint8_t *")
    for first in range(3 * capacity):
        for pushes in range(capacity + 3):
            seen = lib.test_waiting(capacity, first, pushes, waiting)
            assert seen == min(pushes, capacity)
            assert waiting[0] == seen.bit_length()  # 0, or 1 + floor(log2)


@given(src=st.integers(0, 255), channel=st.integers(0, 255), seq=st.integers(0, 2**48))
def test_an_immediate_holds_source_channel_and_the_low_sequence(lib, src, channel, seq):
    assert lib.test_pack_imm(src, channel, seq) == src << 24 | channel << 16 | seq & 0xFFFF


@given(next_seq=st.integers(0, 2**47), ahead=st.integers(-(2**15), 2**15 - 1))
def test_the_low_16_bits_name_the_nearest_sequence(lib, next_seq, ahead):
    assert lib.test_unwrap(next_seq, (next_seq + ahead) & 0xFFFF) == next_seq + ahead


class Window:
    """A window that hands over whatever it can after each arrival."""

    def __init__(self, lib, start: int = 0) -> None:
        self.lib, self.window = lib, ffi.gc(lib.test_window_new(start), lib.test_window_free)

    def arrive(self, seq: int) -> int:
        whole = ffi.new("int64_t *")
        outcome = self.lib.test_window_arrive(self.window, seq & 0xFFFF, whole)
        assert whole[0] == seq
        return outcome

    def handed_over(self) -> list[int]:
        seq, out = ffi.new("uint64_t *"), []
        while self.lib.test_window_hand_over(self.window, seq):
            out.append(seq[0])
        return out


@settings(max_examples=30, deadline=None)
@given(data=st.data(), start=st.sampled_from([0, 3, 65_000, 65_535, 2**20 - 7]), count=st.integers(1, 700))
def test_arrivals_in_any_order_are_handed_over_in_sequence(lib, data, start, count):
    window = Window(lib, start)
    reach = lib.test_window_size()
    pending = list(range(start, start + count))
    handed: list[int] = []
    while pending:
        # What can be on its way: everything less than a window ahead of the oldest missing one.
        on_way = sum(seq < start + len(handed) + reach for seq in pending)
        seq = pending.pop(data.draw(st.integers(0, min(on_way, 40) - 1)))
        assert window.arrive(seq) == (TURN if seq == start + len(handed) else HELD)
        handed += window.handed_over()
        assert handed == list(range(start, start + len(handed)))
        assert not any(missing < start + len(handed) for missing in pending)
    assert len(handed) == count


def test_a_whole_window_arrives_backwards_across_the_16_bit_wrap(lib):
    size, start = lib.test_window_size(), 65_536 - 100
    window = Window(lib, start)
    for seq in range(start + size - 1, start, -1):
        assert window.arrive(seq) == HELD
        assert window.handed_over() == []
    assert window.arrive(start) == TURN
    assert window.handed_over() == list(range(start, start + size))


def test_an_arrival_beyond_the_window_is_named_not_kept(lib):
    window, size = Window(lib, 10), lib.test_window_size()
    assert window.arrive(10 + size) == BEYOND
    assert window.arrive(10 + size - 1) == HELD
    assert window.handed_over() == []
    assert window.arrive(10) == TURN
    assert window.handed_over() == [10]
    assert window.arrive(10 + size) == HELD


def test_a_repeated_arrival_is_named_whether_held_or_handed_over(lib):
    window = Window(lib, 5)
    assert window.arrive(7) == HELD
    assert window.arrive(7) == REPEATED
    assert window.arrive(5) == TURN
    assert window.handed_over() == [5]
    assert window.arrive(5) == REPEATED
    assert window.arrive(6) == TURN
    assert window.handed_over() == [6, 7]


def test_regions_of_the_heap_do_not_overlap(lib):
    for ranks, tokens, hidden, topk, experts, channels in [
        (2, 8, 1024, 4, 16, 4),
        (3, 1, 1, 1, 3, 1),
        (4, 7, 33, 32, 64, 254),
    ]:
        out = ffi.new("uint64_t[12]")
        lib.test_heap([ranks, tokens, hidden, topk, experts, channels], out)
        token, total, notice, *starts, end = out
        assert token * 16 >= 16 + hidden * 4 + topk * 8
        assert token * 16 % 32 == 0
        slots = ranks * tokens
        sizes = [tokens * token, slots * token, slots * total, slots * total, ranks * notice, ranks * notice,
                 2 * ranks * (channels + 1), ranks * (channels + 1)]  # fmt: skip
        for start, size, following in zip(starts, sizes, [*starts[1:], end], strict=True):
            assert start % 4 == 0
            assert start + size <= following
