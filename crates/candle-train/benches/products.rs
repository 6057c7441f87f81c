//! Dense products in floating-point operations per second (`Throughput::Elements`), beside the
//! `gemm` crate's.
//!
//! `RAYON_NUM_THREADS=1 cargo bench --bench products` for one thread.
#![expect(clippy::expect_used, reason = "a benchmark may stop")]
#![expect(unsafe_code, reason = "the `gemm` crate takes raw pointers")]

use std::time::Duration;

use candle_core::{Device, Result, Tensor, Var};
use candle_train::Precision;
use candle_train::ops::{
    Attention, LinearActivation, Weight, attention_packed, linear, linear_activated,
};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

/// Rows, inputs and outputs: a perceptron's first layer, those of two transformers, and a large
/// square.
const SHAPES: [(usize, usize, usize); 5] =
    [(128, 784, 512), (768, 128, 512), (768, 512, 128), (3072, 384, 1536), (1024, 1024, 1024)];

/// Values without a pattern, in [-1, 1).
fn values(n: usize) -> Vec<f32> {
    (0..n as u32)
        .map(|i| (i.wrapping_mul(0x9E37_79B9) >> 8) as f32 / (1 << 23) as f32 - 1.0)
        .collect()
}

fn var(shape: &[usize]) -> Var {
    Var::from_vec(values(shape.iter().product()), shape, &Device::Cpu).expect("memory")
}

fn products(c: &mut Criterion) {
    for (m, k, n) in SHAPES {
        let name = format!("linear {m} x {k} -> {n}");
        let mut group = c.benchmark_group(name);
        group.sample_size(10).measurement_time(Duration::from_secs(1));
        group.throughput(Throughput::Elements(2 * (m * k * n) as u64));
        let (x, w, bias) = (var(&[m, k]), var(&[n, k]), var(&[n]));
        let [detached_x, detached_w] = [&x, &w].map(candle_core::Var::as_detached_tensor);
        group.bench_function("forward", |bencher| {
            bencher.iter(|| linear(&detached_x, &(&detached_w).into(), None, Precision::Fp32));
        });
        let (mut y, x_values, w_values) = (vec![0.0; m * n], values(m * k), values(n * k));
        group.bench_function("forward, gemm crate", |bencher| {
            bencher.iter(|| gemm_crate((m, k, n), &mut y, &x_values, &w_values));
        });
        let [w, bias] = [&w, &bias].map(|var| Weight::from(var.as_tensor()));
        group.throughput(Throughput::Elements(6 * (m * k * n) as u64));
        group.bench_function("forward and backward, bias and gelu", |bencher| {
            bencher.iter(|| -> Result<_> {
                let gelu = LinearActivation::Gelu;
                let y: Tensor = linear_activated(&x, &w, Some(&bias), gelu, Precision::Fp32)?;
                y.backward()
            });
        });
    }
}

/// y (m, n) = x (m, k) w^T, w (n, k).
fn gemm_crate((m, k, n): (usize, usize, usize), y: &mut [f32], x: &[f32], w: &[f32]) {
    assert_eq!((y.len(), x.len(), w.len()), (m * n, m * k, n * k));
    let threads = gemm::Parallelism::Rayon(rayon::current_num_threads());
    let (row, input) = (n as isize, k as isize);
    // SAFETY: the lengths were checked; all views are row-major over them, `w` transposed.
    unsafe {
        gemm::gemm(
            m,
            n,
            k,
            y.as_mut_ptr(),
            1,
            row,
            false,
            x.as_ptr(),
            1,
            input,
            w.as_ptr(),
            input,
            1,
            0.0f32,
            1.0f32,
            false,
            false,
            false,
            threads,
        );
    }
}

fn attentions(c: &mut Criterion) {
    let cases = [
        ("small", 12, 64, 4, 32, true),
        ("medium", 12, 256, 6, 64, true),
        ("series", 16, 321, 8, 16, false),
    ];
    for (name, b, t, heads, d, causal) in cases {
        let mut group =
            c.benchmark_group(format!("attention {name}: {b} x {t}, {heads} heads of {d}"));
        group.sample_size(10).measurement_time(Duration::from_secs(1));
        // Two products forward, five backward; a causal one needs half.
        let flops = 7 * 2 * b * heads * t * t * d / if causal { 2 } else { 1 };
        group.throughput(Throughput::Elements(flops as u64));
        let qkv = var(&[b, t, 3 * heads * d]);
        let kind = Attention { heads, causal, dropout: None, precision: Precision::Fp32 };
        group.bench_function("forward and backward", |bencher| {
            bencher.iter(|| attention_packed(&qkv, kind)?.backward());
        });
    }
}

criterion_group! {
    name = benches;
    // Criterion's pictures need a system font; the numbers do not.
    config = Criterion::default().without_plots();
    targets = products, attentions
}
criterion_main!(benches);
