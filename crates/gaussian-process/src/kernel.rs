//! The Matern 5/2 kernel with a length scale per axis, and its derivatives.

use nalgebra::DMatrix;

/// One coordinate of a point.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Axis {
    /// A number, best scaled to a range from 0 to 1.
    Number,
    /// One of several choices without an order, as its index.
    Choice,
}

impl Axis {
    /// The squared distance of two coordinates; of two choices 0 or 1.
    fn squared_distance(self, a: f64, b: f64) -> f64 {
        match self {
            Self::Number => (a - b).powi(2),
            Self::Choice => f64::from(u8::from(a != b)),
        }
    }
}

/// The numbers of a kernel.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Kernel {
    /// For each axis, 1 over the square of its length scale.
    pub(crate) weights: Vec<f64>,
    /// Variance of the function.
    pub(crate) scale: f64,
    /// Variance of the noise of a measurement.
    pub(crate) noise: f64,
}

/// The squared distances of all pairs of points, axis by axis.
pub(crate) struct Distances {
    pub(crate) n: usize,
    /// For each axis, those of points i and j < i, row by row.
    axes: Vec<Vec<f64>>,
}

impl Distances {
    pub(crate) fn of(axes: &[Axis], points: &[Vec<f64>]) -> Self {
        let along = |(index, axis): (usize, &Axis)| {
            let pairs = points.iter().enumerate();
            let pairs = pairs.flat_map(|(i, a)| points[..i].iter().map(move |b| (a, b)));
            pairs.map(|(a, b)| axis.squared_distance(a[index], b[index])).collect()
        };
        Self { n: points.len(), axes: axes.iter().enumerate().map(along).collect() }
    }
}

impl Kernel {
    /// The covariance of the function at two points.
    pub(crate) fn covariance(&self, axes: &[Axis], a: &[f64], b: &[f64]) -> f64 {
        let pairs = a.iter().zip(b);
        let terms = axes.iter().zip(&self.weights).zip(pairs);
        let squared: f64 =
            terms.map(|((axis, weight), (a, b))| weight * axis.squared_distance(*a, *b)).sum();
        self.scale * matern(squared)
    }

    /// The covariances of all measurements.
    pub(crate) fn matrix(&self, distances: &Distances) -> DMatrix<f64> {
        let n = distances.n;
        let mut matrix = DMatrix::from_diagonal_element(n, n, self.scale + self.noise);
        for (pair, (i, j)) in pairs(n).enumerate() {
            let value = self.scale * matern(self.squared(distances, pair));
            (matrix[(i, j)], matrix[(j, i)]) = (value, value);
        }
        matrix
    }

    /// For each number, in the order of the fields, the sum over all pairs of measurements of
    /// `factor` times the derivative of their covariance by the number's logarithm.
    pub(crate) fn derivatives(&self, distances: &Distances, factor: &DMatrix<f64>) -> Vec<f64> {
        let mut by_weight = vec![0.0; self.weights.len()];
        let mut by_scale = self.scale * factor.trace();
        for (pair, (i, j)) in pairs(distances.n).enumerate() {
            let squared = self.squared(distances, pair);
            // Each pair stands twice in the matrix.
            let twice = 2.0 * factor[(i, j)] * self.scale;
            by_scale += twice * matern(squared);
            let slope = twice * matern_slope(squared);
            for ((sum, weight), axis) in
                by_weight.iter_mut().zip(&self.weights).zip(&distances.axes)
            {
                *sum += slope * weight * axis[pair];
            }
        }
        let mut all = by_weight;
        all.extend([by_scale, self.noise * factor.trace()]);
        all
    }

    fn squared(&self, distances: &Distances, pair: usize) -> f64 {
        self.weights.iter().zip(&distances.axes).map(|(weight, axis)| weight * axis[pair]).sum()
    }
}

/// The pairs (i, j < i) in the order of [`Distances`].
fn pairs(n: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..n).flat_map(|i| (0..i).map(move |j| (i, j)))
}

/// The correlation at a squared distance, in length scales.
fn matern(squared: f64) -> f64 {
    let r = (5.0 * squared).sqrt();
    (1.0 + r + r * r / 3.0) * (-r).exp()
}

/// The derivative of [`matern`].
fn matern_slope(squared: f64) -> f64 {
    let r = (5.0 * squared).sqrt();
    -5.0 / 6.0 * (1.0 + r) * (-r).exp()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn derivatives_equal_differences() {
        let axes = [Axis::Number, Axis::Choice, Axis::Number];
        let points: Vec<Vec<f64>> = (0..7)
            .map(|i| vec![f64::from(i * i % 5) / 5.0, f64::from(i % 3), f64::from(i % 4) / 4.0])
            .collect();
        let distances = Distances::of(&axes, &points);
        let factor = DMatrix::from_fn(7, 7, |i, j| ((i * j) as f64).cos() + (i + j) as f64);
        let kernel = |logs: &[f64]| Kernel {
            weights: logs[..3].iter().map(|log| log.exp()).collect(),
            scale: logs[3].exp(),
            noise: logs[4].exp(),
        };
        let logs = [0.3, -0.7, 1.1, 0.2, -3.0];
        let found = kernel(&logs).derivatives(&distances, &factor);
        for (index, found) in found.iter().enumerate() {
            let sum = |step: f64| {
                let mut logs = logs;
                logs[index] += step;
                kernel(&logs).matrix(&distances).component_mul(&factor).sum()
            };
            let expected = (sum(1e-5) - sum(-1e-5)) / 2e-5;
            assert!((found - expected).abs() < 1e-6 * expected.abs().max(1.0), "{index}");
        }
    }

    #[test]
    fn a_point_is_fully_correlated_with_itself_and_a_choice_has_no_order() {
        let kernel = Kernel { weights: vec![2.0, 0.5], scale: 3.0, noise: 0.0 };
        let axes = [Axis::Number, Axis::Choice];
        let covariance = |a: &[f64], b: &[f64]| kernel.covariance(&axes, a, b);
        assert_eq!(covariance(&[0.3, 1.0], &[0.3, 1.0]), 3.0);
        assert_eq!(covariance(&[0.3, 1.0], &[0.3, 2.0]), covariance(&[0.3, 1.0], &[0.3, 5.0]));
    }
}
