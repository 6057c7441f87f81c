//! Gigabytes per second of the operations that do little for each number they read.
//!
//! Bytes are those that must move: operands read once, results written once, gradients read once. A
//! copy moves what a memory can. `just bench --bench pointwise -- --save-baseline before`.
#![expect(clippy::expect_used, reason = "a benchmark may stop")]

use std::sync::Arc;

use candle_core::{DType, Device, Result, Tensor, Var};
use candle_train::ops::{self, Activation, GradientSink, Uses, Weight, WeightUse, Window};
use candle_train::rng::{Key, Purpose};
use criterion::{Criterion, Throughput, criterion_group, criterion_main};

/// Gradients that are not needed.
struct Ignored;

impl GradientSink for Ignored {
    fn add(&self, _: usize, _: &[f32]) -> Result<()> {
        Ok(())
    }

    fn complete(&self, _: usize) -> Result<()> {
        Ok(())
    }
}

/// Variables of the shapes, filled with numbers around 0.
fn variables(shapes: &[&[usize]]) -> Vec<Var> {
    let variable = |shape: &&[usize]| {
        let mut stream = Key::new(1, Purpose::Generate, 0, 0).stream();
        let n = shape.iter().product();
        let values: Vec<f32> = (0..n).map(|_| stream.range(-1.0, 1.0) as f32).collect();
        Var::from_vec(values, *shape, &Device::Cpu).expect("memory")
    };
    shapes.iter().map(variable).collect()
}

/// Measures an operation forward, and forward and backward, that moves so many times the bytes of
/// its first operand. Backward includes what Candle adds: a gradient of ones, and for each operand
/// a tensor of zeros and an addition.
fn measure(
    c: &mut Criterion,
    name: &str,
    shapes: &[&[usize]],
    [forward, backward]: [u64; 2],
    op: impl Fn(&[Weight]) -> Result<Tensor>,
) {
    let variables = variables(shapes);
    let bytes = 4 * variables[0].elem_count() as u64;
    let sink: Arc<dyn GradientSink> = Arc::new(Ignored);
    let learnt = |(i, var)| Weight::learnt(var, WeightUse::new(&sink, i, &Uses::default()));
    let tracked: Vec<Weight> = variables.iter().enumerate().map(learnt).collect();
    let detached: Vec<Weight> =
        variables.iter().map(|var| Weight::from(&var.as_detached_tensor())).collect();
    let mut group = c.benchmark_group(name);
    group.throughput(Throughput::Bytes(forward * bytes));
    group.bench_function("forward", |bencher| bencher.iter(|| op(&detached).expect("it runs")));
    group.throughput(Throughput::Bytes((forward + backward) * bytes));
    group.bench_function("both ways", |bencher| {
        bencher.iter(|| op(&tracked).and_then(|y| y.backward()).expect("it runs"));
    });
    group.finish();
}

fn copy(c: &mut Criterion) {
    let x = variables(&[&[1 << 23]]);
    let mut group = c.benchmark_group("copy, 32 MiB");
    group.throughput(Throughput::Bytes(2 << 25));
    group.bench_function("forward", |bencher| bencher.iter(|| x[0].copy().expect("memory")));
}

/// The first, the second and the last stage of `ResNet`-18 at 32x32 and batch 128.
fn batch_norms(c: &mut Criterion) {
    for [side, channels] in [[32, 64], [16, 128], [4, 512]] {
        let (x, affine) = ([128, side, side, channels], [channels]);
        let name = format!("batch norm + relu, {side}x{side}x{channels}");
        measure(c, &name, &[&x, &affine, &affine], [3, 5], |t| {
            Ok(ops::batch_norm(t[0].tensor(), [&t[1], &t[2]], None, Activation::Relu, 1e-5)?.0)
        });
        let name = format!("batch norm + residual + relu, {side}x{side}x{channels}");
        measure(c, &name, &[&x, &affine, &affine, &x], [4, 7], |t| {
            Ok(ops::batch_norm(
                t[0].tensor(),
                [&t[1], &t[2]],
                Some(t[3].tensor()),
                Activation::Relu,
                1e-5,
            )?
            .0)
        });
    }
}

fn images(c: &mut Criterion) {
    let window = Window { stride: 2, padding: 1 };
    let x = [16, 112, 112, 64];
    measure(c, "max pool 3/2, 112x112x64", &[&x], [1, 2], |t| {
        ops::max_pool2d(t[0].tensor(), 3, window)
    });
    measure(c, "average pool 3/2, 112x112x64", &[&x], [1, 1], |t| {
        ops::average_pool2d(t[0].tensor(), 3, window)
    });
    let (x, affine) = ([64, 16, 256], [256]);
    measure(c, "group norm, 16x256 in 8 groups", &[&x, &affine, &affine], [2, 3], |t| {
        ops::group_norm(t[0].tensor(), [&t[1], &t[2]], 8, 1e-5)
    });
    let x = [128, 8, 8, 512];
    measure(c, "global average pool, 8x8x512", &[&x], [1, 1], |t| {
        ops::global_average_pool(t[0].tensor())
    });
}

/// Activations of a GPT with 768 wide blocks, 1024 tokens.
fn tokens(c: &mut Criterion) {
    let x = [1024, 3072];
    measure(c, "relu", &[&x], [2, 3], |t| ops::relu(t[0].tensor()));
    let key = Key::new(0, Purpose::Dropout, 0, 0);
    measure(c, "dropout", &[&x], [2, 2], |t| ops::dropout(t[0].tensor(), 0.1, key));
    measure(c, "gelu", &[&x], [2, 3], |t| ops::gelu(t[0].tensor()));
    measure(c, "silu", &[&x], [2, 3], |t| ops::silu(t[0].tensor()));
    let (x, affine) = ([4096, 768], [768]);
    measure(c, "layer norm", &[&x, &affine, &affine], [2, 3], |t| {
        ops::layer_norm(t[0].tensor(), None, &t[1], Some(&t[2]), 1e-5)
    });
    measure(c, "layer norm of a sum", &[&x, &affine, &affine, &x], [3, 4], |t| {
        ops::layer_norm(t[0].tensor(), Some(t[3].tensor()), &t[1], Some(&t[2]), 1e-5)
    });
    measure(c, "rms norm", &[&x, &affine], [2, 3], |t| ops::rms_norm(t[0].tensor(), &t[1], 1e-5));
    measure(c, "softmax", &[&[4096, 1024]], [2, 3], |t| ops::softmax(t[0].tensor()));
    let indices: Vec<u32> = (0..4096u32).map(|i| i * 7919 % 1000).collect();
    let indices = Tensor::new(indices, &Device::Cpu).expect("memory");
    measure(c, "embedding, 4096 of 1000 rows", &[&[1000, 768]], [8, 5], |t| {
        ops::embedding(&indices, &t[0])
    });
    let labels = Tensor::zeros(1024, DType::U32, &Device::Cpu).expect("memory");
    measure(c, "cross entropy, 8192 classes", &[&[1024, 8192]], [1, 2], |t| {
        ops::cross_entropy(t[0].tensor(), &labels, 0.1)
    });
}

criterion_group! {
    name = benches;
    // Criterion's pictures need a system font; the numbers do not.
    config = Criterion::default().sample_size(10).without_plots();
    targets = copy, batch_norms, images, tokens
}
criterion_main!(benches);
