"""NIC counters held against operations."""

from __future__ import annotations

import polars as pl
import pytest

from efaprof.analyzers.nic import Asked, Device, devices_of, movement


def counters(**values):
    rows = [
        (f"nic.{name.replace('__', '.')}", at, value) for name, pair in values.items() for at, value in enumerate(pair)
    ]
    return pl.DataFrame(rows, schema=["name", "time_ns", "value"], orient="row").lazy()


def test_devices_are_read_from_the_names_of_their_counters():
    found = devices_of(counters(eth0__tx_bytes=(10, 15, 110), eth0__rx_bytes=(1, 3), eth0__rate_bytes_s=(125, 125)))
    assert found == (Device("eth0", 100, 2, 125),)


def test_infiniband_data_counts_words():
    (device,) = devices_of(counters(mlx5_0__port_xmit_data=(0, 25), mlx5_0__port_rcv_data=(0, 1)))
    assert (device.sent_bytes, device.received_bytes, device.line_rate_bytes_s) == (100, 4, None)


def test_the_device_that_a_domain_names_is_chosen_efa_with_its_suffix():
    devices = (Device("rdmap0s6", 1000, 0, 50), Device("rdmap0s7", 9, 0, 50), Device("lo", 7, 0, None))
    found = movement(devices, {"rdmap0s6-rdm"}, Asked(1000, 0, 1))
    assert (found.devices, found.agrees, found.line_rate_bytes_s) == (("rdmap0s6",), True, 50)


def test_two_rails_add_up():
    devices = (Device("rdmap0s6", 600_000, 0, 50), Device("rdmap0s7", 500_000, 0, 50))
    found = movement(devices, {"rdmap0s6-rdm", "rdmap0s7-rdm"}, Asked(1_000_000, 0, 10))
    assert (found.sent_bytes, found.line_rate_bytes_s, found.agrees) == (1_100_000, 100, True)


def test_traffic_that_went_over_the_loopback_is_found_there():
    devices = (Device("eth0", 500, 0, 125), Device("lo", 1_050_000, 1_050_000, None))
    found = movement(devices, {"eth0"}, Asked(1_000_000, 0, 10))
    assert (found.devices, found.agrees) == (("lo",), True)


@pytest.mark.parametrize("sent", [999_999, 1_400_000])
def test_too_little_or_far_too_much_does_not_agree(sent):
    found = movement((Device("eth0", sent, 0, None),), {"eth0"}, Asked(1_000_000, 0, 1))
    assert found.agrees is False
    assert found.devices == ("eth0",)


def test_reads_are_held_against_what_came_in():
    device = Device("eth0", 10, 1_000_500, None)
    assert movement((device,), {"eth0"}, Asked(0, 1_000_000, 1)).agrees
    assert movement((device,), {"eth0"}, Asked(0, 2_000_000, 1)).agrees is False


def test_without_counters_or_operations_nothing_is_compared():
    assert movement((), {"eth0"}, Asked(1, 0, 1)) is None
    assert movement((Device("eth0", 5, 5, None),), {"eth0"}, Asked(0, 0, 0)).agrees is None
    assert movement((Device("eth0", None, None, None),), {"eth0"}, Asked(5, 0, 1)).agrees is None


def test_one_unknown_line_rate_makes_the_sum_unknown():
    devices = (Device("rdmap0s6", 1, 1, 50), Device("rdmap0s7", 1, 1, None))
    assert movement(devices, {"rdmap0s6-rdm", "rdmap0s7-rdm"}, Asked(1, 0, 1)).line_rate_bytes_s is None


def test_a_counter_that_was_set_back_keeps_what_it_had_counted():
    (device,) = devices_of(counters(eth0__tx_bytes=(1000, 1500, 200, 260), eth0__rx_bytes=(1, 2, 3, 4)))
    assert (device.sent_bytes, device.resets, device.wraps) == (500 + 200 + 60, 1, 0)


def test_a_counter_of_32_bits_goes_on_where_it_wraps():
    (device,) = devices_of(counters(eth0__tx_bytes=(2**32 - 100, 2**32 - 1, 49)))
    assert (device.sent_bytes, device.resets, device.wraps) == (149, 0, 1)


def test_a_fall_from_beyond_32_bits_is_a_reset():
    (device,) = devices_of(counters(efa0__tx_bytes=(2**40, 7)))
    assert (device.sent_bytes, device.resets, device.wraps) == (7, 1, 0)


def test_a_counter_that_is_stuck_at_its_highest_value_says_nothing():
    (device,) = devices_of(counters(mlx5_0__port_xmit_data=(5, 2**32 - 1, 2**32 - 1), mlx5_0__port_rcv_data=(0, 5)))
    assert (device.sent_bytes, device.received_bytes) == (None, 20)


def test_payload_is_held_against_the_operations_to_the_byte():
    values = counters(
        efa0__tx_bytes=(0, 1_050_000), efa0__send_bytes=(0, 100_000), efa0__rdma_write_bytes=(5, 900_005)
    )  # fmt: skip
    found = movement(devices_of(values), {"efa0-rdm"}, Asked(1_000_000, 0, 10))
    assert (found.payload.bytes, found.sent.bytes, found.sent.share) == (0, 50_000, 0.05)
    assert found.fetched is None


def test_without_all_of_its_parts_payload_is_unknown():
    (device,) = devices_of(counters(efa0__tx_bytes=(0, 10), efa0__send_bytes=(0, 10)))
    assert device.payload_bytes is None


def test_resets_and_wraps_of_the_chosen_devices_add_up():
    values = counters(efa0__tx_bytes=(9, 3), efa0__rx_bytes=(9, 3), efa1__tx_bytes=(2**32 - 1, 0), lo__tx_bytes=(9, 0))
    found = movement(devices_of(values), {"efa0-rdm", "efa1-rdm"}, Asked(4, 0, 1))
    assert (found.devices, found.resets, found.wraps, found.sent_bytes) == (("efa0", "efa1"), 2, 1, 4)
