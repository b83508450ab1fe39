from __future__ import annotations

import pickle

import pytest

from efaprof.libfabric import Cap, EpType, Order, Protocol


def test_names_of_a_set_stand_lowest_first():
    assert (Cap.RMA | Cap.MSG | Cap.SOURCE).names == ("MSG", "RMA", "SOURCE")
    assert Cap.NONE.names == ()


def test_a_bit_of_a_newer_libfabric_stays_and_has_a_number():
    caps = Cap(1 << 62 | Cap.MSG)
    assert caps.names == ("MSG", "0x4000000000000000")
    assert int(caps) == 1 << 62 | 2
    assert Cap.MSG in caps


@pytest.mark.parametrize("words", [EpType, Protocol])
def test_a_value_of_a_newer_libfabric_is_no_error(words):
    value = words(77)
    assert (int(value), value.name) == (77, "UNKNOWN_77")
    again = pickle.loads(pickle.dumps(value))
    assert (again, again.name) == (value, value.name)


def test_what_is_no_number_is_an_error():
    with pytest.raises(ValueError, match="tcp"):
        EpType("tcp")


def test_orders_are_kept_apart_by_operation():
    assert Order.WAW not in Order.RMA_WAW
