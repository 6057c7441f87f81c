#!/usr/bin/env bash
# Builds the stand-in into a folder, under the names of CUDA's libraries: `build.sh FOLDER`. A program finds it there by
# LD_LIBRARY_PATH.
set -euo pipefail
folder="$(mkdir -p "$1" && cd "$1" && pwd)" # absolute, for the loader
cd "$(dirname "${BASH_SOURCE[0]}")"

flags=(-std=c++20 -O3 -march=native -Wall -Wextra -Wno-enum-compare -Werror -fPIC -fvisibility=hidden -pthread)
parts=()
for source in *.cpp; do
  part="$folder/${source%.cpp}.o"
  parts+=("$part")
  newest="$(ls -t ./*.h "$source" "$part" 2>/dev/null | head -1)" || true
  [ "$newest" = "$part" ] || c++ "${flags[@]}" -c "$source" -o "$part"
done
# Its own calls stay its own, whatever the program defines under the same names.
c++ -shared -pthread -Wl,-Bsymbolic "${parts[@]}" -o "$folder/libstandin.so" -ldl
cp device_code.h "$folder"
for library in libcuda.so.1 libcublas.so.13 libcublasLt.so.13 libcurand.so.10 libcudart.so.13 libnvrtc.so.13 libcudnn.so.9 libnccl.so.2; do
  ln -sf libstandin.so "$folder/$library"
done
c++ -std=c++20 -O1 -Wall -Wextra -Werror -pthread selftest/main.cpp -o "$folder/selftest" "$folder/libstandin.so" -Wl,-rpath,"$folder"
