from __future__ import annotations

from pathlib import Path

import pytest

from efaprof.session import nic
from efaprof.session.nic import NicSampler, find_devices


class Sink(dict):
    """Collects what a sampler emits."""

    def __call__(self, name, value, *, monotone=True):
        self[name] = (value, monotone)


def tree(root: Path, files: dict[str, str]) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def rdma(
    name: str, *, port: int = 1, state: str = "4: ACTIVE\n", rate: str = "100 Gb/sec (4X EDR)\n"
) -> dict[str, str]:
    base = f"class/infiniband/{name}/ports/{port}"
    return {
        f"{base}/state": state, f"{base}/rate": rate, f"{base}/hw_counters/tx_bytes": "1000\n",
        f"{base}/hw_counters/rdma_write_wrs": "7\n", f"{base}/hw_counters/rx_drops": "2\n",
        f"{base}/hw_counters/lifespan": "10\n",
    }  # fmt: skip


def netdev(name: str, *, operstate: str = "up", speed: str | None = "25000\n", physical: bool = True) -> dict[str, str]:
    base = f"class/net/{name}"
    counters = {f"{base}/statistics/{counter}": "5\n" for counter in nic._NETDEV_COUNTERS}
    files = counters | {f"{base}/operstate": operstate + "\n"}
    if speed is not None:
        files[f"{base}/speed"] = speed
    if physical:
        files[f"{base}/device/vendor"] = "0x1d0f\n"
    return files


def test_rdma_ports_are_sampled_under_the_kernels_names(tmp_path):
    tree(tmp_path, rdma("rdmap0s6"))
    (device,) = find_devices(tmp_path)
    sink = Sink()
    NicSampler((device,), 0.01).sample(sink)
    assert sink == {
        "nic.rdmap0s6.tx_bytes": (1000, True),
        "nic.rdmap0s6.rdma_write_wrs": (7, True),
        "nic.rdmap0s6.rx_drops": (2, True),
        "nic.rdmap0s6.rate_bytes_s": (12_500_000_000, False),
    }


def test_further_ports_and_device_counters_are_told_apart(tmp_path):
    tree(tmp_path, rdma("mlx5_0") | rdma("mlx5_0", port=2) | {"class/infiniband/mlx5_0/hw_counters/active_pkts": "3\n"})
    names = [file.name for device in find_devices(tmp_path) for file in (*device.traffic, *device.others)]
    assert "nic.mlx5_0.active_pkts" in names
    assert "nic.mlx5_0/2.tx_bytes" in names
    assert len(names) == len(set(names)) == 7


def test_a_port_that_is_down_and_files_without_a_number_are_left_out(tmp_path):
    tree(tmp_path, rdma("down", state="1: DOWN\n") | {"class/infiniband/odd/ports/1/counters/port_xmit_data": "N/A\n"})
    assert find_devices(tmp_path) == ()


def test_physical_network_devices_come_before_the_loopback_and_virtual_ones_do_not_count(tmp_path):
    tree(tmp_path, netdev("eth0") | netdev("docker0", physical=False) | netdev("eth1", operstate="down")
         | netdev("lo", operstate="unknown", speed=None, physical=False))  # fmt: skip
    devices = find_devices(tmp_path)
    assert [(device.name, device.rate_bytes_s) for device in devices] == [("eth0", 3_125_000_000), ("lo", None)]
    assert {file.path.name for file in devices[0].traffic} == {"rx_bytes", "tx_bytes", "rx_packets", "tx_packets"}


def test_inside_a_container_the_virtual_device_is_taken(tmp_path):
    tree(tmp_path, netdev("eth0", physical=False, speed="10000\n") | netdev("lo", physical=False, speed=None))
    assert [device.name for device in find_devices(tmp_path)] == ["eth0", "lo"]


@pytest.mark.parametrize("speed", ["-1\n", "0\n", "", "unknown\n"])
def test_a_line_rate_that_the_kernel_does_not_know_is_absent(tmp_path, speed):
    tree(tmp_path, netdev("eth0", speed=speed))
    sink = Sink()
    NicSampler(find_devices(tmp_path), 0.01).sample(sink)
    assert "nic.eth0.tx_bytes" in sink
    assert "nic.eth0.rate_bytes_s" not in sink


@pytest.mark.parametrize(
    ("text", "rate"),
    [("400 Gb/sec (4X NDR)", 50_000_000_000), ("2.5 Gb/sec (1X SDR)", 312_500_000), ("0 Gb/sec", None), ("", None)],
)
def test_rdma_rates(text, rate):
    assert nic._rdma_rate(text) == rate


def test_a_device_that_goes_away_and_comes_back_does_not_end_the_sampling(tmp_path):
    tree(tmp_path, rdma("efa_0"))
    sampler = NicSampler(find_devices(tmp_path), 0.01)
    counter = tmp_path / "class/infiniband/efa_0/ports/1/hw_counters/tx_bytes"
    for content, seen in (("11\n", 11), ("gone\n", None), ("12\n", 12)):
        counter.write_text(content)
        sink = Sink()
        sampler.sample(sink)
        assert sink.get("nic.efa_0.tx_bytes", (None,))[0] == seen


def test_errors_and_drops_are_read_once_a_second(tmp_path, monkeypatch):
    tree(tmp_path, netdev("eth0"))
    now = [100.0]
    monkeypatch.setattr(nic.time, "monotonic", lambda: now[0])
    sampler = NicSampler(find_devices(tmp_path), 0.01)
    seen = []
    for _ in range(201):
        sink = Sink()
        sampler.sample(sink)
        seen.append("nic.eth0.rx_errors" in sink)
        now[0] += 0.01
    assert seen.count(True) == 3


def test_slow_counters_stretch_the_interval_and_are_complained_about(tmp_path, monkeypatch):
    tree(tmp_path, netdev("eth0"))
    ticks = iter(range(1_000_000))
    monkeypatch.setattr(nic.time, "monotonic", lambda: next(ticks) * 0.001)  # each sample takes a millisecond
    sampler = NicSampler(find_devices(tmp_path), 0.01)
    assert sampler.complaint == ""
    sampler.sample(Sink())
    assert sampler.interval_s == pytest.approx(0.05)
    assert "every 50 ms, not every 10 ms" in sampler.complaint


def test_an_emulated_device_is_read_from_its_own_tree(tmp_path, monkeypatch):
    port = tmp_path / "emulated" / "class" / "infiniband" / "softefa_0" / "ports" / "1"
    (port / "hw_counters").mkdir(parents=True)
    (port / "hw_counters" / "tx_bytes").write_text("17\n")
    (port / "rate").write_text("100 Gb/sec\n")
    monkeypatch.setenv("EFAPROF_SYSFS", str(tmp_path / "emulated"))
    (device,) = [device for device in find_devices(tmp_path / "empty") if device.name.startswith("softefa")]
    assert device.rate_bytes_s == 12_500_000_000


def test_every_counter_of_an_rdma_port_is_sampled_but_settings_and_what_is_no_number(tmp_path):
    base = "class/infiniband/rdmap0s6/ports/1"
    many = [f"{base}/hw_counters/{name}" for name in ("tx_pkts", "retrans_bytes", "unresponsive_remote_events")]
    many += [f"{base}/counters/{name}" for name in ("port_xmit_wait", "link_downed")]
    tree(tmp_path, rdma("rdmap0s6") | dict.fromkeys(many, "3\n") | {f"{base}/hw_counters/odd": "three\n"})
    sink = Sink()
    NicSampler(find_devices(tmp_path), 0.001).sample(sink)
    wanted = {Path(name).name for name in many} | {"tx_bytes", "rdma_write_wrs", "rx_drops", "rate_bytes_s"}
    assert set(sink) == {f"nic.rdmap0s6.{name}" for name in wanted}


@pytest.mark.parametrize("interval_ms", [1, 10, 100])
def test_traffic_is_sampled_as_often_as_asked_while_there_is_traffic(tmp_path, monkeypatch, interval_ms):
    tree(tmp_path, rdma("rdmap0s6"))
    counter = tmp_path / "class/infiniband/rdmap0s6/ports/1/hw_counters/tx_bytes"
    now = [100.0]
    monkeypatch.setattr(nic.time, "monotonic", lambda: now[0])
    sampler = NicSampler(find_devices(tmp_path), interval_ms / 1000)
    asked = []
    for number in range(1, 6):
        counter.write_text(f"{number * 10**9}\n")
        sampler.sample(Sink())
        asked.append(sampler.interval_s)
        now[0] += sampler.interval_s
    assert asked[1:] == [interval_ms / 1000] * 4
