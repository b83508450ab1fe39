from __future__ import annotations

import numpy as np
import pytest

from efaprof.export.rates import counter_line


def line(name: str, samples: list[tuple[int, int]], *, is_monotone: bool = True):
    times, values = np.array(samples, np.int64).reshape(-1, 2).T
    return counter_line(name, times, values, is_monotone=is_monotone)


def test_a_rate_stands_where_its_interval_begins_and_ends_at_zero() -> None:
    made = line("nic.efa0.tx_bytes", [(0, 0), (1_000_000_000, 500), (1_500_000_000, 1500)])
    assert made.unit == "B/s"
    assert made.time_ns.tolist() == [0, 1_000_000_000, 1_500_000_000]
    assert made.values.tolist() == [500.0, 2000.0, 0.0]


def test_infiniband_data_counts_words_of_four_bytes() -> None:
    made = line("nic.mlx5_0.port_xmit_data", [(0, 0), (1_000_000_000, 25)])
    assert (made.unit, made.values[0]) == ("B/s", 100.0)


def test_a_count_that_goes_back_has_no_rate_there_and_is_counted() -> None:
    made = line("nic.x.rx_packets", [(0, 10), (10**9, 20), (2 * 10**9, 5), (3 * 10**9, 6)])
    assert made.values.tolist() == [10.0, 0.0, 1.0, 0.0]
    assert made.resets == 1


def test_of_two_samples_at_one_time_the_later_counts() -> None:
    made = line("nic.x.rx_packets", [(0, 10), (0, 20), (10**9, 30)])
    assert made.values.tolist() == [10.0, 0.0]


@pytest.mark.parametrize("samples", [[], [(5, 7)]])
def test_a_rate_needs_two_samples(samples: list[tuple[int, int]]) -> None:
    assert line("nic.x.rx_packets", samples).time_ns.size == 0


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("nic.eth0.rate_bytes_s", "B/s"),
        ("nic.eth0.rx_bytes", "B"),
        ("nic.efa0.rx_pkts", "packets"),
        ("nic.efa0.send_wrs", "operations"),
        ("cpu.run_delay_ns.4242", "ns"),
        ("nic.eth0.rx_dropped", ""),
    ],
)
def test_gauges_keep_their_values_and_the_name_says_the_unit(name: str, unit: str) -> None:
    made = line(name, [(1, 5), (2, 3)], is_monotone=False)
    assert (made.unit, made.values.tolist()) == (unit, [5, 3])


def test_a_count_that_wraps_at_32_bits_goes_on() -> None:
    made = line("nic.x.tx_bytes", [(0, 2**32 - 50), (10**9, 50), (2 * 10**9, 60)])
    assert made.values.tolist() == [100.0, 10.0, 0.0]
    assert made.resets == 0
