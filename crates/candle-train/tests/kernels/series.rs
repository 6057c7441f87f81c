use candle_train::ops::{self, Average};

use crate::emulator::Arg::{Count, Double, Doubles, Flag, In, Out, Single};
use crate::emulator::{Emulator, STRIDING, emulator, rows};
use crate::{agree, flat, reference, tensor, values, var};

#[test]
fn rotary_positions_turn_there_and_back_as_on_the_cpu() {
    let Some(gpu) = emulator() else { return };
    for [b, t, heads, d] in [[1, 1, 1, 2], [2, 5, 3, 6], [1, 9, 2, 8]] {
        let (width, theta) = (heads * d, 100.0f64);
        let n = b * t * width;
        let (x, dy) = (values(1, n), values(2, n));
        let operand = var(&x, &[b, t, width]);
        let (y, dx) = reference(&[&operand], &dy, || {
            ops::rotary(&operand, heads, &ops::Rope::plain(theta, d))
        });
        let angle =
            |i: usize| (i / (d / 2)) as f64 * theta.powf(-2.0 * (i % (d / 2)) as f64 / d as f64);
        let of = |f: fn(f64) -> f64| (0..t * d / 2).map(move |i| f(angle(i)) as f32);
        let angles: Vec<f32> = of(f64::cos).chain(of(f64::sin)).collect();
        let turn = |from: &[f32], sign: f32| {
            let mut to = vec![0.0; n];
            let [t, width, d, pairs] = [t, width, d, n / 2].map(|size| Count(size as u64));
            let arguments =
                &mut [In(from), Out(&mut to), In(&angles), Single(sign), t, width, d, pairs];
            gpu.run("rotary", STRIDING, arguments);
            to
        };
        agree("turned", &turn(&x, 1.0), &y, 1e-6);
        agree("turned back", &turn(&dy, -1.0), &dx[0], 1e-6);
    }
}

#[test]
fn moving_averages_are_those_of_the_cpu() {
    let Some(gpu) = emulator() else { return };
    let c = 12;
    let x = values(1, 5 * c);
    for (window, average) in [
        (1, Average::Centred),
        (5, Average::Centred),
        (25, Average::Centred),
        (1, Average::Trailing),
        (4, Average::Trailing),
        (12, Average::Trailing),
    ] {
        let expected = flat(&ops::moving_average(&tensor(&x, &[5, c]), window, average).unwrap());
        let mut found = vec![0.0; x.len()];
        let centred = Flag((average == Average::Centred).into());
        let [window, c, n] = [window, c, x.len()].map(|size| Count(size as u64));
        gpu.run("moving_average", STRIDING, &mut [In(&x), Out(&mut found), window, centred, c, n]);
        agree(&format!("{average:?}"), &found, &expected, 1e-6);
    }
}

/// Samples, steps and series of a forecast.
type Sizes = [usize; 3];

/// The product that cuBLAS makes: a (n, k), b (k, m).
fn product(a: &[f32], b: &[f32], k: usize, m: usize) -> Vec<f32> {
    let element = |i: usize| -> f32 { (0..k).map(|j| a[i / m * k + j] * b[j * m + i % m]).sum() };
    (0..a.len() / k * m).map(element).collect()
}

/// Cosines and negative sines of all frequencies, (steps, 2 frequencies), and their transpose.
fn basis(steps: usize) -> [Vec<f32>; 2] {
    let f = steps / 2 + 1;
    let entry = |t: usize, k: usize| {
        let angle = std::f64::consts::TAU * (t * (k % f)) as f64 / steps as f64;
        (if k < f { angle.cos() } else { -angle.sin() }) as f32
    };
    let rows = (0..steps).flat_map(|t| (0..2 * f).map(move |k| entry(t, k))).collect();
    [rows, (0..2 * f).flat_map(|k| (0..steps).map(move |t| entry(t, k))).collect()]
}

/// Loss and gradient of the forecasts, for the gradient `dy` of the loss.
fn time_frequency(
    gpu: &Emulator,
    [p, t]: [&[f32]; 2],
    [samples, steps, series]: Sizes,
    alpha: f64,
    dy: f32,
) -> (f32, Vec<f32>) {
    let (n, f) = (p.len(), steps / 2 + 1);
    let coefficients = samples * series * f;
    let weights = [(1.0 - alpha) / n as f64, alpha / coefficients as f64].map(Double);
    let sizes = || [steps, series, n].map(|size| Count(size as u64));
    let [forward, back] = basis(steps);
    let mut differences = vec![0.0; n];
    let [a, b, c] = sizes();
    gpu.run("series_differences", STRIDING, &mut [In(p), In(t), Out(&mut differences), a, b, c]);
    let mut spectrum = product(&differences, &forward, steps, 2 * f);
    let (mut over_time, mut lengths) = ([0.0; 2], [0.0; 3]);
    let [half, third] = [n.div_ceil(2), coefficients.div_ceil(3)].map(|size| Count(size as u64));
    let counts = || [f, coefficients].map(|size| Count(size as u64));
    let arguments = &mut [In(p), In(t), Doubles(&mut over_time), Flag(1), half, Count(n as u64)];
    gpu.run("regression_sums", rows(2), arguments);
    let [width, count] = counts();
    let arguments = &mut [In(&spectrum), Doubles(&mut lengths), width, third, count];
    gpu.run("spectrum_sums", rows(3), arguments);
    let mut loss = [0.0];
    let [of_time, of_frequency] = weights;
    let arguments = &mut [
        Doubles(&mut over_time),
        Doubles(&mut lengths),
        Out(&mut loss),
        of_time,
        of_frequency,
        Count(2),
        Count(3),
    ];
    gpu.run("weighted_total", rows(1), arguments);
    let [width, count] = counts();
    let weight = Double(alpha / coefficients as f64);
    let arguments = &mut [Out(&mut spectrum), In(&[dy]), weight, width, count];
    gpu.run("spectrum_slopes", STRIDING, arguments);
    let by_series = product(&spectrum, &back, 2 * f, steps);
    let mut gradient = vec![0.0; n];
    let [a, b, c] = sizes();
    let weight = Double((1.0 - alpha) / n as f64);
    let arguments =
        &mut [In(p), In(t), In(&by_series), In(&[dy]), Out(&mut gradient), weight, a, b, c];
    gpu.run("series_gradient", STRIDING, arguments);
    (loss[0], gradient)
}

#[test]
fn the_loss_over_time_and_frequencies_and_its_gradient_are_those_of_the_cpu() {
    let Some(gpu) = emulator() else { return };
    for sizes in [[2, 8, 3], [1, 5, 4], [3, 1, 2]] {
        let n: usize = sizes.iter().product();
        let (p, mut t) = (values(1, n), values(2, n));
        // A difference of 0 has no slope over time.
        t[0] = p[0];
        let operand = var(&p, &sizes);
        let (loss, gradient) = reference(&[&operand], &[0.7], || {
            ops::time_frequency(&operand, &tensor(&t, &sizes), 0.35)?.reshape(1)
        });
        let (found, slopes) = time_frequency(gpu, [&p, &t], sizes, 0.35, 0.7);
        agree("loss", &[found], &loss, 2e-6);
        agree("gradient of the forecasts", &slopes, &gradient[0], 1e-5);
    }
}
