#!/usr/bin/env bash
# make demo: decode steps of an MoE model over libfabric on loopback, recorded and attributed; needs no GPU and no EFA.
set -euo pipefail
efaprof=${BIN:-.venv/bin}/efaprof
run=${RUN:-efaprof-demo-$(date +%Y%m%d-%H%M%S)-$$}
steps=${STEPS:-300}

# The real efa-direct provider on an emulated device where a libfabric has it, else tcp on loopback.
wire=(--provider efa-direct --emulate "rate=100Gbps,latency=12us")
where="efa-direct on an emulated EFA device"
if ! "$efaprof" bench dispatch "${wire[@]}" --steps 1 --warmup 0 --layers 1 --no-record >/dev/null 2>&1; then
  wire=(--provider tcp)
  where="tcp on loopback (pip install 'efaprof[demo]' and libibverbs-dev bring efa-direct on an emulated device)"
fi

echo "── 2 ranks, 8 layers, $steps decode steps: kernel (a CPU thread) → ring → proxy → libfabric → nic"
echo "   $where"
"$efaprof" bench dispatch --ranks 2 --layers 8 --steps "$steps" --warmup 20 "${wire[@]}" -o "$run"
echo
echo "── where each token's time goes"
"$efaprof" attribute "$run"
echo
echo "── the same run as a timeline"
"$efaprof" export "$run" --max-events 2000000
echo
echo "next: $efaprof open $run            the timeline in the Perfetto UI"
echo "      $efaprof record -- PROGRAM    the same for a program of yours that uses libfabric"
