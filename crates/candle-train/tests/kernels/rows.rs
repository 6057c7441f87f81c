use candle_train::Precision;
use candle_train::ops::{self, Attention};

use crate::emulator::Arg::{Count, Double, Flag, In, Nothing, Out, Single};
use crate::emulator::{Emulator, STRIDING, Shape, emulator, merging, packs, rows};
use crate::{agree, reference, tensor, values, var};

const EPS: f64 = 1e-5;

#[test]
fn row_norms_and_their_gradients_are_those_of_the_cpu() {
    // Rows that registers hold: some threads have no pack, all have one, they have up to four; and
    // rows that are read again, because they are not in packs or too long.
    row_norms("", [5, 300, 256]);
    row_norms("", [3, 256, 64]);
    row_norms("_long", [3, 2052, 160]);
    row_norms("", [5, 301, 256]);
    row_norms("", [3, 1028, 256]);
}

/// The kernels whose names end with `suffix`, over `n` rows of `c` by blocks of `threads`.
fn row_norms(suffix: &str, [n, c, threads]: [usize; 3]) {
    let Some(gpu) = emulator() else { return };
    let (x, residual, gamma) = (values(1, n * c), values(2, n * c), values(3, c));
    let (beta, dy) = (values(4, c), values(5, n * c));
    for rms in [false, true] {
        let (x_var, gamma_var) = (var(&x, &[n, c]), var(&gamma, &[c]));
        let (added, shift) = (tensor(&residual, &[n, c]), tensor(&beta, &[c]));
        let (y, gradients) = reference(&[&x_var, &gamma_var], &dy, || {
            let gamma = gamma_var.as_tensor().into();
            if rms {
                return ops::rms_norm(&x_var, &gamma, EPS);
            }
            ops::layer_norm(&x_var, Some(&added), &gamma, Some(&(&shift).into()), EPS)
        });
        let optional = |values| if rms { Nothing } else { In(values) };
        let mut found = vec![0.0; n * c];
        gpu.run(
            &format!("row_norm{suffix}"),
            blocks(n, threads),
            &mut [
                In(&x),
                optional(&residual),
                In(&gamma),
                optional(&beta),
                Out(&mut found),
                Double(EPS),
                Flag(rms.into()),
                Count(c as u64),
            ],
        );
        agree("rows", &found, &y, 1e-6);
        let more: &[f32] = if rms { &[] } else { &residual };
        let operands = [&x[..], more, &gamma[..]];
        let (dx, of_gamma, of_beta) = row_norm_gradients(suffix, operands, &dy, [n, c, threads]);
        agree("gradient of the rows", &dx, &gradients[0], 3e-6);
        agree("gradient of the scale", &of_gamma, &gradients[1], 3e-6);
        if !rms {
            let sums: Vec<f32> = (0..c).map(|i| dy.iter().skip(i).step_by(c).sum()).collect();
            agree("gradient of the shift", &of_beta, &sums, 1e-6);
        }
    }
}

fn blocks(n: usize, threads: usize) -> Shape {
    [n as u32, 1, 1, threads as u32, 1, 1]
}

/// Gradients of x, gamma and beta, two rows to a block. Without a residual there is no mean, and no
/// beta.
fn row_norm_gradients(
    suffix: &str,
    [x, residual, gamma]: [&[f32]; 3],
    dy: &[f32],
    [n, c, threads]: [usize; 3],
) -> (Vec<f32>, Vec<f32>, Vec<f32>) {
    let gpu = emulator().unwrap();
    let (rms, n_blocks) = (residual.is_empty(), n.div_ceil(2));
    let (mut dx, mut parts) = (dy.to_vec(), [vec![0.0; n_blocks * c], vec![0.0; n_blocks * c]]);
    let [gamma_parts, beta_parts] = &mut parts;
    gpu.run(
        &format!("row_norm_gradient{suffix}"),
        blocks(n_blocks, threads),
        &mut [
            In(x),
            if rms { Nothing } else { In(residual) },
            In(gamma),
            Out(&mut dx),
            Out(gamma_parts),
            if rms { Nothing } else { Out(beta_parts) },
            Double(EPS),
            Flag(rms.into()),
            Count(2),
            Count(n as u64),
            Count(c as u64),
        ],
    );
    let (mut of_gamma, mut of_beta) = (vec![0.0; c], vec![0.0; c]);
    gpu.run(
        "row_norm_sums",
        [c.div_ceil(32) as u32, if rms { 1 } else { 2 }, 1, 64, 1, 1],
        &mut [
            In(gamma_parts),
            In(beta_parts),
            Out(&mut of_gamma),
            Out(&mut of_beta),
            Count(n_blocks as u64),
            Count(c as u64),
        ],
    );
    (dx, of_gamma, of_beta)
}

#[test]
fn a_row_far_from_zero_is_normalised_as_well() {
    let (n, c) = (2, 768);
    let Some(gpu) = emulator() else { return };
    let x: Vec<f32> = values(1, n * c).iter().map(|v| v + 1000.0).collect();
    let ones = vec![1.0; c];
    let mut found = vec![0.0; n * c];
    let size = Count(c as u64);
    let arguments =
        &mut [In(&x), Nothing, In(&ones), Nothing, Out(&mut found), Double(EPS), Flag(0), size];
    gpu.run("row_norm", blocks(n, 192), arguments);
    let mut expected = Vec::new();
    for row in x.chunks(c) {
        let of = |f: &dyn Fn(f64) -> f64| row.iter().map(|v| f(f64::from(*v))).sum::<f64>();
        let mean = of(&|v| v) / c as f64;
        let spread = (of(&|v| (v - mean) * (v - mean)) / c as f64 + EPS).sqrt();
        expected.extend(row.iter().map(|v| ((f64::from(*v) - mean) / spread) as f32));
    }
    agree("rows", &found, &expected, 1e-6);
}

/// Column sums over chunks of three rows.
fn column_sums(gpu: &Emulator, x: &[f32], n: usize, c: usize) -> Vec<f32> {
    let chunks = n.div_ceil(3);
    let (mut partial, mut sums) = (vec![0.0; chunks * c], vec![0.0; c]);
    let [n, c64] = [n as u64, c as u64];
    let arguments = &mut [In(x), Out(&mut partial), Count(n), Count(c64), Count(3), Flag(0)];
    gpu.run("column_sums_f32", packs(c, chunks), arguments);
    let arguments = &mut [In(&partial), Out(&mut sums), Count(chunks as u64), Count(c64)];
    gpu.run("merge_sums", merging(c), arguments);
    sums
}

#[test]
fn group_norm_and_its_gradients_are_those_of_the_cpu() {
    let Some(gpu) = emulator() else { return };
    for [samples, positions, c, groups] in [[3, 70, 12, 4], [2, 1, 6, 1], [1, 9, 5, 5]] {
        let n = samples * positions * c;
        let x: Vec<f32> = values(1, n).iter().map(|v| 2.0 * v + 30.0).collect();
        let (gamma, beta, dy) = (values(2, c), values(3, c), values(4, n));
        let (x_var, gamma_var) = (var(&x, &[samples, positions, c]), var(&gamma, &[c]));
        let beta_var = var(&beta, &[c]);
        let (y, gradients) = reference(&[&x_var, &gamma_var, &beta_var], &dy, || {
            let affine = [&gamma_var.as_tensor().into(), &beta_var.as_tensor().into()];
            ops::group_norm(&x_var, affine, groups, EPS)
        });
        let sizes = || [positions as u64, groups as u64, c as u64].map(Count);
        let (mut found, mut dx, mut weighted) = (vec![0.0; n], dy.clone(), vec![0.0; n]);
        let [p, g, width] = sizes();
        let arguments =
            &mut [In(&x), In(&gamma), In(&beta), Out(&mut found), Double(EPS), p, g, width];
        gpu.run("group_norm", rows(samples * groups), arguments);
        agree("groups", &found, &y, 2e-5);
        let [p, g, width] = sizes();
        let arguments =
            &mut [In(&x), In(&gamma), Out(&mut dx), Out(&mut weighted), Double(EPS), p, g, width];
        gpu.run("group_norm_gradient", rows(samples * groups), arguments);
        agree("gradient of the groups", &dx, &gradients[0], 2e-5);
        let of_gamma = column_sums(gpu, &weighted, samples * positions, c);
        agree("gradient of the scale", &of_gamma, &gradients[1], 2e-5);
    }
}

#[test]
fn softmax_and_its_gradient_are_those_of_the_cpu() {
    // Rows that begin everywhere between packs, and one that takes several passes of the block.
    [[4, 301], [2, 3], [1, 5003]].into_iter().for_each(softmax_of);
}

fn softmax_of([n, c]: [usize; 2]) {
    let Some(gpu) = emulator() else { return };
    let (x, dy) = (values(1, n * c), values(2, n * c));
    let operand = var(&x, &[n, c]);
    let (y, gradients) = reference(&[&operand], &dy, || ops::softmax(&operand));
    let (mut found, mut dx) = (vec![0.0; n * c], dy.clone());
    gpu.run("softmax", rows(n), &mut [In(&x), Out(&mut found), Count(c as u64)]);
    agree("softmax", &found, &y, 1e-6);
    gpu.run("softmax_gradient", rows(n), &mut [In(&y), Out(&mut dx), Count(c as u64)]);
    agree("gradient", &dx, &gradients[0], 2e-6);
}

/// a (m, k) times b (k, n), of which either may be transposed, for each of `batch` matrices.
fn product(a: &[f32], b: &[f32], [batch, m, k, n]: [usize; 4], turned: [bool; 2]) -> Vec<f32> {
    let mut out = vec![0.0; batch * m * n];
    for (i, out) in out.iter_mut().enumerate() {
        let (z, row, column) = (i / (m * n), i / n % m, i % n);
        *out = (0..k)
            .map(|j| {
                let left = if turned[0] { j * m + row } else { row * k + j };
                let right = if turned[1] { column * k + j } else { j * n + column };
                a[z * m * k + left] * b[z * k * n + right]
            })
            .sum();
    }
    out
}

#[test]
fn attention_between_products_is_that_of_the_cpu() {
    // One key at a time, and four.
    [5, 8].into_iter().for_each(attention_over);
}

fn attention_over(t: usize) {
    let Some(gpu) = emulator() else { return };
    let (b, heads, s, d) = (2usize, 2usize, t, 3usize);
    let w = heads * d;
    let key = candle_train::rng::Key::new(1, candle_train::rng::Purpose::Dropout, 2, 3);
    let [q, k, v, dy] = [1, 2, 3, 4].map(|i| values(i, b * t * w));
    let vars = [&q, &k, &v].map(|x| var(x, &[b, t, w]));
    let options = Attention { heads, causal: true, dropout: None, precision: Precision::Fp32 };
    let (y, gradients) =
        reference(&vars.each_ref(), &dy, || ops::attention(&vars[0], &vars[1], &vars[2], options));
    let split = |x: &[f32]| {
        let mut out = vec![0.0; b * t * w];
        let [t, w, heads, d] = [t, w, heads, d].map(|n| Count(n as u64));
        let n = Count(out.len() as u64);
        let arguments = &mut [In(x), Out(&mut out), t, w, Count(0), heads, d, n];
        gpu.run("split_heads_f32", STRIDING, arguments);
        out
    };
    let merge = |x: &[f32]| {
        let mut out = vec![0.0; b * t * w];
        let [t, w, heads, d] = [t, w, heads, d].map(|n| Count(n as u64));
        let n = Count(out.len() as u64);
        let arguments = &mut [In(x), Out(&mut out), t, w, Count(0), heads, d, n];
        gpu.run("merge_heads_f32", STRIDING, arguments);
        out
    };
    let z = b * heads;
    let (q, k, v, g) = (split(&q), split(&k), split(&v), split(&dy));
    assert_eq!(merge(&g), dy);
    let scale = 1.0 / (d as f32).sqrt();
    let numbers = || [Count(key.bits(0)), Count(0), Single(1.0)];
    let mut p = product(&q, &k, [z, t, d, s], [false, true]);
    let [key_, threshold, kept] = numbers();
    let arguments = &mut [
        Out(&mut p),
        Nothing,
        Count(t as u64),
        Count(s as u64),
        Single(scale),
        Flag(1),
        key_,
        threshold,
        kept,
    ];
    gpu.run("attention_weights_f32", rows(z * t), arguments);
    agree("attention", &merge(&product(&p, &v, [z, t, s, d], [false; 2])), &y, 2e-6);
    let of_v = product(&p, &g, [z, s, t, d], [true, false]);
    agree("gradient of the values", &merge(&of_v), &gradients[2], 2e-6);
    let mut of_p = product(&g, &v, [z, t, d, s], [false, true]);
    let [key_, threshold, kept] = numbers();
    let arguments = &mut [
        In(&p),
        Out(&mut of_p),
        Count(s as u64),
        Single(scale),
        Flag(0),
        key_,
        threshold,
        kept,
    ];
    gpu.run("attention_weights_gradient_f32", rows(z * t), arguments);
    let of_q = product(&of_p, &k, [z, t, s, d], [false; 2]);
    agree("gradient of the queries", &merge(&of_q), &gradients[0], 3e-6);
    let of_k = product(&of_p, &q, [z, s, t, d], [true, false]);
    agree("gradient of the keys", &merge(&of_k), &gradients[1], 3e-6);
}

#[test]
fn attention_drops_what_its_gradient_drops() {
    [6, 8].into_iter().for_each(dropped_attention_over);
}

fn dropped_attention_over(s: usize) {
    let Some(gpu) = emulator() else { return };
    let t = 4usize;
    let scores = values(1, t * s);
    let threshold = 1u64 << 52;
    let mut p = scores.clone();
    let mut dropped = vec![0.0; t * s];
    let arguments = &mut [
        Out(&mut p),
        Out(&mut dropped),
        Count(t as u64),
        Count(s as u64),
        Single(0.5),
        Flag(0),
        Count(77),
        Count(threshold),
        Single(2.0),
    ];
    gpu.run("attention_weights_f32", rows(t), arguments);
    let mask: Vec<f32> = dropped.iter().zip(&p).map(|(d, p)| d / p).collect();
    assert!(mask.iter().all(|m| *m == 0.0 || (m - 2.0).abs() < 1e-6));
    assert!(mask.contains(&0.0) && mask.iter().any(|m| *m > 1.0));
    let g = values(2, t * s);
    let mut found = g.clone();
    let arguments = &mut [
        In(&p),
        Out(&mut found),
        Count(s as u64),
        Single(0.5),
        Flag(1),
        Count(77),
        Count(threshold),
        Single(2.0),
    ];
    gpu.run("attention_weights_gradient_f32", rows(t), arguments);
    let mut expected = vec![0.0; t * s];
    for row in 0..t {
        let at = |i: usize| row * s + i;
        let kept = |i: usize| g[at(i)] * mask[at(i)].round();
        let sum: f32 = (0..s).map(|i| kept(i) * p[at(i)]).sum();
        for i in 0..s {
            expected[at(i)] = p[at(i)] * (kept(i) - sum) * 0.5;
        }
    }
    agree("gradient of dropped probabilities", &found, &expected, 2e-6);
}
