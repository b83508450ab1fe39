#!/bin/bash
# Builds what needs CUDA, tests it on this machine's GPU and prints one table of what it does. About six minutes.
#   bench/gpu_check.sh [section…]     sections of bench/gpu.py; none: all of them
# EFAPROF_BUILD_DIR: a build folder that is there already. PYTHON: the interpreter that efaprof is installed for.
set -uo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3}
if [ -z "${EFAPROF_BUILD_DIR:-}" ]; then
    export EFAPROF_BUILD_DIR=$PWD/build/gpu
    cmake -S . -B "$EFAPROF_BUILD_DIR" -DEFAPROF_CUDA=ON -DEFAPROF_TESTS=ON >&2 || exit 1
    cmake --build "$EFAPROF_BUILD_DIR" -j "$(nproc)" >&2 || exit 1
fi
export EFAPROF_LIB_DIR=${EFAPROF_LIB_DIR:-$EFAPROF_BUILD_DIR/lib}
failed=0
if "$python" -c 'import pytest' 2>/dev/null; then
    "$python" -m pytest -q tests/gpu >&2 || failed=1
else
    for test in tests/gpu/test_*.py; do "$python" "$test" >&2 || failed=1; done
fi
"$python" bench/gpu.py "$@" || failed=1
# A kernel that posts to the emulated device by itself.
work=$(mktemp -d)
if nvcc -O2 -std=c++17 -Inative/softefa -o "$work/softefa_gpu" bench/softefa_gpu.cu -libverbs -lefa -ldl 2>"$work/log"; then
    for window in 1 64; do
        said=$(WINDOW=$window "$python" -m efaprof softefa -- "$work/softefa_gpu" 2>"$work/log") || { failed=1; said=FAILED; }
        echo "| a kernel's own entries on softefa | ${said//$'\n'/ } | | |"
    done
else
    echo "| a kernel's own entries on softefa | not built: $(tail -n 1 "$work/log") | | |"
fi
rm -rf "$work"
exit $failed
