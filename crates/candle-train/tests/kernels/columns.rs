use candle_core::Var;
use candle_train::ops::{self, Activation};
use half::{bf16, f16};

use crate::emulator::Arg::{Count, Double, Flag, In, Nothing, Out};
use crate::emulator::{Arg, Emulator, STRIDING, emulator, merging, packs};
use crate::{Typed, agree, reference, tensor, values, var};

const EPS: f64 = 1e-5;

/// Operands of a batch norm with a rectifier over (n, c) values, and what the kernels cut rows
/// into.
struct Case {
    c: usize,
    x: Vec<f32>,
    residual: Option<Vec<f32>>,
    gamma: Vec<f32>,
    beta: Vec<f32>,
    dy: Vec<f32>,
}

/// Three chunks, the last one shorter.
const ROWS: usize = 83;
const PER_CHUNK: usize = 40;
const CHUNKS: usize = 3;

/// Results of the kernels.
struct BatchNormResults {
    mean: Vec<f32>,
    variance: Vec<f32>,
    y: Vec<f32>,
    /// The gradient before the rectifier, or after it where nothing was added.
    g: Vec<f32>,
    of_gamma: Vec<f32>,
    of_beta: Vec<f32>,
    dx: Vec<f32>,
}

impl Case {
    fn new(c: usize, is_residual: bool) -> Self {
        let n = ROWS * c;
        let x = values(1, n).iter().map(|v| 3.0 * v + 100.0).collect();
        let residual = is_residual.then(|| values(2, n));
        Self { c, x, residual, gamma: values(3, c), beta: values(4, c), dy: values(5, n) }
    }

    /// Rounds the operands.
    fn rounded(self, round: fn(f32) -> f32) -> Self {
        let all = |values: Vec<f32>| values.into_iter().map(round).collect();
        let x = self.x.into_iter().map(|v| round(v - 100.0)).collect();
        Self { x, residual: self.residual.map(all), dy: all(self.dy), ..self }
    }

    /// Columns, side by side as packs of four where that is possible.
    fn grid(&self) -> [u32; 6] {
        packs(if self.c.is_multiple_of(4) { self.c / 4 } else { self.c }, CHUNKS)
    }

    fn sizes(&self) -> [Arg<'static>; 4] {
        let [rows, c, per_chunk] = [ROWS, self.c, PER_CHUNK].map(|n| Count(n as u64));
        [rows, c, per_chunk, Flag(self.c.is_multiple_of(4).into())]
    }

    fn launch(&self, gpu: &Emulator, kernel: &str, kind: &str, arguments: Vec<Arg<'_>>) {
        let mut arguments: Vec<Arg<'_>> = arguments.into_iter().chain(self.sizes()).collect();
        gpu.run(&format!("{kernel}_{kind}"), self.grid(), &mut arguments);
    }

    /// Mean, variance and 1 / deviation.
    fn statistics(&self, gpu: &Emulator, x: &mut Typed) -> [Vec<f32>; 3] {
        let (c, kind) = (self.c, x.kind);
        let mut partial = vec![0.0; 2 * CHUNKS * c];
        self.launch(gpu, "batch_moments", kind, vec![x.arg(), Out(&mut partial)]);
        let [mut mean, mut variance, mut inverse] = [(); 3].map(|()| vec![0.0; c]);
        let [chunks, rows, c, per_chunk] = [CHUNKS, ROWS, c, PER_CHUNK].map(|n| Count(n as u64));
        let statistics = [&mut mean, &mut variance, &mut inverse].map(|values| Out(values));
        let sizes = [Double(EPS), chunks, rows, c, per_chunk];
        let arguments = [In(&partial)].into_iter().chain(statistics).chain(sizes);
        gpu.run("batch_statistics", merging(self.c), &mut arguments.collect::<Vec<_>>());
        [mean, variance, inverse]
    }

    /// There and back with values of a kind.
    fn run(&self, gpu: &Emulator, kind: &'static str) -> BatchNormResults {
        let c = self.c;
        let mut x = Typed::new(kind, &self.x);
        let mut residual = self.residual.as_ref().map(|residual| Typed::new(kind, residual));
        let [mean, variance, inverse] = self.statistics(gpu, &mut x);
        let mut y = Typed::new(kind, &vec![0.0; ROWS * c]);
        let (gamma, beta) = (&self.gamma, &self.beta);
        let affine = || [In(&mean), In(&inverse), In(gamma), In(beta)];
        let added = residual.as_mut().map_or(Nothing, Typed::arg);
        let arguments = [x.arg()].into_iter().chain(affine()).chain([added, y.arg(), Flag(1)]);
        self.launch(gpu, "batch_norm", kind, arguments.collect());

        let (mut dy, mut partial) = (Typed::new(kind, &self.dy), vec![0.0; 2 * CHUNKS * c]);
        let gate = if self.residual.is_some() { y.arg() } else { Nothing };
        let rest = [gate, dy.arg(), Out(&mut partial), Flag(1)];
        let arguments = [x.arg()].into_iter().chain(affine()).chain(rest);
        self.launch(gpu, "batch_norm_sums", kind, arguments.collect());
        let (mut of_gamma, mut of_beta) = (vec![0.0; c], vec![0.0; c]);
        let mut slopes = vec![0.0; 3 * c];
        let sums = [&mut of_gamma, &mut of_beta, &mut slopes].map(|values| Out(values));
        let sizes = [CHUNKS, ROWS, c].map(|n| Count(n as u64));
        let arguments = [In(&partial), In(&inverse), In(gamma)].into_iter().chain(sums);
        let arguments = &mut arguments.chain(sizes).collect::<Vec<_>>();
        gpu.run("batch_norm_affine", merging(c), arguments);

        let mut dx = Typed::new(kind, &vec![0.0; ROWS * c]);
        let gate = if self.residual.is_some() { Nothing } else { In(beta) };
        let arguments = vec![dy.arg(), x.arg(), In(&mean), In(&slopes), gate, dx.arg()];
        self.launch(gpu, "batch_norm_pull", kind, arguments);
        let (y, g, dx) = (y.values(), dy.values(), dx.values());
        BatchNormResults { mean, variance, y, g, of_gamma, of_beta, dx }
    }
}

#[test]
fn batch_norm_and_its_gradients_are_those_of_the_cpu() {
    let Some(gpu) = emulator() else { return };
    // More columns than a block has, one at a time, and four.
    for (c, is_residual) in [(37, true), (36, true), (37, false), (36, false), (5, true)] {
        let case = Case::new(c, is_residual);
        let (x, gamma) = (var(&case.x, &[ROWS, c]), var(&case.gamma, &[c]));
        let (residual, shift) = (case.residual.as_ref(), tensor(&case.beta, &[c]));
        let residual = residual.map(|residual| var(residual, &[ROWS, c]));
        let vars: Vec<_> = [&x, &gamma].into_iter().chain(&residual).collect();
        let mut statistics = None;
        let (y, gradients) = reference(&vars, &case.dy, || {
            let affine = [&gamma.as_tensor().into(), &(&shift).into()];
            let residual = residual.as_ref().map(Var::as_tensor);
            let (y, found) = ops::batch_norm(&x, affine, residual, Activation::Relu, EPS)?;
            statistics = Some(found);
            Ok(y)
        });
        let (statistics, found) = (statistics.unwrap(), case.run(gpu, "f32"));
        agree("mean", &found.mean, &statistics.mean, 1e-6);
        agree("variance", &found.variance, &statistics.variance, 3e-6);
        agree("output", &found.y, &y, 2e-5);
        let open = |(g, y): (&f32, &f32)| if *y > 0.0 { *g } else { 0.0 };
        let g: Vec<f32> = case.dy.iter().zip(&y).map(open).collect();
        match gradients.get(2) {
            Some(of_residual) => agree("gradient of the residual", &found.g, of_residual, 0.0),
            None => assert_eq!(found.g, case.dy),
        }
        agree("gradient of the scale", &found.of_gamma, &gradients[1], 2e-5);
        let plain: Vec<f32> = (0..c).map(|i| g.iter().skip(i).step_by(c).sum()).collect();
        agree("gradient of the shift", &found.of_beta, &plain, 2e-6);
        agree("gradient of x", &found.dx, &gradients[0], 2e-5);
    }
}

#[test]
fn batch_norm_in_half_precision_computes_with_f32() {
    let Some(gpu) = emulator() else { return };
    let kinds = [
        ("bf16", (|v| bf16::from_f32(v).to_f32()) as fn(f32) -> f32),
        ("f16", |v| f16::from_f32(v).to_f32()),
    ];
    for (kind, round) in kinds {
        for (c, is_residual) in [(5, true), (5, false), (64, true), (64, false)] {
            let case = Case::new(c, is_residual).rounded(round);
            let (found, exact) = (case.run(gpu, kind), case.run(gpu, "f32"));
            let round = |values: &[f32]| values.iter().map(|v| round(*v)).collect::<Vec<_>>();
            assert_eq!((found.mean, found.variance), (exact.mean, exact.variance));
            assert_eq!((found.of_gamma, found.of_beta), (exact.of_gamma, exact.of_beta));
            assert_eq!((found.y, found.dx), (round(&exact.y), round(&exact.dx)));
            assert_eq!(found.g, exact.g);
        }
    }
}

#[test]
fn statistics_that_move_and_deviations() {
    let Some(gpu) = emulator() else { return };
    let c = 5;
    let variance: Vec<f32> = values(1, c).iter().map(|v| v * v).collect();
    let mut inverse = vec![0.0; c];
    let arguments = &mut [In(&variance), Out(&mut inverse), Double(EPS), Count(c as u64)];
    gpu.run("inverse_deviation", STRIDING, arguments);
    let expected: Vec<f32> =
        variance.iter().map(|v| (1.0 / (f64::from(*v) + EPS).sqrt()) as f32).collect();
    agree("deviations", &inverse, &expected, 0.0);
    let (mut running, mean) = (vec![1.0; c], values(2, c));
    let [momentum, scale] = [Double(0.1), Double(2.0)];
    let arguments =
        &mut [Out(&mut running), In(&variance), In(&mean), momentum, scale, Count(c as u64)];
    gpu.run("move_running", STRIDING, arguments);
    let expected: Vec<f32> = variance.iter().map(|v| 0.9 + 0.2 * v).collect();
    agree("running variance", &running, &expected, 1e-6);
}

#[test]
fn running_statistics_stay_where_those_of_a_batch_are_not_finite() {
    let Some(gpu) = emulator() else { return };
    let mut running = vec![1.0; 4];
    let variance = [2.0, f32::INFINITY, 2.0, f32::NAN];
    let mean = [0.5, 0.5, f32::NAN, f32::NEG_INFINITY];
    let arguments =
        &mut [Out(&mut running), In(&variance), In(&mean), Double(0.5), Double(1.0), Count(4)];
    gpu.run("move_running", STRIDING, arguments);
    assert_eq!(running, [1.5, 1.0, 1.0, 1.0]);
}
