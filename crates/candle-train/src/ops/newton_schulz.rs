//! The nearest matrix with orthogonal rows or columns, roughly, by products alone.

use super::kernel::{Matrix, Sums, multiplied};
use super::layout::transposed;

/// Coefficients of the quintic, which is steepest at 0 (Jordan et al. 2024,
/// <https://kellerjordan.github.io/posts/muon/>).
const COEFFICIENTS: [f32; 3] = [3.4445, -4.775, 2.0315];
/// Least norm that the matrix is divided by.
const EPS: f64 = 1e-7;

/// Applies `steps` iterations of Newton and Schulz to a row-major matrix: its singular values go to
/// about 1. The same bits for any number of threads.
pub fn newton_schulz(matrix: &[f32], rows: usize, columns: usize, steps: u32) -> Vec<f32> {
    let is_tall = rows > columns;
    let squares: f64 = matrix.iter().map(|&v| f64::from(v) * f64::from(v)).sum();
    let scale = 1.0 / squares.sqrt().max(EPS);
    let scaled = matrix.iter().map(|&v| (f64::from(v) * scale) as f32).collect();
    let turned = |x: Vec<f32>, [rows, columns]: [usize; 2]| {
        if is_tall { transposed(&x, rows, columns) } else { x }
    };
    let short = rows.min(columns);
    let long = rows.max(columns);
    let mut x: Vec<f32> = turned(scaled, [rows, columns]);
    let [a, b, c] = COEFFICIENTS;
    for _ in 0..steps {
        let of_x = Matrix::new(&x, short, long);
        let gram = multiplied(of_x, of_x.transposed(), Sums::Long);
        let of_gram = Matrix::new(&gram, short, short);
        let mut polynomial = multiplied(of_gram, of_gram, Sums::Long);
        polynomial.iter_mut().zip(&gram).for_each(|(square, g)| *square = b * g + c * *square);
        let mut next = multiplied(Matrix::new(&polynomial, short, short), of_x, Sums::Long);
        next.iter_mut().zip(&x).for_each(|(next, x)| *next += a * x);
        x = next;
    }
    turned(x, [short, long])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn singular_values_come_near_1_whatever_the_shape() {
        for (rows, columns) in [(3, 7), (7, 3), (4, 4), (1, 5)] {
            let value = |i: usize| ((37 * i * i + 11 * i + 5) % 53) as f32 / 53.0 - 0.5;
            let matrix: Vec<f32> = (0..rows * columns).map(value).collect();
            let found = newton_schulz(&matrix, rows, columns, 5);
            let n = rows.min(columns);
            let squares: f32 = found.iter().map(|v| v * v).sum();
            // Singular values end between 0.68 and 1.13.
            assert!((squares / n as f32 - 1.0).abs() < 0.6, "{rows}x{columns}: {squares}");
        }
    }
}
