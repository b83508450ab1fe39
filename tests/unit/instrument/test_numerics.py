"""The arithmetic that the GPU path's kernels are held to (instrument/protocol/numerics.h), beside torch's."""

from __future__ import annotations

import numpy as np
import pytest
from protocol_library import ffi, load

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def library(build_dir):
    return load(build_dir)


def values():
    """Floats of every size that matters, halfway cases among them."""
    generator = np.random.default_rng(7)
    spread = np.ldexp(generator.uniform(-1, 1, 4000), generator.integers(-14, 10, 4000))
    halfway = np.array([(n + 0.5) * 2.0**e for e in range(-9, 6) for n in range(16)])
    return np.concatenate([spread, halfway, -halfway, [0.0, 447.9, 448.0, 463.9, 464.0, 1000.0, -1e5]]).astype(
        np.float32
    )


def test_bfloat16_is_rounded_as_torch_does(library):
    every = values()
    expected = torch.from_numpy(every).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    assert [library.test_bf16(float(value)) for value in every] == expected.tolist()


def test_fp8_is_rounded_as_torch_does_and_saturates(library):
    every = values()
    clipped = torch.from_numpy(every).clamp(-448, 448)
    expected = clipped.to(torch.float8_e4m3fn).view(torch.uint8).tolist()
    assert [library.test_fp8(float(value)) for value in every] == expected


def test_every_fp8_code_means_what_torch_says(library):
    codes = [code for code in range(256) if code & 0x7F != 0x7F]  # the rest is no number
    expected = torch.tensor(codes, dtype=torch.uint8).view(torch.float8_e4m3fn).float().tolist()
    assert [library.test_fp8_value(code) for code in codes] == expected


@pytest.mark.parametrize("hidden", [128, 384])
def test_an_fp8_payload_is_what_scaling_each_group_by_its_largest_element_gives(library, hidden):
    payload, elements = ffi.new("uint8_t[]", hidden * 2), ffi.new("uint16_t[]", hidden)
    length = library.test_payload(hidden, 1, 11, 3, payload, elements)
    assert length == hidden + hidden // 128 * 4
    raw = np.frombuffer(ffi.buffer(elements), np.uint16).astype(np.uint32) << 16
    groups = torch.from_numpy(raw.view(np.float32).copy()).view(-1, 128)
    largest = groups.abs().amax(dim=1, keepdim=True)
    most = torch.full_like(largest, 448.0)  # a number in its place would become a product with its reciprocal
    codes = (groups * (most / largest)).clamp(-448, 448).to(torch.float8_e4m3fn)
    got = bytes(ffi.buffer(payload, length))
    assert got[:hidden] == codes.view(torch.uint8).numpy().tobytes()
    assert got[hidden:] == (largest / most).numpy().tobytes()
    back = codes.float() * (largest / most)
    assert [library.test_payload_value(hidden, 1, payload, e) for e in range(hidden)] == back.flatten().tolist()


def test_a_bf16_payload_is_the_elements_and_no_two_tokens_are_alike(library):
    seen = set()
    for token in range(50):
        payload, elements = ffi.new("uint8_t[]", 512), ffi.new("uint16_t[]", 256)
        assert library.test_payload(256, 2, 5, token, payload, elements) == 512
        assert bytes(ffi.buffer(payload)) == bytes(ffi.buffer(elements))
        seen.add(bytes(ffi.buffer(payload)))
    assert len(seen) == 50


def test_elements_use_the_whole_range(library):
    payload, elements = ffi.new("uint8_t[]", 65536), ffi.new("uint16_t[]", 32768)
    library.test_payload(32768, 2, 5, 0, payload, elements)
    bits = np.frombuffer(ffi.buffer(elements), np.uint16).astype(np.uint32) << 16
    real = bits.view(np.float32)
    assert -4 <= real.min() < -3.99
    assert 3.99 < real.max() <= 4
    assert abs(real.mean()) < 0.1
    assert abs(real.std() - 8 / 12**0.5) < 0.1


def test_when_a_command_was_begun_is_exact_for_microseconds_and_close_beyond(library):
    for ns in range(0, 8160, 32):
        assert library.test_enter(ns) == ns
    for ns in (10_000, 123_456, 7_654_321, 200_000_000):
        assert library.test_enter(ns) == pytest.approx(ns, rel=1 / 128)
        assert library.test_enter(ns) <= ns
    assert library.test_enter(10_000_000_000) > 260_000_000
