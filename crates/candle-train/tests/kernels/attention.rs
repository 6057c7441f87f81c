//! Attention that writes no scores, against its formula in f64.

use candle_train::rng::{Key, Purpose};
use half::{bf16, f16};

use crate::emulator::Arg::{Count, Halves, In, Nothing, Out, Whole};
use crate::emulator::{Emulator, STRIDING, Shape, emulator};
use crate::{agree, values};

/// A half-precision type: its name, what a word of it holds, and how near a result comes.
struct Half(&'static str, fn(u16) -> f32, f32);

const BF16: Half = Half("bf16", |bits| bf16::from_bits(bits).to_f32(), 1e-2);
const F16: Half = Half("f16", |bits| f16::from_bits(bits).to_f32(), 1.5e-3);

/// Sizes and options of an attention; `packed` queries, keys and values lie side by side.
#[derive(Clone, Copy, Debug)]
struct Case {
    b: usize,
    heads: usize,
    d: usize,
    t: usize,
    s: usize,
    causal: bool,
    dropout: f64,
    packed: bool,
}

/// Values of queries, keys and values, the gradient of the result, or results that belong to them.
type Four<T> = [Vec<T>; 4];

impl Case {
    fn z(&self) -> usize {
        self.b * self.heads
    }

    /// Rows of queries, keys, values, and results.
    fn lengths(&self) -> [usize; 4] {
        [self.t, self.s, self.s, self.t]
    }

    /// Columns of a tensor of operands, and the first one of each operand.
    fn columns(&self) -> (usize, [usize; 3]) {
        let w = self.heads * self.d;
        if self.packed { (3 * w, [0, w, 2 * w]) } else { (w, [0; 3]) }
    }

    fn key() -> Key {
        Key::new(1, Purpose::Dropout, 2, 3)
    }

    fn threshold(&self) -> u64 {
        (self.dropout * (1u64 << 53) as f64).ceil() as u64
    }

    /// Factor of dropout for probability number `i`.
    fn kept(&self, i: usize) -> f64 {
        let is_kept = Self::key().bits(i as u64) >> 11 >= self.threshold();
        if is_kept { 1.0 / (1.0 - self.dropout) } else { 0.0 }
    }

    /// `Attended` of attention.cu.
    fn sizes(&self) -> Vec<u32> {
        let long = |n: u64| [n as u32, (n >> 32) as u32];
        let scale = (std::f64::consts::LOG2_E / (self.d as f64).sqrt()) as f32;
        let kept = (1.0 / (1.0 - self.dropout)) as f32;
        let mut words = [self.heads, self.t, self.s].map(|n| n as u32).to_vec();
        words.extend([self.causal.into(), scale.to_bits(), kept.to_bits()]);
        words.extend([long(Self::key().state()), long(self.threshold())].concat());
        words
    }

    /// Result and gradients of one head by the formula; each operand is (length, d).
    fn head(&self, index: usize, [q, k, v, dy]: [&[f32]; 4]) -> Four<f64> {
        let (d, s, scale) = (self.d, self.s, 1.0 / (self.d as f64).sqrt());
        let dot = |a: &[f32], i: usize, b: &[f32], j: usize| -> f64 {
            let pairs = a[i * d..][..d].iter().zip(&b[j * d..][..d]);
            pairs.map(|(a, b)| f64::from(*a) * f64::from(*b)).sum()
        };
        let add = |out: &mut [f64], i: usize, weight: f64, row: &[f32], j: usize| {
            let row = &row[j * d..][..d];
            out[i * d..][..d].iter_mut().zip(row).for_each(|(o, r)| *o += weight * f64::from(*r));
        };
        let [mut y, mut of_q, mut of_k, mut of_v] =
            [self.t, self.t, s, s].map(|n| vec![0.0; n * d]);
        for i in 0..self.t {
            let seen = if self.causal { s.min(i + 1) } else { s };
            let scores: Vec<f64> = (0..seen).map(|j| dot(q, i, k, j) * scale).collect();
            let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let powers: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
            let sum: f64 = powers.iter().sum();
            let kept = |j: usize| self.kept((index * self.t + i) * s + j);
            let of_p: Vec<f64> = (0..seen).map(|j| dot(dy, i, v, j) * kept(j)).collect();
            let mean: f64 = of_p.iter().zip(&powers).map(|(g, p)| g * p / sum).sum();
            for j in 0..seen {
                let p = powers[j] / sum;
                let of_score = p * (of_p[j] - mean) * scale;
                add(&mut y, i, p * kept(j), v, j);
                add(&mut of_v, j, p * kept(j), dy, i);
                add(&mut of_q, i, of_score, k, j);
                add(&mut of_k, j, of_score, q, i);
            }
        }
        [y, of_q, of_k, of_v]
    }

    /// By the formula: result, gradients of queries, keys and values, by head.
    fn expected(&self, operands: &Four<f32>) -> Four<f32> {
        let mut all: Four<f32> = Default::default();
        for head in 0..self.z() {
            let part = |i: usize| {
                let n = self.lengths()[i] * self.d;
                &operands[i][head * n..][..n]
            };
            for (all, found) in all.iter_mut().zip(self.head(head, [0, 1, 2, 3].map(part))) {
                all.extend(found.into_iter().map(|value| value as f32));
            }
        }
        all
    }

    /// The values of each head, (z, length, d), of a tensor (b, length, columns).
    fn by_head(&self, x: &[f32], length: usize, columns: usize, first: usize) -> Vec<f32> {
        let rows = (0..self.z() * length).map(|i| (i / length, i % length));
        rows.flat_map(|(head, row)| {
            let (batch, head) = (head / self.heads, head % self.heads);
            &x[(batch * length + row) * columns + first + head * self.d..][..self.d]
        })
        .copied()
        .collect()
    }
}

/// Threads of a block of each kernel, and blocks for 64 rows of each head.
fn blocks(case: &Case, length: usize) -> Shape {
    [(case.z() * length.div_ceil(64)) as u32, 1, 1, 128, 1, 1]
}

/// An operand as the kernels take it, (z, length, d).
fn split(gpu: &Emulator, name: &str, case: &Case, operand: (&[f32], [usize; 3])) -> Vec<u16> {
    let (x, [length, columns, first]) = operand;
    let mut out = vec![0; case.z() * length * case.d];
    let n = Count(out.len() as u64);
    let [length, columns, first, heads, d] =
        [length, columns, first, case.heads, case.d].map(|n| Count(n as u64));
    let arguments = &mut [In(x), Halves(&mut out), length, columns, first, heads, d, n];
    gpu.run(&format!("split_heads_{name}"), STRIDING, arguments);
    out
}

/// Runs forward and backward; the results are those of [`Case::expected`].
fn run(gpu: &Emulator, case: &Case, Half(name, value, _): &Half) -> (Four<f32>, Four<f32>) {
    let (Case { b, heads, d, t, s, .. }, sizes) = (*case, case.sizes());
    let kernel = |part| format!("attention_{part}_{name}_{d}_{}", u8::from(case.dropout > 0.0));
    let (columns, first) = case.columns();
    // Packed operands are one tensor.
    let inputs = [0, 1, 2].map(|i| {
        values(if case.packed { 1 } else { i as u64 + 1 }, b * case.lengths()[i] * columns)
    });
    let dy = values(4, b * t * heads * d);
    let [mut q, mut k, mut v] = [0, 1, 2]
        .map(|i| split(gpu, name, case, (&inputs[i], [case.lengths()[i], columns, first[i]])));
    let (mut y, mut log_sums) = (vec![f32::NAN; dy.len()], vec![f32::NAN; case.z() * t]);
    let arguments = &mut [
        Halves(&mut q),
        Halves(&mut k),
        Halves(&mut v),
        Out(&mut y),
        Out(&mut log_sums),
        Whole(&sizes),
    ];
    gpu.run(&kernel("forward"), blocks(case, t), arguments);
    let (mut split_dy, mut products) = (vec![0; dy.len()], vec![f32::NAN; case.z() * t]);
    let per_block = 256 / (d / 4);
    let shape = [(case.z() * t).div_ceil(per_block) as u32, 1, 1, 256, 1, 1];
    let count = |n: usize| Count(n as u64);
    let arguments = &mut [
        In(&y),
        In(&dy),
        Halves(&mut split_dy),
        Out(&mut products),
        count(heads),
        count(t),
        count(case.z() * t),
    ];
    gpu.run(&kernel("products"), shape, arguments);
    // Places of the gradients: in one tensor, or in three.
    let mut gradients = inputs.each_ref().map(|x| vec![f32::NAN; x.len()]);
    let places = gradients.each_mut().map(Vec::as_mut_ptr);
    let place =
        |i: usize| crate::emulator::Arg::Bytes(places[if case.packed { 0 } else { i }].cast());
    let mut pull = |name, places: Vec<crate::emulator::Arg<'_>>, length| {
        let mut arguments = vec![
            Halves(&mut q),
            Halves(&mut k),
            Halves(&mut v),
            Halves(&mut split_dy),
            In(&log_sums),
            In(&products),
        ];
        arguments.extend(places);
        arguments.push(Whole(&sizes));
        gpu.run(&kernel(name), blocks(case, length), &mut arguments);
    };
    let of_keys = vec![place(1), place(2), count(columns), count(first[1]), count(first[2])];
    pull("gradient_of_keys", of_keys, s);
    pull("gradient_of_queries", vec![place(0), count(columns), count(first[0])], t);
    let wide = |x: &[u16]| x.iter().map(|bits| value(*bits)).collect::<Vec<_>>();
    let found = [0, 1, 2].map(|i| {
        let gradient = &gradients[if case.packed { 0 } else { i }];
        case.by_head(gradient, case.lengths()[i], columns, first[i])
    });
    let [of_q, of_k, of_v] = found;
    let y = case.by_head(&y, t, case.heads * d, 0);
    ([wide(&q), wide(&k), wide(&v), wide(&split_dy)], [y, of_q, of_k, of_v])
}

fn check(case: Case, half: &Half) {
    let Some(gpu) = emulator() else { return };
    let (operands, found) = run(gpu, &case, half);
    let names = ["result", "gradient of queries", "gradient of keys", "gradient of values"];
    for ((name, found), expected) in names.iter().zip(&found).zip(&case.expected(&operands)) {
        agree(&format!("{name} of {case:?} in {}", half.0), found, expected, half.2);
    }
}

#[test]
fn attention_without_scores_is_that_of_the_formula() {
    let whole =
        Case { b: 1, heads: 1, d: 64, t: 70, s: 70, causal: true, dropout: 0.0, packed: false };
    let few = Case { t: 5, s: 130, causal: false, ..whole };
    for d in [32, 64, 128] {
        check(Case { d, ..whole }, &BF16);
        check(Case { d, ..few }, &F16);
    }
    check(whole, &F16);
    check(few, &BF16);
}

#[test]
fn attention_without_scores_drops_what_the_cpu_drops() {
    let packed =
        Case { b: 2, heads: 2, d: 32, t: 66, s: 66, causal: true, dropout: 0.3, packed: true };
    check(packed, &F16);
    check(packed, &BF16);
    check(Case { b: 1, heads: 1, d: 128, ..packed }, &BF16);
    check(Case { b: 1, d: 64, t: 3, s: 65, packed: false, ..packed }, &F16);
    check(Case { b: 1, d: 64, t: 80, s: 9, packed: false, ..packed }, &F16);
}

#[test]
fn what_is_no_number_reaches_the_result_of_attention() {
    let Some(gpu) = emulator() else { return };
    let case =
        Case { b: 1, heads: 1, d: 32, t: 3, s: 3, causal: true, dropout: 0.0, packed: false };
    let sizes = case.sizes();
    for wrong in [f32::NAN, f32::INFINITY] {
        let [mut q, mut k, mut v] = [1, 2, 3].map(|i| {
            let x = values(i, 3 * 32);
            x.iter().map(|v| bf16::from_f32(v.abs()).to_bits()).collect::<Vec<_>>()
        });
        k[32] = bf16::from_f32(wrong).to_bits();
        let mut y = vec![0.0; 3 * 32];
        let arguments = &mut [
            Halves(&mut q),
            Halves(&mut k),
            Halves(&mut v),
            Out(&mut y),
            Nothing,
            Whole(&sizes),
        ];
        gpu.run("attention_forward_bf16_32_0", blocks(&case, 3), arguments);
        // The first query does not see that key.
        assert!(y[..32].iter().all(|y| y.is_finite()), "{wrong}");
        assert!(y[32..].iter().all(|y| y.is_nan()), "{wrong}: {y:?}");
    }
}
