from __future__ import annotations

from dataclasses import replace

import pytest

from efaprof.analyzers import op_time
from efaprof.analyzers.dispatch_model import Mode, ModelInputs, model
from efaprof.analyzers.op_counts import PRESETS
from efaprof.analyzers.op_time import Arm, Quantity, RecordedCosts
from efaprof.errors import UsageError
from efaprof.trace.layers import DispatchPath, Layer, Provenance

QWEN = PRESETS["qwen3-30b-a3b"]
DENSE_ITL = Quantity(36.0, Provenance.ASSUMED, "given")


def arms(**changes):
    return {arm.arm: arm for arm in model(ModelInputs(**{"shape": QWEN, "dense_itl_ms": DENSE_ITL, **changes}))}


def costs(**changes) -> RecordedCosts:
    values = {
        "source": "a-run",
        "path": DispatchPath.PROXY,
        "layers_us": {
            Layer.COMPUTE: 9000.0,
            Layer.RING: 1000.0,
            Layer.PROXY: 3000.0,
            Layer.NIC: 2000.0,
            Layer.SKEW: 7.0,
        },
        "recoverable_us": {Layer.PROXY: 1200.0},
        "groups_us": {"host": 3500.0},
        "operations_per_step": 2000.0,
        "tokens_per_step": 1.0,
        "emulated": (),
    }
    return RecordedCosts(**{**values, **changes})


def test_tax_is_operations_times_time():
    given = op_time.given_op_time({Layer.PROXY: 2.0, Layer.LIBFABRIC: 1.0})
    proxy = arms(op_time=given, ops_per_layer=100.0, arms=(Arm.PROXY,))[Arm.PROXY]
    assert proxy.t_op_us.value == 3.0
    assert proxy.tax_ms.value == pytest.approx(48 * 100 * 3.0 / 1e3)
    assert proxy.tax_per_layer_us.value == pytest.approx(300.0)
    assert proxy.itl_ms.value == pytest.approx(36.0 + 14.4)
    saved = {one.stage: (one.saves_ms.value, one.tok_s.value) for one in proxy.removals}
    assert saved["proxy"] == pytest.approx((9.6, 1000 / (50.4 - 9.6)))
    assert saved["libfabric"] == pytest.approx((4.8, 1000 / (50.4 - 4.8)))


def test_wire_time_and_utilisation_follow_from_bytes():
    proxy = arms(op_time=op_time.total_op_time(3.0), line_rate_bytes_s=50e9)[Arm.PROXY]
    assert proxy.wire_us_per_layer.value == pytest.approx(proxy.wire_bytes_per_layer.value / 50e9 * 1e6)
    assert proxy.utilisation.value == pytest.approx(proxy.wire_us_per_layer.value / (105.9938 * 3.0), rel=1e-5)


def test_several_tokens_a_step_share_its_tax():
    one = arms(op_time=op_time.total_op_time(3.0))[Arm.PROXY]
    two = arms(op_time=op_time.total_op_time(3.0), tokens_per_step=2.0)[Arm.PROXY]
    assert two.tax_ms.value == pytest.approx(one.tax_ms.value / 2)
    assert two.tax_per_layer_us.value == pytest.approx(one.tax_per_layer_us.value)


def test_solving_inverts_the_product():
    solved = arms(solve_tax_ms=14.7)
    for arm in (Arm.PROXY, Arm.GDAKI, Arm.IBGDA):
        t_op = solved[arm].t_op_us.value
        again = arms(op_time=op_time.total_op_time(t_op))[arm]
        assert again.tax_ms.value == pytest.approx(14.7)
    assert solved[Arm.PROXY].t_op_us.value == pytest.approx(14700 / 5087.70, rel=1e-5)
    assert solved[Arm.PROXY].removals == ()  # a tax alone does not split into stages


def test_the_dense_arm_is_the_control():
    dense = arms()[Arm.DENSE]
    assert (dense.tax_ms.value, dense.stages, dense.t_op_us.value) == (0.0, (), None)


def test_the_default_is_the_campaign_and_assumed():
    found = arms()
    assert found[Arm.PROXY].t_op_us.value == pytest.approx((391.6 + 543.4) / 295.11, rel=1e-3)
    assert found[Arm.GDAKI].t_op_us.value == pytest.approx((338.5 + 480.7) / 295.11, rel=1e-3)
    assert found[Arm.PROXY].tax_ms.provenance is Provenance.ASSUMED


def test_a_recorded_run_gives_measured_stages_and_conserves_its_communication():
    timed = op_time.recorded_op_time(costs())
    proxy = arms(op_time=timed)[Arm.PROXY]
    assert {stage.name: stage.per_op_us.value for stage in proxy.stages} == {"ring": 0.5, "proxy": 1.5, "nic": 1.0}
    assert all(stage.per_op_us.provenance is Provenance.MEASURED for stage in proxy.stages)
    assert proxy.tax_ms.value == pytest.approx(6.0)  # ring + proxy + nic, not compute or skew
    assert (proxy.ops_per_step.value, proxy.ops_per_layer.provenance) == (pytest.approx(2000.0), Provenance.MEASURED)


def test_a_run_without_steps_gives_the_mean_operation_and_says_so():
    mean = costs(
        operations_per_step=None, layers_us={Layer.LIBFABRIC: 0.4, Layer.NIC: 3.0}, recoverable_us={}, groups_us={}
    )
    proxy = arms(op_time=op_time.recorded_op_time(mean))[Arm.PROXY]
    assert proxy.t_op_us.value == pytest.approx(3.4)
    assert proxy.ops_per_layer.provenance is Provenance.DERIVED
    assert "overlap not taken out" in proxy.stages[0].per_op_us.formula
    assert proxy.tax_ms.provenance is Provenance.ASSUMED


def test_a_replayed_saving_replaces_the_upper_bound():
    removals = {one.stage: one.saves_ms for one in arms(op_time=op_time.recorded_op_time(costs()))[Arm.PROXY].removals}
    assert removals["proxy"].value == pytest.approx(1.2)
    assert removals["host together"].value == pytest.approx(3.5)
    assert removals["nic"].value == pytest.approx(2.0)
    assert "upper bound" in removals["nic"].formula


def test_what_was_measured_on_the_proxy_is_assumed_elsewhere():
    gdaki = arms(op_time=op_time.recorded_op_time(costs()))[Arm.GDAKI]
    assert [stage.name for stage in gdaki.stages] == ["nic"]
    assert gdaki.stages[0].per_op_us.provenance is Provenance.ASSUMED
    assert gdaki.ops_per_layer.provenance is Provenance.DERIVED


def test_a_path_without_any_timed_stage_is_refused():
    with pytest.raises(UsageError, match="gdaki"):
        arms(op_time=op_time.given_op_time({Layer.PROXY: 2.0}))


def test_modes_change_the_count_of_the_deepep_paths_only():
    hybrid, direct = arms(), arms(mode=Mode.DIRECT)
    assert direct[Arm.PROXY].ops_per_layer.value == pytest.approx(94.6, abs=0.05)
    assert direct[Arm.IBGDA].ops_per_layer == hybrid[Arm.IBGDA].ops_per_layer


def test_load_barely_moves_the_operations_of_a_decode_step():
    few, many = (arms(shape=replace(QWEN, tokens=tokens))[Arm.PROXY] for tokens in (0.25, 2.0))
    assert many.ops_per_step.value / few.ops_per_step.value < 1.05


def test_every_number_has_a_formula():
    for arm in arms().values():
        for name in type(arm).__dataclass_fields__:
            value = getattr(arm, name)
            if isinstance(value, Quantity):
                assert value.formula, name
