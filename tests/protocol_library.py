"""The C++ protocol headers as Python calls (tests/native/protocol.cpp)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cffi import FFI

_CDEF = """
uint64_t test_ring(uint64_t capacity, uint64_t commands);
uint64_t test_waiting(uint64_t capacity, uint64_t first, uint64_t pushes, uint8_t *waiting);
uint32_t test_pack_imm(uint32_t src, uint32_t channel, uint64_t wire_seq);
int64_t test_unwrap(uint64_t next, uint16_t low);
uint32_t test_window_size(void);
void *test_window_new(uint64_t next);
void test_window_free(void *window);
int test_window_arrive(void *window, uint16_t low, int64_t *seq);
int test_window_hand_over(void *window, uint64_t *seq);
void test_route(uint64_t seed, uint32_t step, uint32_t layer, uint32_t rank, uint32_t token, uint32_t topk,
                uint32_t experts, uint16_t *expert, uint8_t *weight);
int32_t test_value(uint64_t seed, uint32_t step, uint32_t layer, uint32_t rank, uint32_t token, uint32_t element);
void test_heap(const uint32_t *shape, uint64_t *out);
uint16_t test_bf16(float value);
float test_bf16_value(uint16_t bits);
uint8_t test_fp8(float value);
float test_fp8_value(uint8_t code);
uint64_t test_payload(uint32_t hidden, uint32_t element_bytes, uint64_t seed, uint32_t token, uint8_t *payload,
                      uint16_t *elements);
float test_payload_value(uint32_t hidden, uint32_t element_bytes, const uint8_t *payload, uint32_t element);
uint64_t test_enter(uint64_t ns);
void test_wqe(uint64_t place, uint32_t count, uint64_t source, uint64_t offset, uint64_t base, uint32_t bytes,
              uint32_t imm, int has_imm, uint16_t req_id, uint8_t *out);
int test_has_space(uint64_t place, uint64_t completed, uint32_t count);
uint64_t test_turns(uint32_t threads, uint32_t batch, uint32_t count);
uint32_t test_completions(uint64_t read, uint32_t count, uint32_t there, uint32_t status, uint32_t *ended);
uint64_t test_counter(uint64_t before, uint64_t after, uint64_t errors, uint64_t *failed);
"""

ffi = FFI()
ffi.cdef(_CDEF)


def load(build_dir: Path) -> Any:
    """The library of a build with EFAPROF_TESTS=ON."""
    path = build_dir / "lib" / "libefaprof-protocol-test.so"
    if not path.is_file():
        pytest.skip(f"{path} is missing: make native")
    return ffi.dlopen(str(path))
