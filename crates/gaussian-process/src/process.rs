//! A fitted Gaussian process: predictions, and the improvement to be expected.

use std::f64::consts::{FRAC_1_SQRT_2, TAU};

use nalgebra::{Cholesky, DVector, Dyn};

use crate::fit::fit;
use crate::kernel::{Axis, Distances, Kernel};

/// Points from which on the kernel is fitted to so many of them, evenly chosen.
const MOST_FITTED: usize = 120;

/// Measurements of a function, and what they say about it elsewhere.
#[derive(Clone, Debug)]
pub struct GaussianProcess {
    axes: Vec<Axis>,
    points: Vec<Vec<f64>>,
    /// The values, shifted and scaled to mean 0 and variance 1.
    values: Vec<f64>,
    /// Mean and standard deviation of the values as they were given.
    unit: (f64, f64),
    kernel: Kernel,
    /// Factors of the covariances of the measurements.
    factors: Cholesky<f64, Dyn>,
    /// The inverse covariances times the values.
    solved: DVector<f64>,
    /// Least prediction at a measured point.
    best: f64,
}

/// What is known about the function at a point.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Prediction {
    /// Expected value.
    pub mean: f64,
    /// Variance of the function there, without the noise of a measurement.
    pub variance: f64,
}

impl GaussianProcess {
    /// Fits a process to `values` measured at `points`, which have a coordinate per axis. Returns
    /// `None` if there are fewer than two points, or a value is not finite.
    pub fn fit(axes: &[Axis], points: Vec<Vec<f64>>, values: &[f64]) -> Option<Self> {
        if points.len() < 2 || values.iter().any(|value| !value.is_finite()) {
            return None;
        }
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n;
        let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / n;
        let deviation = if variance > 0.0 { variance.sqrt() } else { 1.0 };
        let values: Vec<f64> = values.iter().map(|value| (value - mean) / deviation).collect();
        let n_fitted = points.len().min(MOST_FITTED);
        let chosen: Vec<usize> = (0..n_fitted).map(|i| i * points.len() / n_fitted).collect();
        let some: Vec<Vec<f64>> = chosen.iter().map(|&index| points[index].clone()).collect();
        let some_values = chosen.iter().map(|&index| values[index]);
        let some_values = DVector::from_iterator(chosen.len(), some_values);
        let kernel = fit(axes.len(), &Distances::of(axes, &some), &some_values)?;
        Self::with_kernel(axes.to_vec(), points, values, (mean, deviation), kernel)
    }

    fn with_kernel(
        axes: Vec<Axis>,
        points: Vec<Vec<f64>>,
        values: Vec<f64>,
        unit: (f64, f64),
        kernel: Kernel,
    ) -> Option<Self> {
        let factors = Cholesky::new(kernel.matrix(&Distances::of(&axes, &points)))?;
        let solved = factors.solve(&DVector::from_column_slice(&values));
        let best = f64::INFINITY;
        let mut process = Self { axes, points, values, unit, kernel, factors, solved, best };
        let means = process.points.iter().map(|point| process.standard(point).mean);
        process.best = means.fold(f64::INFINITY, f64::min);
        Some(process)
    }

    /// The process with measurements at `points` that are under way: each is believed to give what
    /// is expected there, so that the next point keeps away from them.
    #[must_use]
    pub fn believing(&self, points: &[Vec<f64>]) -> Self {
        if points.is_empty() {
            return self.clone();
        }
        let believed = points.iter().map(|point| self.standard(point).mean);
        let values = self.values.iter().copied().chain(believed).collect();
        let all = self.points.iter().chain(points).cloned().collect();
        let (axes, kernel) = (self.axes.clone(), self.kernel.clone());
        let process = Self::with_kernel(axes, all, values, self.unit, kernel);
        process.unwrap_or_else(|| self.clone())
    }

    /// What is known at `point`.
    pub fn predict(&self, point: &[f64]) -> Prediction {
        let Prediction { mean, variance } = self.standard(point);
        let (shift, deviation) = self.unit;
        Prediction { mean: shift + deviation * mean, variance: deviation * deviation * variance }
    }

    /// The same for the shifted and scaled values.
    fn standard(&self, point: &[f64]) -> Prediction {
        let covariances =
            self.points.iter().map(|known| self.kernel.covariance(&self.axes, point, known));
        let covariances = DVector::from_iterator(self.points.len(), covariances);
        let mean = covariances.dot(&self.solved);
        let mut explained = covariances;
        let is_solved = self.factors.l_dirty().solve_lower_triangular_mut(&mut explained);
        let explained = if is_solved { explained.norm_squared() } else { 0.0 };
        Prediction { mean, variance: (self.kernel.scale - explained).max(1e-12) }
    }

    /// The logarithm of how much lower than the best known value a measurement at `point` is
    /// expected to be, in standard deviations of the values. Its logarithm, because far from a
    /// likely improvement the number itself rounds to 0 (Ament et al. 2023).
    pub fn log_expected_improvement(&self, point: &[f64]) -> f64 {
        let Prediction { mean, variance } = self.standard(point);
        let deviation = variance.sqrt();
        deviation.ln() + log_improvement((self.best - mean) / deviation)
    }
}

/// The logarithm of z times the probability of less than z, plus the density at z, of the standard
/// normal distribution.
fn log_improvement(z: f64) -> f64 {
    let log_density = -0.5 * z * z - 0.5 * TAU.ln();
    if z < -10.0 {
        // 1/z^2 - 3/z^4 + 15/z^6 times the density: the sum below would cancel.
        let inverse = 1.0 / (z * z);
        return log_density + (inverse * (1.0 - 3.0 * inverse * (1.0 - 5.0 * inverse))).ln();
    }
    let below = 0.5 * libm::erfc(-z * FRAC_1_SQRT_2);
    (log_density.exp() + z * below).ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(n: u32, f: impl Fn(f64) -> f64) -> GaussianProcess {
        let points: Vec<Vec<f64>> = (0..n).map(|i| vec![f64::from(i) / f64::from(n - 1)]).collect();
        let values: Vec<f64> = points.iter().map(|x| f(x[0])).collect();
        GaussianProcess::fit(&[Axis::Number], points, &values).unwrap()
    }

    #[test]
    fn the_improvement_of_the_tables_is_found_far_out_too() {
        // log(phi(z) + z Phi(z)), computed with 60 digits.
        for (z, expected) in [
            (3.0, 1.098_739_665_327_71),
            (0.0, -0.918_938_533_204_673),
            (-3.0, -7.869_686_059_603_03),
            (-9.9, -54.538_591_240_015_2),
            (-10.1, -56.577_468_975_612_6),
            (-40.0, -808.298_568_356_62),
        ] {
            let found = log_improvement(z);
            assert!((found - expected).abs() < 2e-4, "{z}: {found} {expected}");
        }
        let gap = log_improvement(-10.0 + 1e-9) - log_improvement(-10.0 - 1e-9);
        assert!(gap.abs() < 2e-4, "{gap}");
    }

    #[test]
    fn a_smooth_function_is_predicted_between_its_measurements() {
        let process = line(12, |x| (6.0 * x).sin() + 3.0);
        for x in [0.13, 0.5, 0.87] {
            let Prediction { mean, variance } = process.predict(&[x]);
            assert!((mean - (6.0 * x).sin() - 3.0).abs() < 0.02, "{x}: {mean}");
            assert!(variance < 0.01, "{x}: {variance}");
        }
        assert!(process.predict(&[3.0]).variance > 0.1);
    }

    #[test]
    fn the_next_point_keeps_away_from_those_under_way() {
        let process = line(6, |x| (x - 0.5).powi(2));
        let at = |process: &GaussianProcess| process.log_expected_improvement(&[0.5]);
        assert!(at(&process.believing(&[vec![0.5]])) < at(&process) - 1.0);
    }

    #[test]
    fn equal_values_and_equal_points_are_no_trouble() {
        let same = GaussianProcess::fit(&[Axis::Number], vec![vec![0.5]; 5], &[1.0; 5]).unwrap();
        assert!((same.predict(&[0.5]).mean - 1.0).abs() < 1e-6);
        assert!(
            GaussianProcess::fit(&[Axis::Number], vec![vec![0.5]; 2], &[1.0, f64::NAN]).is_none()
        );
        assert!(GaussianProcess::fit(&[Axis::Number], vec![vec![0.5]], &[1.0]).is_none());
    }

    #[test]
    fn axes_that_do_not_matter_get_long_scales() {
        let points: Vec<Vec<f64>> = (0..30)
            .map(|i| vec![f64::from(i * 7 % 30) / 30.0, f64::from(i * 11 % 30) / 30.0])
            .collect();
        let values: Vec<f64> = points.iter().map(|x| (5.0 * x[0]).sin()).collect();
        let process = GaussianProcess::fit(&[Axis::Number; 2], points, &values).unwrap();
        let [first, second] = process.kernel.weights[..] else { panic!() };
        assert!(first > 10.0 * second, "{first} {second}");
    }
}
