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
echo
echo "## efaprof bench dispatch, efaprof attribute"
echo '```'
run=$(mktemp -d)/run
"$python" -m efaprof bench dispatch -o "$run" 2>/dev/null && "$python" -m efaprof attribute "$run"
rm -rf "$(dirname "$run")"
echo '```'
