//! Rates of the convolutions of ResNet-18, in each direction: `just bench --bench conv`.
#![expect(clippy::expect_used, reason = "a benchmark may stop")]

use candle_core::{DType, Device, Tensor, Var};
use candle_train::ops::{ConvOptions, Weight, Window, conv2d};
use candle_train::{Convolutions, Precision};
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};

/// Images, their side, channels in and out, side of the kernel, stride, groups.
const LAYERS: [(usize, usize, usize, usize, usize, usize, usize); 13] = [
    (32, 32, 3, 64, 3, 1, 1),
    (32, 32, 64, 64, 3, 1, 1),
    (32, 32, 64, 128, 3, 2, 1),
    (32, 32, 64, 128, 1, 2, 1),
    (32, 16, 128, 128, 3, 1, 1),
    (32, 16, 128, 256, 3, 2, 1),
    (32, 8, 256, 256, 3, 1, 1),
    (32, 8, 256, 512, 3, 2, 1),
    (32, 4, 512, 512, 3, 1, 1),
    (128, 4, 512, 512, 3, 1, 1),
    (4, 224, 3, 64, 7, 2, 1),
    (4, 56, 64, 64, 3, 1, 1),
    (32, 32, 64, 64, 3, 1, 64),
];

fn convolutions(c: &mut Criterion) {
    for (n, size, inputs, outputs, kernel, stride, groups) in LAYERS {
        let zeros = |shape: &[usize]| {
            let zeros = Tensor::zeros(shape, DType::F32, &Device::Cpu).expect("memory");
            (zeros.clone(), Var::from_tensor(&zeros).expect("memory"))
        };
        let (x, x_var) = zeros(&[n, size, size, inputs]);
        let (weight, weight_var) = zeros(&[outputs, inputs / groups, kernel, kernel]);
        let options = ConvOptions {
            window: Window { stride, padding: kernel / 2 }.into(),
            groups,
            precision: Precision::Fp32,
            convolutions: Convolutions::Fast,
        };
        let convolve = |x: &Tensor, weight: &Tensor| {
            conv2d(x, &Weight::from(weight), None, options).expect("shapes fit")
        };
        let y = convolve(&x, &weight);
        let name = format!("{size}x{size} {inputs}->{outputs} k{kernel} s{stride} g{groups} b{n}");
        let mut group = c.benchmark_group(name);
        let flop = 2 * y.elem_count() * weight.elem_count() / outputs;
        group.throughput(Throughput::Elements(flop as u64));
        group.bench_function("forward", |bencher| bencher.iter(|| convolve(&x, &weight)));
        for (direction, x, weight) in
            [("input", x_var.as_tensor(), &weight), ("weight", &x, weight_var.as_tensor())]
        {
            group.bench_function(format!("gradient of the {direction}"), |bencher| {
                bencher.iter_batched(
                    || convolve(x, weight),
                    |y| y.backward().expect("gradients"),
                    BatchSize::PerIteration,
                );
            });
        }
        group.finish();
    }
}

criterion_group! {
    name = benches;
    // Criterion's pictures need a system font; the numbers do not.
    config = Criterion::default().sample_size(10).without_plots();
    targets = convolutions
}
criterion_main!(benches);
