#!/usr/bin/env bash
# make demo: decode steps of an MoE model over libfabric on loopback, recorded and attributed; needs no GPU and no EFA.
set -euo pipefail
efaprof=${BIN:-.venv/bin}/efaprof
run=${RUN:-efaprof-demo-$(date +%Y%m%d-%H%M%S)-$$}
steps=${STEPS:-300}

echo "── 2 ranks, 8 layers, $steps decode steps: kernel (a CPU thread) → ring → proxy → libfabric → nic (loopback)"
"$efaprof" bench dispatch --ranks 2 --layers 8 --steps "$steps" --warmup 20 -o "$run"
echo
echo "── where each token's time goes"
"$efaprof" attribute "$run"
echo
echo "── the same run as a timeline"
"$efaprof" export "$run" --max-events 2000000
echo
echo "next: $efaprof open $run            the timeline in the Perfetto UI"
echo "      $efaprof record -- PROGRAM    the same for a program of yours that uses libfabric"
