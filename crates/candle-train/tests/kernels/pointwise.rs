use candle_core::Result;
use candle_core::Tensor;
use candle_train::ops;
use candle_train::rng::{Key, Purpose};
use half::{bf16, f16};

use crate::emulator::Arg;
use crate::emulator::Arg::{Count, Flag, Halves, In, Nothing, Out, Single, Words};
use crate::emulator::{STRIDING, emulator, rows};
use crate::{agree, reference, tensor, values, var};

#[test]
fn activations_and_their_gradients_are_those_of_the_cpu() {
    let Some(gpu) = emulator() else { return };
    let functions: [fn(&Tensor) -> Result<Tensor>; 11] = [
        ops::relu,
        ops::gelu,
        ops::gelu_tanh,
        ops::silu,
        ops::mish,
        ops::sigmoid,
        ops::tanh,
        |x| ops::leaky_relu(x, 0.25),
        ops::relu6,
        ops::hardsigmoid,
        ops::hardswish,
    ];
    // Packs of four, and one value more.
    let n = 1001;
    let mut x: Vec<f32> = values(1, n).iter().map(|v| 4.0 * v).collect();
    x[..7].copy_from_slice(&[0.0, -0.0, 30.0, -30.0, 6.0, 3.0, -3.0]);
    let dy = values(2, n);
    for (kind, function) in (1..).zip(functions) {
        let operand = var(&x, &[n]);
        let (y, dx) = reference(&[&operand], &dy, || function(&operand));
        let (mut found, mut gradient) = (vec![0.0; n], dy.clone());
        gpu.run(
            "activation",
            STRIDING,
            &mut [In(&x), Out(&mut found), Flag(kind), Single(0.25), Count(n as u64)],
        );
        let arguments =
            &mut [In(&x), Out(&mut gradient), Flag(kind), Single(0.25), Count(n as u64)];
        gpu.run("activation_gradient", STRIDING, arguments);
        agree(&format!("activation {kind}"), &found, &y, 2e-6);
        agree(&format!("gradient of activation {kind}"), &gradient, &dx[0], 2e-6);
    }
}

#[test]
fn what_follows_a_product_adds_the_bias_keeps_the_sum_and_goes_back() {
    // One at a time, and four; rows that follow one another, and rows with something between them.
    [(19, 19), (20, 20), (19, 24), (20, 24)].into_iter().for_each(follow_a_product);
}

fn follow_a_product((width, stride): (usize, usize)) {
    let Some(gpu) = emulator() else { return };
    let n = 37 * width;
    let (apart, bias, dy) = (values(1, 37 * stride), values(2, width), values(3, n));
    let column = |row: &[f32]| row[..width].iter().zip(&bias).map(|(z, b)| z + b).collect();
    let sum: Vec<f32> = apart.chunks(stride).flat_map::<Vec<f32>, _>(column).collect();
    let operand = var(&sum, &[n]);
    let (expected, dx) = reference(&[&operand], &dy, || ops::gelu(&operand));
    let (mut y, mut before) = (vec![0.0; n], vec![0.0; n]);
    let sizes = [width, stride, n].map(|size| size as u64);
    gpu.run(
        "finish_f32_as_f32",
        STRIDING,
        &mut [
            In(&apart),
            In(&bias),
            Out(&mut y),
            Out(&mut before),
            Flag(2),
            Count(sizes[0]),
            Count(sizes[1]),
            Count(sizes[2]),
        ],
    );
    agree("y", &y, &expected, 2e-6);
    agree("before", &before, &sum, 0.0);
    let pulled = |entered: [Arg<'_>; 2], kind| {
        let mut dz = vec![f32::NAN; 37 * stride];
        let [y, before] = entered;
        let [width, stride, n] = [width, stride, dz.len()].map(|size| Count(size as u64));
        let arguments = &mut [In(&dy), y, before, Out(&mut dz), Flag(kind), width, stride, n];
        gpu.run("unfinish_f32_as_f32", STRIDING, arguments);
        dz
    };
    let padded = |dz: &[f32]| -> Vec<f32> {
        let row = |row: &[f32]| [row, &vec![0.0; stride - width]].concat();
        dz.chunks(width).flat_map(row).collect()
    };
    agree("dz", &pulled([In(&y), In(&before)], 2), &padded(&dx[0]), 2e-6);
    // A rectifier goes back by its result.
    let rectified: Vec<f32> = sum.iter().map(|v| v.max(0.0)).collect();
    let expected: Vec<f32> =
        dy.iter().zip(&sum).map(|(g, v)| if *v > 0.0 { *g } else { 0.0 }).collect();
    agree("dz of a rectifier", &pulled([In(&rectified), Nothing], 1), &padded(&expected), 0.0);
}

#[test]
fn half_numbers_are_rounded_as_the_cpu_rounds_them() {
    let Some(gpu) = emulator() else { return };
    let mut x: Vec<f32> = values(1, 5000).iter().map(|v| v * v * v * 1000.0).collect();
    x.extend([0.0, -0.0, 65504.0, 65520.0, 1e38, -1e30, 6e-8, 1e-9, 1.003_906_2, 1.011_718_8]);
    let n = x.len();
    let (mut narrow, mut wide) = (vec![0u16; n], vec![0.0; n]);
    for (kind, round) in [
        ("bf16", (|v| bf16::from_f32(v).to_f32()) as fn(f32) -> f32),
        ("f16", |v| f16::from_f32(v).to_f32()),
    ] {
        let arguments = &mut [In(&x), Halves(&mut narrow), Count(n as u64)];
        gpu.run(&format!("narrow_{kind}"), STRIDING, arguments);
        let arguments = &mut [Halves(&mut narrow), Out(&mut wide), Count(n as u64)];
        gpu.run(&format!("widen_{kind}"), STRIDING, arguments);
        for (found, value) in wide.iter().zip(&x) {
            assert_eq!(found.to_bits(), round(*value).to_bits(), "{value} as {kind}");
        }
        let mut padded = vec![u16::MAX; n + 13];
        let [given, all] = [n, n + 13].map(|size| Count(size as u64));
        let arguments = &mut [In(&x), Halves(&mut padded), given, all];
        gpu.run(&format!("narrow_padded_{kind}"), STRIDING, arguments);
        assert_eq!(padded[..n], narrow);
        assert!(padded[n..].iter().all(|bits| *bits == 0));
        let arguments = &mut [In(&x), Halves(&mut narrow), Single(0.25), Count(n as u64)];
        gpu.run(&format!("compress_{kind}"), STRIDING, arguments);
        let arguments = &mut [Halves(&mut narrow), Out(&mut wide), Single(4.0), Count(n as u64)];
        gpu.run(&format!("expand_{kind}"), STRIDING, arguments);
        for (found, value) in wide.iter().zip(&x) {
            let expected = 4.0 * round(0.25 * value);
            assert_eq!(found.to_bits(), expected.to_bits(), "a gradient {value} as {kind}");
        }
    }
}

#[test]
fn gradients_are_added_and_cleared_wherever_they_begin() {
    let Some(gpu) = emulator() else { return };
    for [first, second, n] in [[0, 0, 1001], [1, 1, 1000], [0, 3, 999], [2, 0, 3]] {
        let (value, before) = (values(1, 1004), values(2, 1004));
        let mut sum = before.clone();
        let arguments = &mut [Out(&mut sum[first..]), In(&value[second..]), Count(n as u64)];
        gpu.run("add", STRIDING, arguments);
        for (i, (sum, before)) in sum.iter().zip(&before).enumerate() {
            let within = (first..first + n).contains(&i);
            let expected = if within { before + value[i + second - first] } else { *before };
            assert_eq!(sum.to_bits(), expected.to_bits(), "element {i} of {n} from {first} on");
        }
        gpu.run("clear", STRIDING, &mut [Out(&mut sum[first..]), Count(n as u64)]);
        assert!(sum[first..first + n].iter().all(|v| *v == 0.0));
        assert_eq!(sum[first + n..], before[first + n..]);
    }
}

#[test]
fn dropout_draws_the_mask_of_the_cpu() {
    let Some(gpu) = emulator() else { return };
    let (n, p) = (3001, 0.3f64);
    let key = Key::new(3, Purpose::Dropout, 5, 9);
    let x = values(1, n);
    let expected = ops::dropout(&tensor(&x, &[n]), p, key).unwrap().to_vec1::<f32>().unwrap();
    // Number i of a stream is a mix of its state; number -1 undoes the counter, so the state is
    // found by its inverse.
    let state = unmix(key.bits(u64::MAX));
    let threshold = (p * (1u64 << 53) as f64).ceil() as u64;
    let mut found = vec![0.0; n];
    let scale = (1.0 / (1.0 - p)) as f32;
    gpu.run(
        "dropout",
        STRIDING,
        &mut [
            In(&x),
            Out(&mut found),
            Count(state),
            Count(threshold),
            Single(scale),
            Count(n as u64),
        ],
    );
    assert_eq!(found, expected);
}

/// The inverse of the finaliser of `SplitMix64`.
fn unmix(mut z: u64) -> u64 {
    z = z ^ (z >> 31) ^ (z >> 62);
    z = z.wrapping_mul(0x3196_42B2_D24D_8EC3);
    z = z ^ (z >> 27) ^ (z >> 54);
    z = z.wrapping_mul(0x96DE_1B17_3F11_9089);
    z ^ (z >> 30) ^ (z >> 60)
}

#[test]
fn rows_of_a_table_are_read_and_their_gradients_added_in_order() {
    // One at a time, and four.
    [7, 8].into_iter().for_each(rows_of_a_table);
}

fn rows_of_a_table(c: usize) {
    let Some(gpu) = emulator() else { return };
    let table_rows = 5;
    let mut indices = [4u32, 0, 4, 2, 4, 0];
    let (table, dy) = (values(1, table_rows * c), values(2, indices.len() * c));
    let operand = var(&table, &[table_rows, c]);
    let positions =
        candle_core::Tensor::from_slice(&indices, 6, &candle_core::Device::Cpu).unwrap();
    let weight = operand.as_tensor().into();
    let (y, gradient) = reference(&[&operand], &dy, || ops::embedding(&positions, &weight));
    let mut found = vec![0.0; y.len()];
    let n = found.len() as u64;
    let arguments =
        &mut [In(&table), Words(&mut indices), Out(&mut found), Count(c as u64), Count(n)];
    gpu.run("embedding", STRIDING, arguments);
    assert_eq!(found, y);
    let (mut starts, mut order) = ([0u32, 2, 2, 3, 3, 6], [1u32, 5, 3, 0, 2, 4]);
    let mut found = vec![1.0; table.len()];
    let arguments =
        &mut [In(&dy), Words(&mut starts), Words(&mut order), Out(&mut found), Count(c as u64)];
    gpu.run("embedding_gradient", rows(table_rows), arguments);
    agree("gradient of a table", &found, &gradient[0], 1e-6);
}
