//! The numbers of a kernel that are most likely given the measurements.
//!
//! Priors are those of Optuna 5's `GPSampler`: length scales near 1, in the unit of the axes, little
//! noise, a variance near that of the values. The search is Rprop, which Blum and Riedmiller (2013,
//! "Optimization of Gaussian process hyperparameters using Rprop") found as good as any for this.

use nalgebra::{Cholesky, DMatrix, DVector};

use crate::kernel::{Distances, Kernel};

/// Steps of Rprop.
const STEPS: usize = 100;
/// Largest step of Rprop at which the search has converged, in logarithms.
const CONVERGED: f64 = 1e-3;
/// Least variance of the noise, which keeps the covariances of equal points invertible.
const LEAST_NOISE: f64 = 1e-6;
/// Logarithms of the numbers between which they are searched.
const RANGE: (f64, f64) = (-16.0, 10.0);

/// The most likely kernel of `values` with mean 0 and variance 1; `None` if no covariances could be
/// inverted.
pub(crate) fn fit(n_axes: usize, distances: &Distances, values: &DVector<f64>) -> Option<Kernel> {
    let mut logs = vec![0.0_f64; n_axes];
    logs.extend([0.0, 1e-2_f64.ln()]);
    let mut steps = vec![0.1_f64; logs.len()];
    let mut before = vec![0.0_f64; logs.len()];
    let mut best: Option<(f64, Kernel)> = None;
    for _ in 0..STEPS {
        let kernel = kernel(&logs);
        let Some((likelihood, slopes)) = log_posterior(&kernel, distances, values) else { break };
        if best.as_ref().is_none_or(|(most, _)| likelihood > *most) {
            best = Some((likelihood, kernel));
        }
        for (((log, step), before), slope) in
            logs.iter_mut().zip(&mut steps).zip(&mut before).zip(slopes)
        {
            let agreement = slope * *before;
            *step = match agreement {
                same if same > 0.0 => (*step * 1.2).min(1.0),
                turned if turned < 0.0 => *step * 0.5,
                _ => *step,
            };
            *before = if agreement < 0.0 { 0.0 } else { slope };
            // Where the slope has turned, one step is left out.
            *log = (*log + before.signum() * f64::from(u8::from(*before != 0.0)) * *step)
                .clamp(RANGE.0, RANGE.1);
        }
        if steps.iter().all(|step| *step < CONVERGED) {
            break;
        }
    }
    best.map(|(_, kernel)| kernel)
}

fn kernel(logs: &[f64]) -> Kernel {
    let (weights, rest) = logs.split_at(logs.len() - 2);
    Kernel {
        weights: weights.iter().map(|log| log.exp()).collect(),
        scale: rest[0].exp(),
        noise: rest[1].exp() + LEAST_NOISE,
    }
}

/// The logarithm of the posterior but for a constant, and its derivatives by the logarithms of the
/// numbers.
fn log_posterior(
    kernel: &Kernel,
    distances: &Distances,
    values: &DVector<f64>,
) -> Option<(f64, Vec<f64>)> {
    let factors = Cholesky::new(kernel.matrix(distances))?;
    let solved = factors.solve(values);
    let determinant: f64 = factors.l_dirty().diagonal().iter().map(|entry| entry.ln()).sum();
    let likelihood = -0.5 * values.dot(&solved) - determinant;
    let factor: DMatrix<f64> = (&solved * solved.transpose() - factors.inverse()) * 0.5;
    let mut slopes = kernel.derivatives(distances, &factor);
    let (prior, prior_slopes) = log_prior(kernel);
    for (slope, prior) in slopes.iter_mut().zip(prior_slopes) {
        *slope += prior;
    }
    Some((likelihood + prior, slopes))
}

/// The logarithm of the prior but for a constant, and its derivatives by the logarithms of the
/// numbers.
fn log_prior(kernel: &Kernel) -> (f64, Vec<f64>) {
    let Kernel { weights, scale, noise } = kernel;
    let lengths: f64 = weights.iter().map(|weight| -0.1 / weight - 0.1 * weight).sum();
    let prior = lengths + scale.ln() - scale + 0.1 * noise.ln() - 30.0 * noise;
    let mut slopes: Vec<f64> = weights.iter().map(|weight| 0.1 / weight - 0.1 * weight).collect();
    slopes.extend([1.0 - scale, 0.1 - 30.0 * noise]);
    (prior, slopes)
}
