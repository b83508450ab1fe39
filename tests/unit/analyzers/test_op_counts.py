from __future__ import annotations

from dataclasses import replace

import pytest

from efaprof.analyzers.op_counts import PRESETS, Dtype, dense, direct, hybrid, low_latency
from efaprof.errors import UsageError

QWEN, V3 = PRESETS["qwen3-30b-a3b"], PRESETS["deepseek-v3"]


@pytest.mark.parametrize(
    ("channels", "one_token", "eight_tokens", "qwen_step", "v3_step"),
    [
        (16, 42, 56, 2016, 2436),
        (32, 74, 88, 3552, 4292),
        (48, 106, 120, 5088, 6148),
        (64, 138, 152, 6624, 8004),
        (192, 394, 408, 18912, 22852),
    ],
)
def test_hybrid_counts_are_those_of_the_sources(channels, one_token, eight_tokens, qwen_step, v3_step):
    qwen, v3 = replace(QWEN, channels=channels), replace(V3, channels=channels)
    assert round(hybrid(qwen).per_layer) == one_token
    assert round(hybrid(replace(qwen, tokens=8)).per_layer) == eight_tokens
    assert round(hybrid(qwen).per_layer * qwen.layers) == qwen_step
    assert round(hybrid(v3).per_layer * v3.layers) == v3_step


def test_token_bytes_are_those_of_the_sources():
    assert (QWEN.dispatch_bytes, QWEN.combine_bytes) == (2240, 4160)
    assert (V3.dispatch_bytes, V3.combine_bytes) == (7520, 14400)
    assert replace(QWEN, dtype=Dtype.BF16).dispatch_bytes == 4224
    assert replace(V3, dtype=Dtype.BF16).dispatch_bytes == 14464


def test_a_decode_layer_is_nine_kilobytes_for_qwen_and_twentyfive_for_v3():
    assert hybrid(replace(QWEN, channels=32)).wire_bytes == pytest.approx(9e3, rel=0.05)
    assert hybrid(replace(V3, channels=32)).wire_bytes == pytest.approx(25e3, rel=0.05)


def test_most_tokens_leave_their_node():
    assert QWEN.remote_nodes_reached == pytest.approx(0.997, abs=5e-4)
    assert replace(QWEN, nodes=1).remote_nodes_reached == 0.0


def test_direct_mode_is_known_for_sixteen_ranks():
    assert direct(QWEN).per_layer == pytest.approx(94.6, abs=0.05)
    assert round(direct(QWEN).per_layer * QWEN.layers) == 4541
    with pytest.raises(UsageError, match="16 ranks"):
        direct(replace(QWEN, ranks=32))


def test_low_latency_posts_per_expert():
    assert low_latency(QWEN).per_layer == 136
    assert low_latency(V3).per_layer == 264
    assert low_latency(QWEN).per_layer * QWEN.layers == 6528
    assert low_latency(V3).per_layer * V3.layers == 15312


def test_dense_moves_whole_activations_in_two_messages():
    assert dense(QWEN).per_layer == 2
    assert dense(QWEN).wire_bytes == 2 * 2 * 2048


def test_kinds_add_up():
    for count in (hybrid(QWEN), direct(QWEN), low_latency(V3), dense(V3)):
        assert count.per_layer == pytest.approx(sum(count.by_kind.values()))
