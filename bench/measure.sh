#!/usr/bin/env bash
# Every benchmark table of this machine as one document, each from one run of its script:
#   bench/measure.sh [PYTHON] > docs/measured/NAME.md
# Needs the package installed for PYTHON and the test programs (make native; EFAPROF_BUILD_DIR says where they are).
set -uo pipefail
cd "$(dirname "$0")/.."
python=${1:-.venv/bin/python}
export EFAPROF_BUILD_DIR=${EFAPROF_BUILD_DIR:-$PWD/build/dev}

echo "# Measured on $(date -u +%Y-%m-%d)"
echo
echo "$(sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo | head -1), $(nproc) cores," \
  "$(awk '/MemTotal/ {printf "%.0f GiB", $2 / 1048576}' /proc/meminfo), Linux $(uname -r)," \
  "clocksource $(cat /sys/devices/system/clocksource/clocksource0/current_clocksource)," \
  "load $(cut -d' ' -f1 /proc/loadavg) at the start; version $(git describe --always --dirty 2>/dev/null || echo unknown)."
echo "A virtual machine shared with others: read the ratios, which are of one run, not the absolute times."
for script in bench/*.py; do
  echo
  echo "## $script"
  echo '```'
  timeout "${BENCH_TIMEOUT:-600}" "$python" "$script" 2>&1 | sed 's/[[:space:]]*$//' || echo "(ended with status $?)"
  echo '```'
done

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
efaprof() { "$python" -m efaprof "$@"; }
first() { LC_ALL=C.UTF-8 sed -E "s/^(.{$1}).*/\\1/"; } # characters of each line: cut counts bytes
dispatched() { # cores, then options of bench dispatch: the report of one run on that many cores
  rm -rf "$folder/run"
  taskset -c "0-$(($1 - 1))" "$python" -m efaprof bench dispatch "${@:2}" -o "$folder/run" 2>/dev/null &&
    efaprof attribute "$folder/run"
}

echo
echo "## efaprof bench dispatch, efaprof attribute"
echo '```'
dispatched "$(nproc)"
echo '```'

echo
echo "## The same on fewer cores: when the verdict stops being about the machine"
echo '```'
for cores in 2 4 6 8 12 16; do
  [ "$cores" -le "$(nproc)" ] || continue
  echo "$cores cores"
  dispatched "$cores" | grep -E '^per token|path |waited for a core' | first 110
done
echo '```'

echo
echo "## 200 µs injected into every operation in one layer: 2 layers, 1 channel, 2 tokens"
echo '```'
for layer in none kernel ring proxy libfabric nic rx; do
  inject=(); [ "$layer" = none ] || inject=(--inject "$layer=200us")
  echo "injected into: $layer"
  dispatched "$(nproc)" --layers 2 --channels 1 --tokens 2 --hidden 256 --steps 300 "${inject[@]}" |
    grep -E '^(layer|compute|kernel|ring|proxy|libfabric|nic|rx|poll|skew) |path ' | first 128
done
echo '```'

echo
echo "## --signal imm against fence and fence-batch"
echo '```'
for signal in imm fence fence-batch; do
  echo "signal: $signal"
  dispatched "$(nproc)" --signal "$signal" | grep -E '^per token|^together|path ' | first 150
done
echo '```'
