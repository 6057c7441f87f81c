#!/usr/bin/env bash
# Every `gpu_` test, then passes of models beside PyTorch's, and all results as one table at the end. `just gpu-pack` puts this script
# beside the programs that it runs; the folder needs a driver and CUDA's libraries (docs/gpu.md), neither Rust nor the network.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
export DDPRUN="$PWD/ddprun" DDPRUN_ROOT="$PWD"
python="${PYTHON:-python3}"
log="$(mktemp)"
{
  nvidia-smi --query-gpu=name,memory.total,driver_version --format=csv,noheader | sed 's/^/TABLE | card | /; s/$/ | |/'
  ./gpu-tests gpu_ --nocapture --test-threads=1
  ./gpu-bench --first
  ./gpu-bench
  ./gpu-bench --no-graph
  if "$python" -c 'import torch' 2>/dev/null; then
    "$python" peers/bench_gpu.py --first
    # In turn, so that a card that grows warm is seen.
    "$python" peers/bench_gpu.py
    ./gpu-bench
    "$python" peers/bench_gpu.py --compile
    ./gpu-bench
  else
    echo 'SKIPPED: no PyTorch (PYTHON=... names one)'
  fi
} 2>&1 | tee "$log"
echo
grep -E '^(TABLE|SKIPPED|test result)|FAILED|panicked' "$log" | sed 's/^TABLE //'
rm "$log"
