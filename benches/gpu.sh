#!/usr/bin/env bash
# What a card shows, in stages that are of use each on its own, for a machine that is at hand for a quarter of an hour:
#
#   run.sh [A] [B] [C] [D] [P] [--out FOLDER]     A to D without a name; FOLDER is `results`
#
#   A  the cards, every `gpu_` test, the first steps                                      about 2 minutes
#   B  ResNet-50 and GPT-2 124M in bf16, in turn with PyTorch eager, channels-last        about 1 minute
#   C  the other models, sizes and precisions, with graphs and without, beside PyTorch
#   D  the two of B beside torch.compile                                                  about 3 minutes
#   P  the kernels of a step of the two, and their shares of its time, ours and PyTorch's
#
# Each program's output is in FOLDER/STAGE.log as it comes, and FOLDER/table.md is made anew after each: one row for each model, batch and
# precision, one column for each program. What is killed has lost nothing. `just gpu-pack` puts this script beside the programs that it
# runs; the folder needs a driver and CUDA's libraries (docs/gpu.md), neither Rust nor the network.
#
# Exits with 3 where there is no GPU, and with 1 if a test, or a program that should measure, fails. `--tiny` trains small models on the CPU,
# to see that the script works. `--table FILE...` makes the table of what earlier runs have said.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

# Rows of one table out of all lines `SPEED | work | program | text | card |`; what was measured several times is there as often.
table() {
  cat "$@" | awk -F ' [|] ' '
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
    }'
  echo
  cat "$@" | grep -E '^(TABLE|SKIPPED|passed)|FAILED|panicked' | sed 's/^TABLE //'
}

out=results stages=() tiny=()
while [ "$#" -gt 0 ]; do
  case "$1" in
    --table) shift; table "$@"; exit ;;
    --out) out="$2"; shift ;;
    --tiny) tiny=(--tiny) ;;
    A | B | C | D | P) stages+=("$1") ;;
    *) echo "error: \`$1\` is no stage; they are A, B, C, D and P" >&2; exit 2 ;;
  esac
  shift
done
[ "${#stages[@]}" -gt 0 ] || stages=(A B C D)
if [ "${#tiny[@]}" -eq 0 ] && ! ./gpu-bench --cards; then
  echo 'error: there is nothing to measure without a GPU' >&2
  echo '  do: run this folder where `nvidia-smi` shows one, with the libraries that docs/gpu.md names' >&2
  exit 3
fi
mkdir -p "$out"
export DDPRUN="$PWD/ddprun" PACK_ROOT="$PWD"
python="${PYTHON:-python3}"
log=

# Runs a program of this stage: `run WHAT COMMAND...`. Its lines are in the log as it says them, and the table follows.
run() {
  local what="$1"
  shift
  "$@" 2>&1 | tee -a "$log"
  if [ "${PIPESTATUS[0]}" -ne 0 ]; then echo "FAILED: $what" | tee -a "$log"; fi
  table "$out"/?.log >"$out/table.md.new"
  mv "$out/table.md.new" "$out/table.md"
}

ddprun() { run "ddprun $*" ./gpu-bench "${tiny[@]}" "$@"; }

has_torch() { "$python" -c 'import torch' 2>/dev/null; }

torch() {
  if has_torch; then
    run "PyTorch $*" "$python" peers/bench_gpu.py "${tiny[@]}" "$@"
  else
    echo 'SKIPPED: no PyTorch (PYTHON=... names one)' | tee -a "$log"
  fi
}

# Each test in a process of its own, several at once: what hangs or ends costs its own time alone.
tests() {
  # shellcheck disable=SC2016
  local one='said=$(timeout -k 5 120 ./gpu-tests --exact "$0" --nocapture 2>&1); code=$?
    printf "%s\n" "$said" | grep -vE "^(running|test result)|^$"; [ "$code" -eq 0 ] && echo "passed: $0" || echo "FAILED: $0 ($code)"'
  ./gpu-tests --list | sed -n 's/: test$//p' | grep gpu_ | xargs -P 6 -n 1 bash -c "$one"
}

main_works=(--works resnet50:128,gpt2:8 --precisions bf16)

stage_A() {
  if [ "${#tiny[@]}" -eq 0 ]; then run 'the cards' ./gpu-bench --cards; fi
  run 'the driver' sh -c "nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | sed 's/^/TABLE | driver | /; s/\$/ | |/'"
  run tests tests
  ddprun --first
  torch --first
}

stage_B() {
  # In turn, so that a card that grows warm is seen.
  for _ in 1 2 3; do
    ddprun "${main_works[@]}"
    torch "${main_works[@]}"
  done
}

stage_C() {
  ddprun
  torch
  ddprun --no-graph
}

stage_D() {
  torch "${main_works[@]}" --compile
  ddprun "${main_works[@]}"
}

# CUPTI comes with toolkits and with PyTorch; its headers with toolkits.
stage_P() {
  local home="${CUDA_HOME:-/usr/local/cuda}" library="$out/profile.so" cupti work
  cupti="$(find -L "$home" -name libcupti.so.1? -print -quit 2>/dev/null)"
  if ! c++ -std=c++20 -O2 -shared -fPIC -I"$home/include" -I"$home/extras/CUPTI/include" gpu_profile.cpp -o "$library" \
    -L"${cupti%/*}" -l:"${cupti##*/}" 2>>"$log"; then
    echo "SKIPPED: no profile without a C++ compiler and CUPTI's headers below $home" | tee -a "$log"
    return
  fi
  export LD_LIBRARY_PATH="${cupti%/*}${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" PROFILE_MS=400
  CUDA_INJECTION64_PATH="$(realpath "$library")"
  export CUDA_INJECTION64_PATH
  for work in resnet50:128 gpt2:8; do
    ddprun --works "$work" --precisions bf16
    torch --works "$work" --precisions bf16
  done
}

for stage in "${stages[@]}"; do
  log="$out/$stage.log"
  : >"$log"
  echo "== stage $stage"
  "stage_$stage"
done
echo
cat "$out/table.md"
for stage in "${stages[@]}"; do
  if grep -qE '^FAILED|panicked' "$out/$stage.log"; then exit 1; fi
done
