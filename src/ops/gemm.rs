//! Matrix products in f32, safe, on one thread: callers cut the work into fixed blocks.
#![expect(unsafe_code, reason = "the `gemm` crate takes raw pointers; lengths are checked here")]

/// A matrix view; every (row, column) lies inside `values` by construction.
#[derive(Clone, Copy)]
pub(super) struct Matrix<'a> {
    values: &'a [f32],
    rows: usize,
    cols: usize,
    row_stride: usize,
    col_stride: usize,
}

impl<'a> Matrix<'a> {
    /// Row-major (rows, cols) over all of `values`.
    pub(super) fn new(values: &'a [f32], rows: usize, cols: usize) -> Self {
        assert_eq!(values.len(), rows * cols, "a matrix covers its values");
        Self { values, rows, cols, row_stride: cols, col_stride: 1 }
    }

    /// (cols, rows), without copying.
    pub(super) fn transposed(self) -> Self {
        Self {
            rows: self.cols,
            cols: self.rows,
            row_stride: self.col_stride,
            col_stride: self.row_stride,
            ..self
        }
    }

    /// Rows `start..start + count`, without copying.
    pub(super) fn row_block(self, start: usize, count: usize) -> Self {
        assert!(start + count <= self.rows, "rows of a block exist");
        let first = (start * self.row_stride).min(self.values.len());
        Self { values: &self.values[first..], rows: count, ..self }
    }
}

/// Output columns per call: two AVX-512 registers. With more, the crate's kernel runs at half the speed.
const COLUMNS: usize = 32;

/// What happens to the values that are already in the output.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Write {
    /// out = a b
    Replace,
    /// out += a b
    Add,
}

/// How many products are summed before the sum is added to the output.
///
/// Fixed here, so that bits do not depend on the sizes of a machine's caches.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Sums {
    /// 64: less rounding, where it decides whether a rectifier is open.
    Short = 64,
    /// 256: faster.
    Long = 256,
}

/// `out`, row-major (a.rows, b.cols), becomes or grows by `a b`. Fastest if `b` is row-major.
pub(super) fn multiply(out: &mut [f32], a: Matrix<'_>, b: Matrix<'_>, write: Write, sums: Sums) {
    assert_eq!(a.cols, b.rows, "inner sizes agree");
    assert_eq!(out.len(), a.rows * b.cols, "the output covers its values");
    if write == Write::Replace && a.cols == 0 {
        out.fill(0.0);
    }
    if out.is_empty() {
        return;
    }
    let depth = sums as usize;
    for k in (0..a.cols).step_by(depth) {
        let inner = depth.min(a.cols - k);
        for column in (0..b.cols).step_by(COLUMNS) {
            let columns = COLUMNS.min(b.cols - column);
            // SAFETY: a `Matrix` holds (rows - 1) row_stride + (cols - 1) col_stride < values.len(), and
            // k + inner and column + columns stay inside; `out` is a.rows x b.cols row-major, checked
            // above,
            // and borrowed mutably, so that nothing overlaps.
            unsafe {
                gemm::gemm(
                    a.rows,
                    columns,
                    inner,
                    out.as_mut_ptr().add(column),
                    1,
                    b.cols as isize,
                    write == Write::Add || k > 0,
                    a.values.as_ptr().add(k * a.col_stride),
                    a.col_stride as isize,
                    a.row_stride as isize,
                    b.values.as_ptr().add(k * b.row_stride + column * b.col_stride),
                    b.col_stride as isize,
                    b.row_stride as isize,
                    1.0f32,
                    1.0f32,
                    false,
                    false,
                    false,
                    gemm::Parallelism::None,
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(n: usize, salt: u64) -> Vec<f32> {
        super::super::testing::values("gemm", salt, n)
    }

    #[test]
    fn products_of_odd_sizes_and_transposed_views_equal_the_slow_ones() {
        for (m, k, n) in
            [(1, 1, 1), (1, 7, 5), (7, 1, 3), (13, 31, 17), (64, 100, 33), (3, 700, 70)]
        {
            let (a, b) = (values(m * k, 1), values(k * n, 2));
            let at: Vec<f32> = (0..k * m).map(|i| a[i % m * k + i / m]).collect();
            let mut plain = vec![f32::NAN; m * n];
            multiply(
                &mut plain,
                Matrix::new(&a, m, k),
                Matrix::new(&b, k, n),
                Write::Replace,
                Sums::Short,
            );
            let mut turned = vec![1.0; m * n];
            let view = Matrix::new(&at, k, m).transposed();
            multiply(&mut turned, view, Matrix::new(&b, k, n), Write::Add, Sums::Long);
            for i in 0..m * n {
                let exact: f64 =
                    (0..k).map(|j| f64::from(a[i / n * k + j]) * f64::from(b[j * n + i % n])).sum();
                assert!((f64::from(plain[i]) - exact).abs() < 3e-5, "{m} {k} {n}");
                assert!((f64::from(turned[i]) - 1.0 - exact).abs() < 3e-5, "{m} {k} {n}");
            }
        }
    }

    #[test]
    fn a_sum_over_nothing_is_zero() {
        let mut out = vec![3.0; 4];
        multiply(
            &mut out,
            Matrix::new(&[], 2, 0),
            Matrix::new(&[], 0, 2),
            Write::Replace,
            Sums::Long,
        );
        assert_eq!(out, [0.0; 4]);
    }
}
