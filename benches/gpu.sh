#!/usr/bin/env bash
# Every `gpu_` test, then training steps of models beside PyTorch's, and all results at the end: one row for each model, batch and
# precision, one column for each program. `just gpu-pack` puts this script beside the programs that it runs; the folder needs a driver
# and CUDA's libraries (docs/gpu.md), neither Rust nor the network.
#
# Exits with 3 where there is no GPU, and with 1 if a test, or a program that should measure, fails. `--table FILE` makes the table of what an
# earlier run has said.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

# Rows of one table out of all lines `SPEED | work | program | text | card |`; what was measured several times is there as often.
table() {
  awk -F ' [|] ' '
    $1 == "SPEED" {
      if (!($2 in seen)) { seen[$2] = 1; works[++rows] = $2 }
      if (!($3 in program)) { program[$3] = 1; programs[++columns] = $3 }
      said = $4
      sub(/ [|]$/, "", said)
      at = $2 SUBSEP $3
      if (at in cell) said = cell[at] "; " said
      cell[at] = said
    }
    END {
      if (!rows) exit
      line = "| model, batch, precision |"; rule = "|---|"
      for (c = 1; c <= columns; c++) { line = line " " programs[c] " |"; rule = rule "---|" }
      print line; print rule
      for (r = 1; r <= rows; r++) {
        line = "| " works[r] " |"
        for (c = 1; c <= columns; c++) line = line " " cell[works[r] SUBSEP programs[c]] " |"
        print line
      }
    }' "$1"
  echo
  grep -E '^(TABLE|SKIPPED|test result)|FAILED|panicked' "$1" | sed 's/^TABLE //'
}

if [ "${1:-}" = --table ]; then
  table "$2"
  exit
fi
if ! ./gpu-bench --cards; then
  echo 'error: there is nothing to measure without a GPU' >&2
  echo '  do: run this folder where `nvidia-smi` shows one, with the libraries that docs/gpu.md names' >&2
  exit 3
fi
export DDPRUN="$PWD/ddprun" DDPRUN_ROOT="$PWD"
python="${PYTHON:-python3}"
log="$(mktemp)"
{
  ./gpu-bench --cards
  nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | sed 's/^/TABLE | driver | /; s/$/ | |/'
  ./gpu-tests gpu_ --nocapture --test-threads=1 || echo 'FAILED: tests'
  ./gpu-bench --first || echo 'FAILED: the first step'
  ./gpu-bench || echo 'FAILED: the benchmark'
  ./gpu-bench --no-graph || echo 'FAILED: the benchmark without graphs'
  if "$python" -c 'import torch' 2>/dev/null; then
    "$python" peers/bench_gpu.py --first || echo "FAILED: PyTorch's first step"
    # In turn, so that a card that grows warm is seen.
    "$python" peers/bench_gpu.py || echo 'FAILED: PyTorch'
    ./gpu-bench || echo 'FAILED: the benchmark'
    "$python" peers/bench_gpu.py --compile || echo 'FAILED: PyTorch, compiled'
    ./gpu-bench || echo 'FAILED: the benchmark'
  else
    echo 'SKIPPED: no PyTorch (PYTHON=... names one)'
  fi
} 2>&1 | tee "$log"
echo
table "$log"
status=0
if grep -qE '^FAILED|panicked' "$log"; then status=1; fi
rm "$log"
exit "$status"
