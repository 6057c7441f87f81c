# `just` alone lists the recipes. `.ci/run` does what `just check` does.

set positional-arguments

_list:
    @just --list --unsorted

# Everything that must pass before a commit, cheapest first.
[group('check')]
check: forbid fmt-check lint doc test

# Format the code.
[group('check')]
fmt:
    cargo fmt

# Say what `fmt` would change.
[group('check')]
fmt-check:
    cargo fmt --check

# Clippy, with every warning an error.
[group('check')]
lint:
    cargo clippy --locked --all-targets -- -D warnings

# All tests; arguments go to `cargo test`: `just test -p ddprun-run --lib record`.
[group('check')]
test *args:
    cargo test --locked "$@"

# Ranks that are killed, stopped and hung at every phase of a run, by fail points (`crates/host/src/failpoint.rs`).
[group('check')]
failpoints:
    cargo test --locked --test cli -- failpoints same_bits
    cargo test --locked --test cli -- --ignored strace --nocapture
    cargo test --locked --workspace --lib failpoint

# The tests that `just test` leaves out because they take minutes: starved ranks, memory over 100,000 steps, disks that end
# at any byte, a kill at each system call, forged messages by the million, a job of several turns under Slurm's shortest limit. Then an
# hour of drawn schedules, and how many that were.
[group('check')]
soak seconds="3600":
    cargo test --locked --workspace --lib --test cli -- --ignored --nocapture --test-threads=1
    CHAOS_SECONDS={{seconds}} cargo test --locked --test chaos -- --nocapture

# N drawn schedules (tests/chaos) of data, model, settings, launchers, ranks, kills, signals and readers; `just chaos 1 SEED` plays one
# again, and `just chaos 1 SEED 0,3,8` only these of its parts.
[group('check')]
chaos n="50" seed="1" only="":
    CHAOS={{n}} CHAOS_SEED={{seed}} CHAOS_ONLY={{only}} cargo test --locked --test chaos -- --nocapture

# Coverage-guided fuzzing with libFuzzer on nightly Rust: `just fuzz image 600`; without a name all targets, a minute each.
[group('check')]
fuzz target="all" seconds="60":
    #!/usr/bin/env bash
    set -euo pipefail
    host="$(rustc -vV | sed -n 's/^host: //p')"
    # What cargo-fuzz sets: counters and comparisons that libFuzzer looks at.
    coverage=(level=4 inline-8bit-counters pc-table trace-compares stack-depth)
    export RUSTFLAGS="-Cpasses=sancov-module ${coverage[*]/#/-Cllvm-args=-sanitizer-coverage-} --cfg fuzzing"
    cargo +nightly build --locked --release --manifest-path fuzz/Cargo.toml --target "$host" --target-dir target/fuzz
    targets="{{target}}"
    if [ "$targets" = all ]; then targets="$(ls fuzz/corpus)"; fi
    for name in $targets; do
      mkdir -p "target/fuzz/found/$name"
      FUZZ_TARGET="$name" "target/fuzz/$host/release/fuzz" "target/fuzz/found/$name" "fuzz/corpus/$name" -max_total_time={{seconds}} \
        -max_len=16384 -timeout=20 -rss_limit_mb=3000 -artifact_prefix="target/fuzz/$name-" -print_final_stats=1
    done

# The tests `gpu_` over a stand-in for CUDA, without a GPU, a toolkit or CUDA's libraries; `just cuda-standin gpu_rows` runs some.
[group('check')]
cuda-standin *tests="gpu_":
    #!/usr/bin/env bash
    set -euo pipefail
    tests/cuda_standin/build.sh target/cuda_standin
    target/cuda_standin/selftest
    export PATH="$PWD/.ci/fake-cuda:$PATH" CUDA_COMPUTE_CAP=80 CUDARC_CUDA_VERSION=13000
    cargo test --locked --workspace --features cuda --no-run --lib --test gpu --test cli
    export LD_LIBRARY_PATH="$PWD/target/cuda_standin${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}" CUDA_STANDIN_CARDS=2
    # Kernels that are kept for real cards are none of the stand-in's, nor the other way round.
    export DDPRUN_CACHE=off
    # Whole runs of a few steps.
    export DDPRUN_DATA__TRAIN_PER_CLASS=32 DDPRUN_DATA__VAL_PER_CLASS=8
    cargo test --locked --workspace --features cuda --lib --test gpu -- --nocapture {{tests}}

# Every model on every kind of data over the stand-in for CUDA.
[group('check')]
cuda-standin-models: (cuda-standin "gpu_initial")
    DDPRUN_CACHE=off LD_LIBRARY_PATH="$PWD/target/cuda_standin" PATH="$PWD/.ci/fake-cuda:$PATH" CUDA_COMPUTE_CAP=80 CUDARC_CUDA_VERSION=13000 \
      cargo test --locked --features cuda --test cli -- every_model_takes_a_step

# Lengths of paragraphs, cells and comments.
[group('check')]
prose:
    cargo test --locked --test cli --test layering -- --ignored pages_have_short no_comment_is_wider

# The import rule alone: a module uses only modules declared above it in its package's `lib.rs`.
[group('check')]
layering:
    cargo test --locked --test layering

# The documentation of the library, with every warning an error.
[group('check')]
doc:
    RUSTDOCFLAGS="-D warnings" cargo doc --locked --no-deps --document-private-items

# Licences, sources and known advisories of all dependencies (deny.toml); needs `cargo install --locked cargo-deny`.
[group('check')]
deny:
    cargo deny --locked --workspace check

# Words that belong into an issue or nowhere (`tests/layering.rs` looks for some of them too).
[group('check')]
forbid:
    ! grep -rnsE 'dbg!|\b(TODO|FIXME|XXX)\b|#\[allow|#!\[allow' --include='*.rs' --exclude=layering.rs src crates tests benches examples

# Train: `just run experiments/quickstart.toml train.epochs=2`.
[group('run')]
run exp *args:
    cargo run --locked --release -- "$@"

# Say what would happen, and do nothing.
[group('run')]
plan exp *args:
    cargo run --locked --release -- plan "$@"

# Continue a run that was stopped; without a name, the newest.
[group('run')]
resume *run:
    cargo run --locked --release -- resume "$@"

# Table and curves of a run; without a name, the newest.
[group('run')]
report *run:
    cargo run --locked --release -- report "$@"

# Benchmarks; `just bench -- --save-baseline before`, then `just bench -- --baseline before`.
[group('measure')]
bench *args:
    cargo bench --locked -p candle-train "$@"
    cargo bench --locked -p ddprun-benches "$@"

# ddprun against PyTorch, in alternating pairs: `PYTHON=/venv/bin/python just bench-peers mlp allreduce`; all without a name.
[group('measure')]
bench-peers *names:
    cargo bench --locked -p ddprun-benches --bench peers -- pairs "$@"

# Vectorised loops of `ops` that the compiler left scalar.
[group('measure')]
scalar-loops:
    cargo rustc --release --locked -p candle-train --lib -- -C symbol-mangling-version=v0 --emit asm=target/loops.s
    python3 benches/scalar_loops.py target/loops.s

# What a machine with a GPU needs, without Rust and network: target/gpu, and the same packed as target/gpu.tar.gz. Built without a GPU, so
# `CUDA_COMPUTE_CAP=80 CUDARC_CUDA_VERSION=13000` say for what.
[group('measure')]
gpu-pack:
    #!/usr/bin/env bash
    set -euo pipefail
    rm -rf target/gpu && mkdir -p target/gpu
    executable() { sed -n "s|.*\"executable\":\"\([^\"]*$1[^\"]*\)\".*|\1|p" | tail -n 1; }
    build=(--locked --features cuda --message-format=json)
    cp "$(cargo build "${build[@]}" --release --bin ddprun | executable /ddprun)" target/gpu/ddprun
    cp "$(cargo test "${build[@]}" --release --no-run --test gpu | executable /gpu-)" target/gpu/gpu-tests
    cp "$(cargo bench "${build[@]}" -p ddprun-benches --no-run --bench gpu | executable /gpu-)" target/gpu/gpu-bench
    strip target/gpu/{ddprun,gpu-tests,gpu-bench}
    cp benches/gpu.sh target/gpu/run.sh
    cp benches/gpu_profile.cpp target/gpu/
    mkdir target/gpu/peers && cp benches/peers/{bench_gpu,models}.py target/gpu/peers
    cp -r experiments target/gpu/experiments
    tar -C target -czf target/gpu.tar.gz gpu
    ls -lh target/gpu target/gpu.tar.gz

# On a machine with a GPU: every `gpu_` test, then steps of models beside PyTorch's, and all results as one table; `just gpu A B` for two
# of the stages (benches/gpu.sh).
[group('measure')]
gpu *stages: gpu-pack
    target/gpu/run.sh {{stages}}

# The packages, below target/package: a wheel for pip, an archive for `cargo binstall`, Homebrew and containers, and a list of
# all crates in them (CycloneDX). Arguments go to maturin: `just package --zig --compatibility manylinux_2_28`, `just package --features cuda` (docs/install.md).
[group('package')]
package *args:
    #!/usr/bin/env bash
    set -euo pipefail
    out=target/package
    rm -rf "$out" ddprun.data
    trap 'rm -rf ddprun.data' EXIT
    maturin build --profile dist --out "$out" "$@"
    # The program that was built writes its own man pages and completions, and the second wheel holds them.
    program="$out/ddprun" share=ddprun.data/data/share
    python3 -c 'import sys, zipfile as z; w = z.ZipFile(sys.argv[1]); sys.stdout.buffer.write(w.read(next(n for n in w.namelist() if n.endswith("scripts/ddprun"))))' "$out"/*.whl > "$program"
    chmod +x "$program"
    mkdir -p "$share"/{bash-completion/completions,zsh/site-functions,fish/vendor_completions.d}
    "$program" man-pages "$share/man/man1"
    "$program" completions bash > "$share/bash-completion/completions/ddprun"
    "$program" completions zsh > "$share/zsh/site-functions/_ddprun"
    "$program" completions fish > "$share/fish/vendor_completions.d/ddprun.fish"
    maturin build --profile dist --out "$out" "$@"
    name="ddprun-$("$program" --version | cut -d' ' -f2)-$(rustc -vV | sed -n 's/^host: //p')"
    mkdir -p "$out/$name/bin"
    mv "$program" "$out/$name/bin/"
    cp -r "$share" README.md CHANGELOG.md LICENSE-* "$out/$name/"
    tar -C "$out" -czf "$out/$name.tar.gz" "$name"
    rm -r "${out:?}/$name"
    python3 -c 'import sys, zipfile as z; w = z.ZipFile(sys.argv[1]); sys.stdout.buffer.write(w.read(next(n for n in w.namelist() if n.endswith("sboms/ddprun.cyclonedx.json"))))' "$out"/*.whl > "$out/$name.cyclonedx.json"
    (cd "$out" && sha256sum ./*.whl ./*.tar.gz ./*.json | tee SHA256SUMS)
    ls -lh "$out"

# Whether each crate could be published: complete metadata, and a package that builds by itself.
[group('package')]
publish-check *args:
    cargo publish --locked --workspace --dry-run "$@"
